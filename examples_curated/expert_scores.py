"""Router scores of a mixture of experts, with what balances the load.

Computes: score = √softplus(x @ w_router + bias), share = score / max(Σ over a group of experts, 1e-6), the best score
    of every group, the busiest score of every expert over the batch, and the entropy -Σ_j share·log(share) of a row.
Shapes: x (M, K), w_router (K, N) with N a multiple of the group -> share (M, N), best (M, N/group), busiest (N,) fp32,
    entropy (M,) fp32.
Fusion: scores never leave registers; group sums and maxima, the column maximum and the row sum take nothing from
    memory. Unfused, the (M, N) scores are written once and read four times.
Numerics: softplus without overflow; log of at least 1e-20, so a share of zero adds zero and not NaN. Maxima pass over
    NaN.
Constraints: N a multiple of the group.
Lesson: `maximum(v, tiny)` is the guard for a division or a log; groups of columns are finished inside the tile, whole
    rows and columns are not.
"""

import coda
from coda.primitives import RowVector, col_max, log, maximum, row_sum, segment_max, segment_sum, softplus, sqrt

RUNG = 18
IDEA = "guards before log and division; group maxima stored beside a column maximum"


@coda.epilogue
def expert_scores(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    *,
    group: int = 8,
):
    """Shares of the experts, the best of each group, the busiest use of each expert, the entropy of each row."""
    score = sqrt(softplus(acc + bias))
    share = score / maximum(segment_sum(score, group), 1e-6)
    return {
        "share": share,
        "best": segment_max(score, group),
        "busiest": col_max(score),
        "entropy": -row_sum(share * log(maximum(share, 1e-20))),
    }


kernel = expert_scores
