"""Cross-entropy with z-loss behind a language-model head; the logits are never stored.

Computes: lse[i] = log Σ_j exp(logits[i, j]) of logits = x @ w, and loss[i] = lse - logits[i, target[i]] + z_weight·lse²,
    0 for rows whose target lies outside [0, N).
Shapes: x (M, K), w (K, N), target (M,) int -> loss (M,), lse (M,) fp32.
"""

import coda
from coda.primitives import ColVector, columns, row_logsumexp, select_column, where


@coda.epilogue
def cross_entropy_z_loss(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    *,
    z_weight: float = 0.0001,
):
    """Loss of each row with its z term, zero for ignored rows, and the log-sum-exp of every row."""
    lse = row_logsumexp(acc)
    counts = (target >= 0) & (target < columns())
    loss = (lse - select_column(acc, target)) + lse * (z_weight * lse)
    return {"loss": where(counts, loss, 0.0), "lse": lse}


kernel = cross_entropy_z_loss
