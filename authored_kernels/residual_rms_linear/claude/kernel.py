"""Out-projection with residual, RMSNorm and the next linear layer: two GEMMs, the norm's row scale delayed past the second."""

import coda
from coda.primitives import ColVector, RowVector, Tile, row_mean, rsqrt


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


@coda.epilogue
def rms_scale(
    acc,  # (M, P)
    rstd: ColVector,  # (M,)
):
    """Rows of the second product scaled by the finished norm statistic."""
    return {"z": acc * rstd}


@coda.plan
def residual_rms_linear(
    y,  # (M, K)
    w_o,  # (K, N)
    residual,  # (M, N)
    gamma,  # (N,)
    w_1,  # (N, P)
    *,
    eps: float = 1e-6,
):
    """Residual stream, and the linear layer of its RMSNorm."""
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    return {"h": r.h, "z": rms_scale(r.q, w_1, rstd=r.rstd).z}


kernel = residual_rms_linear
