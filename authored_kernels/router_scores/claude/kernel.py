"""Router scores of a mixture of experts in fp32, with the maximum and the log-sum-exp of each row.

Computes: scores = x @ w + bias, row_max[i] = max_j scores[i, j], lse[i] = log Σ_j exp(scores[i, j]).
Shapes: x (M, K), w (K, N) with N the number of experts, bias (N,) fp32 -> scores (M, N) fp32, row_max (M,) fp32,
    lse (M,) fp32.
Fusion: the scores are written once and not read back for either statistic: 2·M·N elements saved.
Numerics: scores are stored in fp32, and both statistics are of the same unrounded fp32 values; a running maximum keeps
    every exponential at or below 1.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, row_logsumexp, row_max, store


@coda.epilogue
def router_scores(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
):
    """Biased router scores, their row maximum and log-sum-exp."""
    scores = acc + bias
    return {
        "scores": store(scores, dtype="float32"),
        "row_max": row_max(scores),
        "lse": row_logsumexp(scores),
    }


kernel = router_scores
