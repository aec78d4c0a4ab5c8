"""Cross-entropy with label smoothing behind a language-model head; the logits are never stored.

Computes: logits = x @ w, lse[i] = log Σ_j exp(logits[i, j]), loss[i] = (1 - smoothing)·(lse[i] - logits[i, target[i]])
    + smoothing·(lse[i] - mean_j logits[i, j]) where 0 <= target[i] < N, else 0.
Shapes: x (M, K), w (K, N) with N the vocabulary, target (M,) int -> loss (M,), lse (M,) fp32.
Fusion: M·N logits exist only in registers; three statistics of a row share one pass over them, and the loss is
    computed once per row from the finished vectors.
Numerics: everything is of the unrounded fp32 logits. The weights add up to 1, so lse is split between the two terms and
    each difference is taken before it is scaled. Ignored rows are chosen, not multiplied by 0.
Constraints: none.
"""

import coda
from coda.primitives import ColVector, columns, row_logsumexp, row_mean, select_column, where


@coda.epilogue
def cross_entropy_smoothing(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    *,
    smoothing: float = 0.1,
):
    """Label-smoothed loss of each row, 0 where the target is ignored, and the log-sum-exp of each row."""
    lse = row_logsumexp(acc)
    hit = lse - select_column(acc, target)
    spread = lse - row_mean(acc)
    counts = (target >= 0) & (target < columns())
    loss = (1 - smoothing) * hit + smoothing * spread
    return {"loss": where(counts, loss, 0.0), "lse": lse}


kernel = cross_entropy_smoothing
