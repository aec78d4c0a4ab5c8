"""Residual addition and the first half of RMSNorm behind the out-projection.

Computes: h = y @ w_o + residual, q = h·diag(gamma), rstd = (mean_j h² + eps)^(-1/2). RMSNorm is diag(rstd)·q. A
    row's mean is known only when all its tiles are done, so the row scale is returned instead of applied: the next
    GEMM scales its accumulator by it (see rms_scale).
Shapes: y (M, K), w_o (K, N), residual (M, N), gamma (N,) -> h (M, N), q (M, N), rstd (M,) fp32.
Fusion: product, sum and squares stay in registers: at least 2·M·N elements saved. A tile contributes one number per
    row; the partials are 4·M·N/tile bytes.
Numerics: the statistic is of the unrounded fp32 h; h and q are each rounded once. gamma is applied here and not
    folded into the next weight, so it stays trainable.
Constraints: none; the mean is over N however N divides into tiles.
Lesson: a reduction gives a *finished* vector. Arithmetic of it with scalars and other vectors of its axis is
    allowed and runs once per row; mixing it with a tile value is an error, because the tile was stored before the
    row was complete.
"""

import coda
from coda.primitives import RowVector, Tile, row_mean, rsqrt

RUNG = 7
IDEA = "a row reduction is finished later: return the statistic and let the next GEMM apply it"


@coda.epilogue
def residual_rms(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-6,
):
    """Residual stream, gained stream and reciprocal root mean square of each row."""
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


kernel = residual_rms
