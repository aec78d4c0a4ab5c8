"""Language-model head: logits, their log-sum-exp and the target's logit.

Computes: logits = x @ w, lse[i] = log Σ_j exp(logits[i, j]), target_logit[i] = logits[i, target[i]]. The loss of a
    row is lse - target_logit, its gradient exp(logits - lse) minus one at the target.
Shapes: x (M, K), w (K, N) with N the vocabulary, target (M,) int -> logits (M, N), lse (M,) fp32, target_logit (M,)
    fp32.
Fusion: the logits are written once and not read back for the statistics: M·N elements, 1 GiB at M = 16384 and N =
    32768 in bf16. The partials are one number per row and tile.
Numerics: a running maximum keeps every exponential at or below 1. Both statistics are of the unrounded fp32 logits;
    a target logit in bf16 beside an fp32 lse would dominate the error of the loss.
Constraints: none. A target outside [0, N) (-100, say) gives target_logit 0; what it means for the loss is the
    caller's.
Lesson: a stateful transform sees the row tile by tile and keeps what later tiles need. An integer operand is a
    ColVector like any other; its dtype comes from the tensor bound to it.
"""

import coda
from coda.primitives import ColVector, row_logsumexp, select_column

RUNG = 11
IDEA = "stateful transforms: an online log-sum-exp, and one column per row by an integer vector"


@coda.epilogue
def gemm_cross_entropy(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
):
    """Logits and what cross-entropy needs of each row."""
    return {"logits": acc, "lse": row_logsumexp(acc), "target_logit": select_column(acc, target)}


kernel = gemm_cross_entropy
