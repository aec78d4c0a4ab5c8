"""GEMM with SwiGLU over interleaved gate and up columns; the pre-activation is kept for the backward pass.

Computes: z = x @ w, and with (g, u) = z[:, 2k], z[:, 2k+1]: h[:, k] = g·sigmoid(g)·u.
Shapes: x (M, K), w (K, N) with N even -> z (M, N), h (M, N/2).
Fusion: z is written once and not read back for the activation, M·N elements saved.
Numerics: h is of the unrounded fp32 z; z and h are each rounded once, at the store.
Constraints: N even.
"""

import coda
from coda.primitives import silu, unpair


@coda.epilogue
def gemm_swiglu(
    acc,  # (M, N)
):
    """Pre-activation and its SwiGLU, gate in the even columns and up in the odd ones."""
    gate, up = unpair(acc)
    return {"z": acc, "h": silu(gate) * up}


kernel = gemm_swiglu
