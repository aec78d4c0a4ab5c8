"""Whole layers, forward and backward, put together from the kernels of the bank: how kernels that are data become a module.

    llama   out-projection, norm, SwiGLU MLP, norm, QKV with RoPE: a Llama layer without its attention, and plain PyTorch beside it

A layer is no example: `catalog()` has one kernel per file and does not look in here. What a layer needs that no example has,
it writes with the same decorators as every author. Nothing is imported here: torch is, with a layer.
"""
