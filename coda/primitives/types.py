"""The type of a value: kind × width × dtype × phase, and how types combine.

Type            what a value ranges over, how wide it is, what it is made of, whether it is finished
broadcast       kind, width and phase of an elementwise result, or the error that says what does not combine
require         the dtypes that an operation takes
checked_width   1/2, 1 or 2 as a fraction, or the error that says so
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from coda.errors import BadArgument, DTypeMismatch, KindMismatch, TileLocalError, WidthMismatch

WIDTHS = (Fraction(1, 2), Fraction(1), Fraction(2))

Attr: TypeAlias = bool | int | float | str
Attrs: TypeAlias = Mapping[str, Attr]


class Kind(enum.StrEnum):
    """What a value ranges over."""

    SCALAR = "scalar"
    ROW = "row"  # one number per column: (columns,)
    COL = "col"  # one number per row: (M,)
    TILE = "tile"  # one number per element: (M, columns)
    SEGMENT = "segment"  # one number per row and group of `size` neighbouring columns: (M, columns / size)


class DType(enum.StrEnum):
    """What a value is made of while it is computed; the width in bits is the compute dtype's."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True)
class Type:
    """Kind × width × dtype × phase. `width` is relative to N and 1 for scalars and cols; `size` belongs to segments."""

    kind: Kind
    width: Fraction = Fraction(1)
    dtype: DType = DType.FLOAT
    finished: bool = False
    size: int = 0

    def __str__(self) -> str:
        text = f"{self.dtype} {self.kind}"
        if self.kind is Kind.SEGMENT:
            text += f" of {self.size}"
        if self.kind in (Kind.ROW, Kind.TILE, Kind.SEGMENT) and self.width != 1:
            text += f" of width {self.width}"
        return f"finished {text}" if self.finished else text

    def columns(self, n: int) -> int:
        """How many columns a row, tile or segment value of this type has where the GEMM has `n`."""
        whole = self.width * n
        return int(whole) // self.size if self.kind is Kind.SEGMENT else int(whole)


def broadcast(name: str, types: Sequence[Type]) -> Type:
    """Kind, width and phase of an elementwise result (its dtype is the first argument's).

    scalar goes with everything; row ∘ col is a tile; a segment value joins a tile or a row of its width, and stays a
    segment with equal segments, cols and scalars; finished vectors go with vectors of their own axis only.
    """
    present = [t for t in types if t.kind is not Kind.SCALAR]
    if not present:
        return replace(types[0], finished=False)
    if any(t.finished for t in present):
        return _finished(name, present, types[0].dtype)
    kinds = {t.kind for t in present}
    wide = [t for t in present if t.kind is not Kind.COL]
    widths = {t.width for t in wide}
    if len(widths) > 1:
        raise WidthMismatch(
            f"{name}: widths differ",
            got=" and ".join(str(t) for t in wide),
            expected="equal widths",
            hint="unpair(v) halves a width, pair(a, b) doubles it",
        )
    width = widths.pop() if widths else Fraction(1)
    dtype = types[0].dtype
    if Kind.TILE in kinds or (Kind.ROW in kinds and len(kinds) > 1):
        return Type(Kind.TILE, width, dtype)
    if Kind.SEGMENT in kinds:
        sizes = {t.size for t in wide}
        if len(sizes) > 1:
            raise KindMismatch(
                f"{name}: segments of different sizes",
                got=" and ".join(map(str, sorted(sizes))),
                expected="one size",
                hint="multiply both into the tile first",
            )
        return Type(Kind.SEGMENT, width, dtype, size=sizes.pop())
    return Type(kinds.pop(), width, dtype)


def _finished(name: str, present: Sequence[Type], dtype: DType) -> Type:
    axis = next(t for t in present if t.finished)
    for t in present:
        if t.kind is not axis.kind:
            raise TileLocalError(
                f"{name}: a finished {axis.kind} is not available inside the tile that it sums over",
                got=" with ".join(str(t) for t in present),
                expected=f"only scalars and other {axis.kind} vectors",
                hint="delay it past the next GEMM (return it, and scale there by a ColVector), use segment_* for a "
                "group of columns, or apply it in a second @coda.pointwise step of a plan",
            )
        if t.width != axis.width:
            raise WidthMismatch(f"{name}: widths differ", got=f"{axis} and {t}", expected="equal widths")
    return Type(axis.kind, axis.width, dtype, finished=True)


def require(name: str, types: Sequence[Type], dtypes: Sequence[DType]) -> None:
    """Raise `DTypeMismatch` unless each type has one of the dtypes."""
    for t in types:
        if t.dtype not in dtypes:
            wanted = " or ".join(dtypes)
            hints = {
                DType.BOOL: "turn a condition into numbers with where(condition, 1, 0)",
                DType.FLOAT: None,
                DType.INT: None,
            }
            raise DTypeMismatch(f"{name}: wrong dtype", got=str(t), expected=wanted, hint=hints[t.dtype])


def checked_width(width: float | str | Fraction, what: str) -> Fraction:
    """`width` as a fraction, or `BadArgument`."""
    try:
        exact = Fraction(width)
    except ValueError:
        exact = Fraction(0)
    if exact not in WIDTHS:
        raise BadArgument(f"{what}: width", got=width, expected="0.5, 1 or 2")
    return exact
