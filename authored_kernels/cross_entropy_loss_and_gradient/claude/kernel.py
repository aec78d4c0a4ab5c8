"""Cross-entropy of a language-model head: the loss of each row and the gradient of its logits, one GEMM and one pass.

Computes: logits = x @ w, lse = log Σ_j exp(logits), loss = lse - logits[target], dlogits = dloss·(exp(logits - lse) -
    onehot(target)); rows whose target lies outside [0, N) give 0 for both.
Shapes: x (M, K), w (K, N), target (M,) int, dloss (M,) fp32 -> loss (M,) fp32, dlogits (M, N).
Fusion: log-sum-exp, target logit and loss cost no pass; the gradient reads the logits once.
Numerics: logits pass through memory in fp32, so exp(logits - lse) is at most 1 and belongs to the same numbers as lse.
    The mark of the target has the dtype of x and decides that of dlogits. At the target, exp(d) - 1 is expm1(d).
"""

import coda
from coda.primitives import (
    ColVector,
    Tile,
    column_index,
    columns,
    exp,
    expm1,
    row_logsumexp,
    select_column,
    store,
    where,
)


@coda.epilogue
def head(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
):
    """Logits, the mark of each row's target, log-sum-exp and loss."""
    lse = row_logsumexp(acc)
    counts = (target >= 0) & (target < columns())
    return {
        "mark": where(column_index() == target, 1.0, 0.0),
        "logits": store(acc, dtype="float32"),
        "lse": lse,
        "loss": where(counts, lse - select_column(acc, target), 0.0),
    }


@coda.pointwise
def gradient(
    mark: Tile,  # (M, N), 1 at the target
    logits: Tile,  # (M, N), fp32
    lse: ColVector,  # (M,)
    target: ColVector,  # (M,), int
    dloss: ColVector,  # (M,)
):
    """Gradient of the logits from the finished log-sum-exp."""
    counts = (target >= 0) & (target < columns())
    d = logits - lse
    slope = where(mark > 0.5, expm1(d), exp(d))
    return {"dlogits": where(counts, dloss * slope, 0.0)}


@coda.plan
def cross_entropy(
    x,  # (M, K)
    w,  # (K, N)
    target,  # (M,), int
    dloss,  # (M,)
):
    """Loss of each row and gradient of the logits."""
    r = head(x, w, target=target)
    g = gradient(mark=r.mark, logits=r.logits, lse=r.lse, target=target, dloss=dloss)
    return {"loss": r.loss, "dlogits": g.dlogits}


kernel = cross_entropy
