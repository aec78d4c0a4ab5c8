"""Backends: each lowers a program to something that runs.

registry.py   the protocol of a backend, and finding one by name
reference.py  PyTorch: what a program means
finishing/    what the two fused backends share: a program taken apart, and the kernel that finishes it
triton/       generated Triton kernels
cutedsl/      programs on quack-kernels' operators
"""
