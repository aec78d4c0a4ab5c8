"""SiLU backward behind the data-gradient GEMM, the activation recomputed, with the bias gradient.

Computes: with D = dy @ w2_t, σ = sigmoid(z), h = z·σ: dz = D·(σ + h·(1 - σ)), dbias[j] = Σ_i dz[i, j]. SiLU is
    elementwise, so its Jacobian is diagonal and its backward is an epilogue of the GEMM that makes D.
Shapes: dy (M, K), w2_t (K, N), z (M, N) -> dz (M, N), h (M, N), dbias (N,) fp32.
Fusion: D stays in registers, and neither h nor dz is read back: h is recomputed, dbias rides along.
Numerics: in fp32 from the saved z; dz and h are each rounded once, dbias is a raw sum of the unrounded dz.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import Tile, col_sum, sigmoid


@coda.epilogue
def silu_backward(
    acc,  # (M, N)
    z: Tile,  # (M, N)
):
    """dZ, recomputed activation and bias gradient from dH = dY @ W2^T and the saved pre-activation Z."""
    s = sigmoid(z)
    h = z * s
    dz = acc * (s + h * (1 - s))
    return {"dz": dz, "h": h, "dbias": col_sum(dz)}


kernel = silu_backward
