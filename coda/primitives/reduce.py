"""Class 4, tile reductions: what a tile adds up before anyone else needs it.

    row_*      (M, columns) -> (M,)               finished: one number per row, complete only after the whole row
    col_*      (M, columns) -> (columns,)         finished: one number per column
    segment_*  (M, columns) -> (M, columns/size)  tile-local: groups of `size` neighbouring columns inside one tile

A tile contributes a partial; one small generated kernel combines the partials in a fixed order and computes whatever
arithmetic follows on the finished vectors (`rsqrt(row_mean(h * h) + eps)`). Identity elements: 0 for sum and absmax,
-inf for max; a mean divides by the value's own columns (or by M) and is NaN over nothing. `*_max` and `*_absmax` ignore
NaN; sums and means pass it on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coda.errors import BadArgument, KindMismatch
from coda.primitives.types import Attrs, DType, Kind, Type, require
from coda.primitives.value import Op, Operand, Rule, Value, apply, register

__all__ = [f"{axis}_{fold}" for axis in ("col", "row", "segment") for fold in ("absmax", "max", "mean", "sum")]

FOLDS = ("sum", "mean", "max", "absmax")


def require_tile(name: str, types: Sequence[Type]) -> Type:
    """The one argument, a float tile of the running tile, or the error that says so."""
    t = types[0]
    require(name, [t], (DType.FLOAT,))
    if t.kind is not Kind.TILE or t.finished:
        raise KindMismatch(f"{name} reduces a tile", got=str(t), hint="reduce the tile before it becomes a vector")
    return t


def _axis_rule(name: str, kind: Kind) -> Rule:
    def rule(types: Sequence[Type], attrs: Attrs) -> Type:
        t = require_tile(name, types)
        return Type(kind, t.width if kind is Kind.ROW else Type(kind).width, finished=True)

    return rule


def segment_size(name: str, attrs: Attrs) -> int:
    """The size of a segment, or `BadArgument`."""
    size = attrs["size"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadArgument(f"{name}: size", got=repr(size), expected="a positive integer")
    return size


def _segment_rule(name: str) -> Rule:
    def rule(types: Sequence[Type], attrs: Attrs) -> Type:
        return replace(require_tile(name, types), kind=Kind.SEGMENT, size=segment_size(name, attrs))

    return rule


def fold(torch: Any, x: Any, how: str, dim: int) -> Any:
    """Reduce one axis, kept with length 1; defined over an empty axis too."""
    if how == "sum":
        return x.sum(dim, keepdim=True)
    if how == "mean":
        return x.mean(dim, keepdim=True)
    if how == "absmax":
        x, empty = torch.where(x.isnan(), 0.0, x.abs()), 0.0
    else:
        x, empty = torch.where(x.isnan(), float("-inf"), x), float("-inf")
    if x.shape[dim] == 0:
        shape = list(x.shape)
        shape[dim] = 1
        return x.new_full(shape, empty)
    return x.amax(dim, keepdim=True)


def _reference(axis: str, how: str) -> Callable[..., Any]:
    if axis == "segment":
        return lambda e, x, size: fold(e.torch, x.reshape(x.shape[0], x.shape[1] // size, size), how, 2)[:, :, 0]
    dim = 1 if axis == "row" else 0
    return lambda e, x: fold(e.torch, x, how, dim)


def _formula(axis: str, how: str) -> str:
    over = {"row": "j", "col": "i", "segment": "j in group of {size}"}[axis]
    symbol = {"sum": "Σ", "mean": "mean", "max": "max", "absmax": "max |·|"}[how]
    return f"{symbol}_{{{{{over}}}}} {{0}}"


for _axis in ("row", "col", "segment"):
    for _how in FOLDS:
        _name = f"{_axis}_{_how}"
        _rule = (
            _segment_rule(_name) if _axis == "segment" else _axis_rule(_name, Kind.COL if _axis == "row" else Kind.ROW)
        )
        register(Op(_name, 4, _rule, _reference(_axis, _how), _formula(_axis, _how), takes=DType.FLOAT))


def row_sum(v: Operand) -> Value:
    """Sum over the columns: (M,), finished."""
    return apply("row_sum", v)


def row_mean(v: Operand) -> Value:
    """Mean over the value's own columns: (M,), finished."""
    return apply("row_mean", v)


def row_max(v: Operand) -> Value:
    """Maximum over the columns, NaN ignored: (M,), finished."""
    return apply("row_max", v)


def row_absmax(v: Operand) -> Value:
    """Largest magnitude over the columns, NaN ignored: (M,), finished."""
    return apply("row_absmax", v)


def col_sum(v: Operand) -> Value:
    """Sum over the rows: (columns,), finished."""
    return apply("col_sum", v)


def col_mean(v: Operand) -> Value:
    """Mean over the M rows: (columns,), finished."""
    return apply("col_mean", v)


def col_max(v: Operand) -> Value:
    """Maximum over the rows, NaN ignored: (columns,), finished."""
    return apply("col_max", v)


def col_absmax(v: Operand) -> Value:
    """Largest magnitude over the rows, NaN ignored: (columns,), finished."""
    return apply("col_absmax", v)


def segment_sum(v: Operand, size: int) -> Value:
    """Sum over each group of `size` neighbouring columns: a segment value of the running tile."""
    return apply("segment_sum", v, size=size)


def segment_mean(v: Operand, size: int) -> Value:
    """Mean over each group of `size` neighbouring columns: a segment value of the running tile."""
    return apply("segment_mean", v, size=size)


def segment_max(v: Operand, size: int) -> Value:
    """Maximum over each group of `size` neighbouring columns, NaN ignored: a segment value of the running tile."""
    return apply("segment_max", v, size=size)


def segment_absmax(v: Operand, size: int) -> Value:
    """Largest magnitude over each group of `size` neighbouring columns, NaN ignored: a segment value."""
    return apply("segment_absmax", v, size=size)
