"""Class 5, stateful transforms: running statistics whose parts depend on each other.

    row_logsumexp   state (m, q): m ← max(m, x), q ← q·exp(m_old - m) + exp(x - m);  m + log q
    row_moments     state (n, μ, S): Chan's pairwise update of count, mean and squared deviations;  μ, S/n
    select_column   the tile that owns the wanted column writes it

All three give finished (M,) vectors. Combining partials follows Chan, Golub and LeVeque (1979) for the moments and the
online softmax of Milakov and Gimelshein (arXiv 1805.02867) for the log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coda.errors import KindMismatch
from coda.primitives.reduce import fold, require_tile
from coda.primitives.types import Attrs, DType, Kind, Type, require
from coda.primitives.value import Op, Operand, Value, apply, register

__all__ = ["row_logsumexp", "row_moments", "select_column"]

_FINISHED_COL = Type(Kind.COL, finished=True)


def _logsumexp_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    require_tile("row_logsumexp", types)
    return _FINISHED_COL


def _logsumexp(e: Any, x: Any) -> Any:
    if x.shape[1] == 0:
        return x.new_full((x.shape[0], 1), float("-inf"))
    return e.torch.logsumexp(x, 1, keepdim=True)


def _moments_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    require_tile("row_moments", types)
    return _FINISHED_COL


def _moments(e: Any, x: Any, part: str) -> Any:
    mean = fold(e.torch, x, "mean", 1)
    return mean if part == "mean" else fold(e.torch, (x - mean).square(), "mean", 1)


def _select_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    require_tile("select_column", types)
    index = types[1]
    require("select_column index", [index], (DType.INT,))
    if index.kind is not Kind.COL or index.finished:
        raise KindMismatch("select_column takes one column number per row", got=str(index), expected="an int ColVector")
    return _FINISHED_COL


def _select(e: Any, x: Any, index: Any) -> Any:
    inside = (index >= 0) & (index < x.shape[1])
    if x.shape[1] == 0:
        return x.new_zeros((x.shape[0], 1))
    picked = x.gather(1, e.torch.where(inside, index, 0))
    return e.torch.where(inside, picked, 0.0)


register(Op("row_logsumexp", 5, _logsumexp_rule, _logsumexp, "log Σ_{{j}} exp({0})", flops=10, takes=DType.FLOAT))
register(Op("row_moments", 5, _moments_rule, _moments, "{part}_{{j}} {0}", flops=4, takes=DType.FLOAT))
register(Op("select_column", 5, _select_rule, _select, "{0}[i, {1}]", exact=(1,)))


def row_logsumexp(v: Operand) -> Value:
    """`log Σ_j exp(v[i, j])` over the columns, without overflow: (M,), finished. -inf over nothing or over all -inf."""
    return apply("row_logsumexp", v)


def row_moments(v: Operand) -> tuple[Value, Value]:
    """Mean and biased variance over the columns, computed stably: two (M,) vectors, finished."""
    return apply("row_moments", v, part="mean"), apply("row_moments", v, part="variance")


def select_column(v: Operand, index: Operand) -> Value:
    """`v[i, index[i]]`: (M,), finished. An index outside [0, columns) gives 0."""
    return apply("select_column", v, index)
