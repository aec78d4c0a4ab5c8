"""Backward of the tanh GELU behind the data gradient's GEMM, with the recomputed activation and the bias gradient."""

import math

import coda
from coda.primitives import Tile, abs, col_sum, exp, minimum, where

CUBIC = 0.044715
TWICE_ROOT = 2.0 * math.sqrt(2.0 / math.pi)
SATURATED = 50.0


@coda.epilogue
def gelu_tanh_backward(
    acc,  # (M, N)
    z: Tile,  # (M, N)
):
    """dZ, recomputed activation and bias gradient from D = dY @ W2^T and the saved pre-activation."""
    size = minimum(abs(z), SATURATED)
    cubic = CUBIC * (size * size)
    e = exp(-TWICE_ROOT * size * (1.0 + cubic))
    r = 1.0 / (1.0 + e)
    er = e * r
    gate = where(z >= 0.0, r, er)
    slope = TWICE_ROOT * (1.0 + 3.0 * cubic)
    dz = acc * (gate + z * (er * r) * slope)
    return {"dz": dz, "h": z * gate, "dbias": col_sum(dz)}


kernel = gelu_tanh_backward
