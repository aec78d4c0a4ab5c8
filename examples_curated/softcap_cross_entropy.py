"""Loss of a soft-capped language-model head with a padded vocabulary; the logits are never stored.

Computes: x = cap·tanh((h @ w) / cap), lse = log Σ_j exp(x[i, j]) over the columns that are real, and per row loss =
    lse - x[i, target] + z_weight·lse² (0 where the target is outside the vocabulary) and whether the target's logit
    is the largest one. Columns of padding become -inf, the identity of both the log-sum-exp and the maximum.
Shapes: h (M, K), w (K, N) with N - padding words, target (M,) int -> loss (M,), lse (M,), hit (M,) fp32.
Fusion: no tile is stored: the whole (M, N) matrix exists only in registers, a tile at a time.
Numerics: loss and hit are computed from finished fp32 statistics by the small kernel that combines the partials,
    once per row. A tie counts as a hit.
Constraints: 0 <= padding < N. For training, keep the logits or recompute them.
Lesson: `where` over `column_index()` masks columns; conditions combine with & and |, never with `and`. Finished
    vectors mix with loaded vectors of their axis (target), so a loss needs no further step. An int keyword is a
    constant of the program.
"""

import math

import coda
from coda.primitives import (
    ColVector,
    column_index,
    columns,
    row_logsumexp,
    row_max,
    select_column,
    tanh,
    where,
)

RUNG = 13
IDEA = "masks from column numbers, arithmetic in the finisher, and a kernel that stores no tile"


@coda.epilogue
def softcap_cross_entropy(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    *,
    cap: float = 30.0,
    z_weight: float = 1e-4,
    padding: int = 0,
):
    """Loss, log-sum-exp and top-1 hit of each row."""
    words = columns() - padding
    x = where(column_index() < words, cap * tanh(acc / cap), -math.inf)
    lse, logit, best = row_logsumexp(x), select_column(x, target), row_max(x)
    counts = (target >= 0) & (target < words)
    return {
        "loss": where(counts, lse - logit + z_weight * lse * lse, 0.0),
        "lse": lse,
        "hit": where(counts & (logit >= best), 1.0, 0.0),
    }


kernel = softcap_cross_entropy
