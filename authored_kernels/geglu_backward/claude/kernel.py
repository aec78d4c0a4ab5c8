"""GeGLU backward behind the dgrad GEMM.

Computes: with D = dy @ w2_t and (g, u) = z[:, 2k], z[:, 2k+1]: dz[:, 2k] = D·u·(Φ(g) + g·φ(g)), dz[:, 2k+1] =
    D·g·Φ(g), h = g·Φ(g)·u and zdz = Σ_k (g·dz[:, 2k] + u·dz[:, 2k+1]), with the exact Φ(g) = ½(1 + erf(g/√2)) and
    φ(g) = exp(-g²/2)/√(2π).
Shapes: dy (M, K), w2_t (K, N), z (M, 2N) -> dz (M, 2N), h (M, N), zdz (M,) fp32.
Fusion: the gradient of h stays in registers (2·M·N elements); h is recomputed and was never kept; zdz costs no pass
    of its own.
Numerics: in fp32; dz and h are each rounded once; zdz sums products with the unrounded dz.
Constraints: none.
"""

import math

import coda
from coda.primitives import Tile, erf, exp, pair, row_sum, unpair

INV_SQRT_2 = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


@coda.epilogue
def geglu_backward(
    acc,  # (M, N)
    z: Tile(width=2),  # (M, 2N)
):
    """Gradient of the interleaved pre-activation, recomputed activation, and <z, dz> of each row."""
    g, u = unpair(z)
    phi = 0.5 * (1 + erf(g * INV_SQRT_2))
    slope = phi + g * (exp(-0.5 * g * g) * INV_SQRT_2PI)
    activated = g * phi
    dg = acc * u * slope
    du = acc * activated
    return {"dz": pair(dg, du), "h": activated * u, "zdz": row_sum(g * dg + u * du)}


kernel = geglu_backward
