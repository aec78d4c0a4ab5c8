"""Cross-entropy of a language-model head: the loss of each row and the gradient of its logits, one GEMM and one pass.

Computes: logits = x @ w, lse = log Σ_j exp(logits), loss = lse - logits[target], dlogits = dloss·(exp(logits - lse) -
    onehot(target)); rows whose target lies outside [0, N) give 0 for both. At the target exp(logits - lse) - 1 is
    expm1(-loss), a number per row.
Shapes: x (M, K), w (K, N), target (M,) int, dloss (M,) fp32 -> loss (M,) fp32, dlogits (M, N).
Fusion: log-sum-exp, target logit and loss cost no pass; the gradient reads the logits once and no one-hot matrix.
Numerics: a logit passes through memory as logit/256 = coarse + fine, both in the dtype of x: exact in fp32, about 2^-18
    relative in bf16. The factor keeps the coarse part in the range of fp16. lse, loss and the slope at the target are of the
    unrounded logits; the exponent is at most 0, and 0 where a logit is lse to the stored precision.
"""

import coda
from coda.primitives import (
    ColVector,
    Tile,
    cast,
    column_index,
    columns,
    exp,
    expm1,
    minimum,
    row_logsumexp,
    select_column,
    where,
)

DOWN = 0.00390625
UP = 256.0


@coda.epilogue
def head(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
):
    """Logits in two parts, log-sum-exp and loss of each row."""
    lse = row_logsumexp(acc)
    counts = (target >= 0) & (target < columns())
    scaled = acc * DOWN
    coarse = cast(scaled, "bfloat16")
    return {
        "coarse": coarse,
        "fine": scaled - coarse,
        "lse": lse,
        "loss": where(counts, lse - select_column(acc, target), 0.0),
    }


@coda.pointwise
def gradient(
    coarse: Tile,  # (M, N), its dtype is that of dlogits
    fine: Tile,  # (M, N)
    lse: ColVector,  # (M,)
    loss: ColVector,  # (M,)
    target: ColVector,  # (M,), int
    dloss: ColVector,  # (M,)
):
    """Gradient of the logits from the finished log-sum-exp and loss."""
    counts = (target >= 0) & (target < columns())
    scaled = lse * DOWN
    top = cast(scaled, "bfloat16")
    rest = scaled - top
    v = coarse + fine
    saturated = (v == top + cast(rest, "bfloat16")) | (v == top + cast(rest, "float16"))
    d = where(saturated, 0.0, minimum(v * UP - lse, 0.0))
    slope = where(column_index() == target, expm1(-loss), exp(d))
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
    g = gradient(coarse=r.coarse, fine=r.fine, lse=r.lse, loss=r.loss, target=target, dloss=dloss)
    return {"loss": r.loss, "dlogits": g.dlogits}


kernel = cross_entropy
