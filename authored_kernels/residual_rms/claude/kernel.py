"""Projection with residual, the gained stream, and the RMS statistic of each row for a later delayed scale."""

import coda
from coda.primitives import RowVector, Tile, row_mean, rsqrt


@coda.epilogue
def residual_rms(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-6,
):
    """Residual sum, the sum times its gain, and the reciprocal root mean square of each row."""
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


kernel = residual_rms
