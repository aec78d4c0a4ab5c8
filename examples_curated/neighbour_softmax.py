"""Soft neighbours: the softmax of all pairwise products, each row without itself, computed twice instead of stored.

Computes: s = scale·x @ xᵀ, lse[i] = log Σ_{j≠i} exp(s[i, j]), share[i, j] = exp(s[i, j] - lse[i]) for j ≠ i and 0 on
    the diagonal.
Shapes: x (M, K) -> share (M, M), lse (M,) fp32.
Fusion: the first GEMM stores M numbers and no matrix; the second repeats the product with the finished lse as a plain
    column vector. M·M elements are written once and never read; a pass over stored products would round them first.
Numerics: -inf is the identity of a log-sum-exp: what is masked adds nothing. exp(s - lse) is at most 1, since lse is of
    the very numbers that are computed again.
Constraints: M > 1 for a finite lse.
Lesson: what a whole row must be known for waits for the next program; there a statistic is an ordinary ColVector. Where
    memory is dearer than arithmetic, run the GEMM again. A row number compared with a column number is a condition of
    every element.
"""

import math

import coda
from coda.primitives import ColVector, column_index, exp, row_index, row_logsumexp, where

RUNG = 27
IDEA = "the same GEMM twice in a plan: first a row's normaliser, then what needs it; one element per row chosen"


@coda.epilogue
def normaliser(
    acc,  # (M, M)
    *,
    scale: float = 1.0,
):
    """Log-sum-exp of each row without its diagonal element."""
    return {"lse": row_logsumexp(where(column_index() == row_index(), -math.inf, acc * scale))}


@coda.epilogue
def shares(
    acc,  # (M, M)
    lse: ColVector,  # (M,)
    *,
    scale: float = 1.0,
):
    """Softmax of each row without its diagonal element."""
    return {"share": where(column_index() == row_index(), 0.0, exp(acc * scale - lse))}


@coda.plan
def neighbour_softmax(
    x,  # (M, K)
    *,
    scale: float = 1.0,
):
    """Soft neighbours of each row, and their normaliser."""
    r = normaliser(x, x.mT, scale=scale)
    return {"share": shares(x, x.mT, lse=r.lse, scale=scale).share, "lse": r.lse}


kernel = neighbour_softmax
