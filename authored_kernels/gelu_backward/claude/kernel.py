"""Exact GELU backward behind the data-gradient GEMM: dz, the recomputed activation h, and the bias gradient."""

import math

import coda
from coda.primitives import Tile, col_sum, erf, exp

INV_SQRT_2 = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


@coda.epilogue
def gelu_backward(
    acc,  # (M, N)
    z: Tile,  # (M, N)
):
    """Gradient before the exact GELU, its activation again, and the column sums of the gradient."""
    cdf = 0.5 * (1 + erf(z * INV_SQRT_2))
    pdf = exp(-0.5 * z * z) * INV_SQRT_2PI
    dz = acc * (cdf + z * pdf)
    return {"dz": dz, "h": z * cdf, "dbias": col_sum(dz)}


kernel = gelu_backward
