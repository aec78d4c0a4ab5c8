"""ReGLU behind its projection, with the pre-activation kept for the backward pass.

Computes: z = x @ w and h[i, k] = max(z[i, 2k], 0)·z[i, 2k+1]. Gate and up are interleaved, so the activation is local
    to a pair of neighbouring columns and fuses into the epilogue as a map.
Shapes: x (M, K), w (K, N) with N even -> z (M, N), h (M, N/2).
Fusion: z is written once and not read back for the activation: M·N elements saved.
Numerics: h is of the unrounded fp32 z; z and h are each rounded once, at the store.
Constraints: N even.
"""

import coda
from coda.primitives import relu, unpair


@coda.epilogue
def gemm_reglu(
    acc,  # (M, N)
):
    """Pre-activation and its ReGLU, gate in the even and up in the odd columns."""
    gate, up = unpair(acc)
    return {"z": acc, "h": relu(gate) * up}


kernel = gemm_reglu
