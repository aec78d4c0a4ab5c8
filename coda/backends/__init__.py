"""Backends: each lowers a program to something that runs.

registry.py   the protocol of a backend, and finding one by name
reference.py  PyTorch: what a program means
triton/       generated Triton kernels
cutedsl/      programs on quack-kernels' operators; not registered before it has run on a GPU
"""
