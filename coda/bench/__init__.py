"""Measuring kernels against each other and against what no kernel can beat.

timing.py    clocks, interleaved measurement, medians with intervals, the noise floor, faster / slower / no difference
roofline.py  measured copy bandwidth, the physical floor of a shape, and what is too fast to be true
peers.py     what people use today, by name: eager, torch.compile, cuBLAS; adapters of installed packages
record.py    one benchmark as data, with every sample
"""
