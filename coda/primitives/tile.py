"""Class 3, tile load and store: whole matrices, read and written subtile by subtile beside the accumulator.

    z: Tile             (M, N)          read while the accumulator's tile is in registers
    z: Tile(width=2)    (M, 2N)         adjacent pairs belong to one element of the accumulator

Extra M×N traffic is what an epilogue costs: everything else is nearly free. A result is rounded once, when it is
stored; `store` chooses the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coda.errors import BadOutputs
from coda.primitives.map import STORE_DTYPES, unknown_dtype
from coda.primitives.types import Attrs, Kind, Type, checked_width
from coda.primitives.value import Op, Value, author_line, register
from coda.primitives.vector import OperandSpec

__all__ = ["Tile", "store"]

INT_DTYPES = ("int32", "int64")
"""Dtypes that an int value can be stored in."""


def Tile(width: float | Fraction = 1) -> OperandSpec:  # noqa: N802
    """A matrix of M rows and `width·N` columns."""
    return OperandSpec(Kind.TILE, checked_width(width, "Tile"))


@dataclass(frozen=True)
class Stored:
    """A value with the dtype that it is stored in; what `store` returns and the returned dictionary holds."""

    value: Value
    dtype: str | None = None
    saturate: bool = True


def store(v: Value, dtype: str | None = None, saturate: bool = True) -> Stored:
    """Return `v` in `dtype`. An fp8 store clips to the largest finite value unless `saturate=False`.

    Without a dtype a tile is stored in the dtype of the GEMM's first operand (pointwise: of the first tile) and
    everything else in the compute dtype.
    """
    if not isinstance(v, Value):
        raise BadOutputs("store takes a traced value", got=type(v).__name__, where=author_line())
    if dtype is not None and dtype not in STORE_DTYPES + INT_DTYPES:
        raise unknown_dtype("store", dtype, STORE_DTYPES + INT_DTYPES)
    return Stored(v, dtype, bool(saturate))


def _acc_rule(types: object, attrs: Attrs) -> Type:
    return Type(Kind.TILE)


def _never(*args: object, **attrs: object) -> object:
    raise AssertionError("the accumulator is computed by the evaluator")


register(Op("acc", 3, _acc_rule, _never, "acc", flops=0))
