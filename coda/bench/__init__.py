"""Measuring kernels against each other and against what no kernel can beat.

timing.py      clocks, interleaved measurement, medians with intervals, the noise floor, faster / slower / no difference
roofline.py    measured copy bandwidth, the physical floor of a shape, and what is too fast to be true
candidates.py  what a peer is made of: prepare, run, finish
adapters/      how each package's kernels are called for our tasks
peers.py       what people use today, by name, and whether it is installed and applies
empty.py       the kernels' own mainloop with an empty epilogue
record.py      one benchmark as data, with every sample
plots.py       pictures of records
caches.py      one folder for everything that compilers keep
"""
