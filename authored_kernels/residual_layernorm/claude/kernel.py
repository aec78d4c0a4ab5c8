"""Residual addition and the first half of LayerNorm behind the out-projection.

Computes: h = y @ w_o + residual, q = h·diag(gamma), rstd = (variance + eps)^(-1/2) and shift = rstd·mean of each row.
Shapes: y (M, K), w_o (K, N), residual (M, N), gamma (N,) -> h (M, N), q (M, N), rstd (M,) fp32, shift (M,) fp32.
Fusion: product and sum stay in registers; the moments of a row ride along and are combined once per row.
Numerics: moments by a stable pairwise update of the unrounded fp32 h; h and q are each rounded once.
Constraints: none.
"""

import coda
from coda.primitives import RowVector, Tile, row_moments, rsqrt


@coda.epilogue
def residual_layernorm(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-5,
):
    """Residual stream, gained stream, and the reciprocal deviation and shift of each row."""
    h = acc + residual
    mean, variance = row_moments(h)
    rstd = rsqrt(variance + eps)
    return {"h": h, "q": h * gamma, "rstd": rstd, "shift": rstd * mean}


kernel = residual_layernorm
