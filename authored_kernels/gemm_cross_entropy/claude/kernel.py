"""GEMM with cross-entropy statistics: logits, log-sum-exp of each row, and the logit of its target.

Computes: logits = x @ w, lse[i] = log Σ_j exp(logits[i, j]), target_logit[i] = logits[i, target[i]], or 0 where the
    target lies outside [0, N).
Shapes: x (M, K), w (K, N), target (M,) int -> logits (M, N), lse (M,) fp32, target_logit (M,) fp32.
Fusion: the logits are written once and not read back for either statistic.
Numerics: both statistics are of the unrounded fp32 accumulator; the log-sum-exp carries a running maximum, so it does
    not overflow. The logits are rounded once, at the store.
Constraints: none.
"""

import coda
from coda.primitives import ColVector, row_logsumexp, select_column


@coda.epilogue
def gemm_cross_entropy(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
):
    """Logits, and log-sum-exp and target logit of each row."""
    return {
        "logits": acc,
        "lse": row_logsumexp(acc),
        "target_logit": select_column(acc, target),
    }


kernel = gemm_cross_entropy
