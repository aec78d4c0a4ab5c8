"""Cross-entropy loss and logits gradient: the head's GEMM twice, the logits never stored."""

import math

import coda
from coda.primitives import (
    ColVector,
    abs,
    column_index,
    columns,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    row_logsumexp,
    select_column,
    where,
)


@coda.epilogue
def statistics(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    dloss: ColVector,  # (M,)
):
    """Loss, the two parts of the log-sum-exp, and the gradient at the target, of each row."""
    others = row_logsumexp(where(column_index() == target, -math.inf, acc))
    logit = select_column(acc, target)
    counts = (target >= 0) & (target < columns())
    gap = others - logit
    rest = log1p(exp(-abs(gap)))
    loss = maximum(gap, 0.0) + rest
    return {
        "loss": where(counts, loss, 0.0),
        "peak": maximum(others, logit),
        "rest": rest,
        "hit": where(counts, dloss * expm1(-loss), 0.0),
    }


@coda.epilogue
def gradient(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    dloss: ColVector,  # (M,)
    peak: ColVector,  # (M,)
    rest: ColVector,  # (M,)
    hit: ColVector,  # (M,)
):
    """Gradient of the recomputed logits; 0 in rows whose target lies outside the vocabulary."""
    share = exp(minimum((acc - peak) - rest, 0.0))
    counts = (target >= 0) & (target < columns())
    return {"dlogits": where(counts, where(column_index() == target, hit, dloss * share), 0.0)}


@coda.plan
def cross_entropy_loss_and_gradient(
    x,  # (M, K)
    w,  # (K, N)
    target,  # (M,)
    dloss,  # (M,)
):
    """Loss of each row and the gradient of its logits."""
    r = statistics(x, w, target=target, dloss=dloss)
    g = gradient(x, w, target=target, dloss=dloss, peak=r.peak, rest=r.rest, hit=r.hit)
    return {"loss": r.loss, "dlogits": g.dlogits}


kernel = cross_entropy_loss_and_gradient
