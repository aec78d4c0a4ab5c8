"""Class 2, vector load and store: one number per column, per row, or for all.

A vector is read once per tile and broadcast in registers; writing one is a store of its kind. The annotations below
are what an author writes behind a parameter:

    gamma: RowVector            (N,)     one number per column          RowVector(width=2): (2N,)
    freq:  RowVector(period=64) (64,)    repeated along the columns
    rstd:  ColVector            (M,)     one number per row
    scale: Scalar               ()       a number, or a 0-d device tensor that is read on the device
    eps: float = 1e-6           ()       the same, with a default

Whether a vector holds floats or integers is decided by the tensor bound to it; `dtype="int"` insists.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coda.errors import BadArgument
from coda.primitives.types import Attrs, DType, Kind, Type, checked_width
from coda.primitives.value import Op, register

__all__ = ["ColVector", "RowVector", "Scalar"]


def _checked_dtype(dtype: str | None, what: str) -> DType | None:
    if dtype not in (None, "int", "float"):
        raise BadArgument(f"{what}: dtype", got=repr(dtype), expected="'int', 'float' or None")
    return None if dtype is None else DType(dtype)


@dataclass(frozen=True)
class OperandSpec:
    """What a parameter is: kind, width, period of a repeated row, and the dtype where the author insists on one."""

    kind: Kind
    width: Fraction = Fraction(1)
    period: int = 0
    dtype: DType | None = None


def RowVector(width: float | Fraction = 1, *, period: int = 0, dtype: str | None = None) -> OperandSpec:  # noqa: N802
    """A vector of `width·N` numbers, one per column; with `period=p`, of p numbers repeated along the columns."""
    if isinstance(period, bool) or not isinstance(period, int) or period < 0:
        raise BadArgument("RowVector: period", got=repr(period), expected="a positive integer")
    return OperandSpec(Kind.ROW, checked_width(width, "RowVector"), period, _checked_dtype(dtype, "RowVector"))


def ColVector(*, dtype: str | None = None) -> OperandSpec:  # noqa: N802
    """A vector of M numbers, one per row."""
    return OperandSpec(Kind.COL, dtype=_checked_dtype(dtype, "ColVector"))


def Scalar(*, dtype: str | None = None) -> OperandSpec:  # noqa: N802
    """One number: a Python number, or a 0-d tensor on the device."""
    return OperandSpec(Kind.SCALAR, dtype=_checked_dtype(dtype, "Scalar"))


def _operand_rule(types: object, attrs: Attrs) -> Type:
    return Type(Kind(str(attrs["kind"])), Fraction(str(attrs["width"])), DType(str(attrs["dtype"])))


def _never(*args: object, **attrs: object) -> object:
    raise AssertionError("operands are bound by the evaluator")


register(Op("operand", 2, _operand_rule, _never, "{name}", flops=0))
