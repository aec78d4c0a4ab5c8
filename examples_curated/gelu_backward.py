"""GELU backward behind the data gradient of the second linear layer, with the bias gradient of the first.

Computes: dz = (dy @ w2_t)·(Φ(z) + z·φ(z)) with Φ(z) = ½(1 + erf(z/√2)) and φ(z) = exp(-z²/2)/√(2π), h = z·Φ(z)
    again for the weight gradient, and dbias = Σ_i dz. The last `padding` rows hold no tokens and count as zero.
Shapes: dy (M, K), w2_t (K, N), z (M, N) -> dz (M, N), h (M, N), dbias (N,) fp32.
Fusion: the gradient of h stays in registers (2·M·N elements); h is recomputed and was never kept; the bias gradient
    costs no pass of its own.
Numerics: the exact GELU, not its tanh form. dz is rounded once; dbias sums the unrounded values.
Constraints: none.
Lesson: a mask from `row_index()` and `rows()` comes before the reduction, so that what is masked adds nothing.
"""

import math

import coda
from coda.primitives import Tile, col_sum, erf, exp, row_index, rows, where

RUNG = 22
IDEA = "rows masked by position before a column reduction; an exact derivative from erf and exp"
INV_SQRT_2 = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


@coda.epilogue
def gelu_backward(
    acc,  # (M, N)
    z: Tile,  # (M, N)
    *,
    padding: int = 0,
):
    """Gradient of the pre-activation, recomputed activation, bias gradient."""
    phi = 0.5 * (1 + erf(z * INV_SQRT_2))
    slope = phi + z * exp(-0.5 * z * z) * INV_SQRT_2PI
    dz = where(row_index() < rows() - padding, acc * slope, 0.0)
    return {"dz": dz, "h": z * phi, "dbias": col_sum(dz)}


kernel = gelu_backward
