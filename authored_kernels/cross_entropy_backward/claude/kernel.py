"""Cross-entropy backward behind the recomputed logits: dlogits and <logits, dlogits> of each row.

Computes: with logits = x @ w: dlogits = dloss·(exp(logits - lse) - [column = target]) in rows whose target lies in
    [0, N) and 0 elsewhere; zdz[i] = Σ_j logits[i, j]·dlogits[i, j].
Shapes: x (M, K), w (K, N), target (M,) int, lse (M,), dloss (M,) fp32 -> dlogits (M, N), zdz (M,) fp32.
Fusion: the logits stay in registers and are never stored; dlogits is written once and not read back for zdz.
Numerics: in fp32 from the unrounded accumulator, dlogits rounded once at the store, zdz of the unrounded values. lse is
    subtracted before the exponential. Ignored rows are chosen, not multiplied by 0.
Constraints: none.
"""

import coda
from coda.primitives import ColVector, column_index, columns, exp, row_sum, where


@coda.epilogue
def cross_entropy_backward(
    acc,  # (M, N)
    target: ColVector,  # (M,), int
    lse: ColVector,  # (M,)
    dloss: ColVector,  # (M,)
):
    """Gradient of the logits, and its inner product with them in each row."""
    counts = (target >= 0) & (target < columns())
    hit = where(column_index() == target, 1.0, 0.0)
    dlogits = where(counts, dloss * (exp(acc - lse) - hit), 0.0)
    return {"dlogits": dlogits, "zdz": row_sum(acc * dlogits)}


kernel = cross_entropy_backward
