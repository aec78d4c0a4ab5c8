"""Clipped policy objective behind a language-model head; the logits are never stored.

Computes: with logits = h @ w: logp = logits[i, token[i]] - log Σ_j exp(logits[i, j]), ratio = exp(logp - old), loss =
    -min(ratio·advantage, clip(ratio, 1 - span, 1 + span)·advantage). Rows whose token lies outside the vocabulary, of
    a prompt or of padding, give 0 for both.
Shapes: h (M, K), w (K, N) with N the vocabulary, token (M,) int, old (M,), advantage (M,) fp32 -> logp (M,), loss (M,)
    fp32.
Fusion: no tile is stored: M·N logits exist only in registers. Loss and ratio are computed once per row, by the kernel
    that combines the partials.
Numerics: logp is a difference of two fp32 numbers of the size of a logit; a ratio from logits in bf16 would be off by
    percents. Ignored rows are chosen, not multiplied by 0, which would keep a NaN.
Constraints: none.
Lesson: whatever is loaded per row (token, old, advantage) may join finished vectors of the rows: with arithmetic,
    every map function, and conditions in `where`.
"""

import coda
from coda.primitives import ColVector, columns, exp, maximum, minimum, row_logsumexp, select_column, where

RUNG = 14
IDEA = "finished vectors with loaded ones: a loss per row, zero where a condition on a loaded index fails"


@coda.epilogue
def policy_loss(
    acc,  # (M, N)
    token: ColVector,  # (M,), int
    old: ColVector,  # (M,)
    advantage: ColVector,  # (M,)
    *,
    span: float = 0.2,
):
    """Log-probability of each row's token and its clipped policy loss."""
    logp = select_column(acc, token) - row_logsumexp(acc)
    ratio = exp(logp - old)
    near = minimum(maximum(ratio, 1 - span), 1 + span)
    counts = (token >= 0) & (token < columns())
    loss = -minimum(ratio * advantage, near * advantage)
    return {"logp": where(counts, logp, 0.0), "loss": where(counts, loss, 0.0)}


kernel = policy_loss
