"""Tanh GeGLU behind the projection: z = x @ w, h[i, k] = gelu_tanh(z[i, 2k]) * z[i, 2k+1]."""

import coda
from coda.primitives import gelu, unpair


@coda.epilogue
def gemm_geglu_tanh(
    acc,  # (M, N)
):
    """Pre-activation, and the tanh GELU of each gate times its up."""
    gate, up = unpair(acc)
    return {"z": acc, "h": gelu(gate, approximate="tanh") * up}


kernel = gemm_geglu_tanh
