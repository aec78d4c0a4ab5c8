"""Residual, final RMSNorm and language-model head with the loss of each token: two GEMMs, no logits stored.

Computes: h = y @ w_2 + residual, n = RMSNorm(h)·gamma, logits = n @ w_head, lse = log Σ_j exp(logits[i, j]), loss =
    lse - logits[i, target[i]], 0 where the target is outside the vocabulary. The norm is diag(rstd)·h·diag(gamma):
    gamma is applied in the first epilogue; rstd commutes with the second GEMM and scales its accumulator.
Shapes: y (M, K), w_2 (K, N), residual (M, N), gamma (N,), w_head (N, V), target (M,) int -> loss (M,), lse (M,) fp32.
Fusion: neither h, nor the normalised matrix, nor the logits exist in memory; only h·diag(gamma) does.
Numerics: the statistic is of the unrounded fp32 h; h·gamma is rounded once. The log-sum-exp keeps a running maximum,
    and it and the target's logit are of the same unrounded fp32 logits.
Constraints: none on the sizes. h·gamma has the magnitude of the stream: mind the range in fp16.
"""

import coda
from coda.primitives import (
    ColVector,
    RowVector,
    Tile,
    columns,
    row_logsumexp,
    row_mean,
    rsqrt,
    select_column,
    where,
)


@coda.epilogue
def residual_rms(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-6,
):
    """Gained stream and reciprocal root mean square of each row."""
    h = acc + residual
    return {"q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


@coda.epilogue
def head_loss(
    acc,  # (M, V)
    rstd: ColVector,  # (M,)
    target: ColVector,  # (M,), int
):
    """Loss and log-sum-exp of each row of the scaled logits."""
    logits = acc * rstd
    lse, logit = row_logsumexp(logits), select_column(logits, target)
    counts = (target >= 0) & (target < columns())
    return {"loss": where(counts, lse - logit, 0.0), "lse": lse}


@coda.plan
def lm_head_loss(
    y,  # (M, K)
    w_2,  # (K, N)
    residual,  # (M, N)
    gamma,  # (N,)
    w_head,  # (N, V)
    target,  # (M,), int
    *,
    eps: float = 1e-6,
):
    """Loss and log-sum-exp of each token behind the final norm and the language-model head."""
    r = residual_rms(y, w_2, residual=residual, gamma=gamma, eps=eps)
    s = head_loss(r.q, w_head, rstd=r.rstd, target=target)
    return {"loss": s.loss, "lse": s.lse}


kernel = lm_head_loss
