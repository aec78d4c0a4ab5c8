"""GEMM with GeGLU: pre-activation z = x @ w and h = gelu(gate)·up of its interleaved column pairs."""

import coda
from coda.primitives import gelu, unpair


@coda.epilogue
def gemm_geglu(
    acc,  # (M, N)
):
    """Pre-activation with gate and up interleaved, and the exact-GELU gated activation of half the width."""
    gate, up = unpair(acc)
    return {"z": acc, "h": gelu(gate) * up}


kernel = gemm_geglu
