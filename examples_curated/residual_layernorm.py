"""Residual addition and the first half of LayerNorm behind the out-projection.

Computes: h = y @ w_o + residual, q = h·diag(gamma), rstd = (var_j h + eps)^(-1/2), shift = rstd·mean_j h. LayerNorm
    and the linear layer after it are then diag(rstd)·(q @ W) - shift·(gammaᵀ W) + (betaᵀ W + bias): the mean
    becomes a rank-one term, with two row vectors that are computed once per weight.
Shapes: y (M, K), w_o (K, N), residual (M, N), gamma (N,) -> h (M, N), q (M, N), rstd (M,), shift (M,) fp32.
Fusion: as residual_rms: product, sum and squares stay in registers, at least 2·M·N elements saved.
Numerics: mean and variance are combined from tile partials by the pairwise rule, without the cancellation of E[h²]
    - E[h]². Where a row's mean is large beside its deviation, q @ W and the rank-one term nearly cancel: keep the
    stream centred, or normalise in a second pass.
Constraints: none; the moments are over N however N divides into tiles.
Lesson: some statistics carry coupled state. `row_moments` gives mean and biased variance together, both finished,
    and arithmetic between finished vectors of one axis is free.
"""

import coda
from coda.primitives import RowVector, Tile, row_moments, rsqrt

RUNG = 9
IDEA = "coupled running state: mean and variance together, and arithmetic between finished vectors"


@coda.epilogue
def residual_layernorm(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-5,
):
    """Residual stream, gained stream, reciprocal standard deviation and scaled mean of each row."""
    h = acc + residual
    mean, variance = row_moments(h)
    rstd = rsqrt(variance + eps)
    return {"h": h, "q": h * gamma, "rstd": rstd, "shift": rstd * mean}


kernel = residual_layernorm
