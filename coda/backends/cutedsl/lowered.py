"""What a program becomes for quack's front end: plain data, no device code.

    Port       one parameter of the generated function, and how it is loaded
    Store      one tile output
    Sink       one statistic of the running tile
    SegmentStore    one output of a number per row and group of columns
    Lowered    all of them, and the text
    Inexpressible   carries the sentence for `supports`

`lowering.py` makes them, `launch.py` turns them into quack's operators and arguments, `configs.py` counts their shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coda.backends.finishing.anatomy import Statistic
from coda.errors import Unsupported

HALF = Fraction(1, 2)
SIXTEEN = ("bfloat16", "float16")
EIGHT = ("float8_e4m3fn", "float8_e5m2")
FOLDS = {"sum": "add", "max": "max", "absmax": "max_abs"}
TILE_COLUMNS = (128, 192, 256)
"""Tiles that the shipped choice takes."""
PART_COLUMNS, PART_ROWS = 32, 128
"""What the size of a part divides, in which quack's epilogue walks over a tile on Hopper: 64 or 128 rows by 16 or 32 columns
(64 or 192 rows of a tile of 192)."""
PLACES = ("row_index", "column_index", "half_index")
"""Vectors of row numbers, of column numbers, and of column numbers of half the width."""
IDENTITY = {"sum": "Float32(0.0)", "max": "Float32(-inf)", "absmax": "Float32(0.0)", "logsumexp": "Float32(-inf)"}


class Inexpressible(Unsupported):
    """Carries the sentence for `supports`; to who asks for a schedule or a kernel all the same, what every backend raises."""


@dataclass(frozen=True)
class Port:
    """One parameter of the function (or, for an index, of a statistic alone)."""

    name: str
    how: str
    """tile, row, col, scalar, index: quack's operator; spread: a shorter row; count: M or N as an int scalar; segment: a number
    per row and group of columns, folded over the accumulator before the function runs."""
    operand: str = ""
    """Name in the tensors of a launch; "rows" or "columns" of a count; a vector of PLACES, which the launch keeps."""
    view: bool = False
    """The tensor is seen as fp32: two 16-bit numbers of a width-2 value, or an int32, in each element."""
    is_int: bool = False
    half: bool = False
    """Of a spread row: each number for two columns."""
    period: int = 0
    """Of a spread row: its length, where it repeats. Of a segment: its columns."""
    wide: bool = True
    """Of a spread row: its numbers have 32 bits."""
    narrow: bool = False
    """An int64 that is loaded as the nearest int32 within ±2^30 (`integers.py`)."""
    fold: str = ""
    """Of a segment: sum, max or absmax."""

    @property
    def whole(self) -> int:
        """Columns that a tile must be a multiple of."""
        return self.period * (2 if self.half else 1) or 1


@dataclass(frozen=True)
class Store:
    """One tile output. `name` is "D" or a parameter of quack's."""

    name: str
    output: str
    view: bool = False


@dataclass(frozen=True)
class Sink:
    """One statistic of the running tile."""

    name: str
    statistic: Statistic
    mask: str = ""
    """What is kept out beyond the matrix: nothing "" (no tile reaches there), whole "parts" of a tile, or "elements"."""
    scaled: bool = False
    index: str = ""
    """Name of the port that a selection takes its columns from."""


@dataclass(frozen=True)
class SegmentStore:
    """One output of segments, written where the statistic is folded."""

    name: str
    output: str
    segment: str
    """Name of the port whose statistic it is a function of."""
    function: str = ""
    """The function, in the text; none stores the statistic itself."""


@dataclass(frozen=True)
class Lowered:
    """What quack's `gemm_epilogue` is called with."""

    function: str
    source: str
    mode: str
    ports: tuple[Port, ...]
    stores: tuple[Store, ...]
    sinks: tuple[Sink, ...]
    segments: tuple[SegmentStore, ...] = ()
    prepass: str = ""
    """The function, in the text, of the accumulator and what it reads, that returns what segments fold."""

    @property
    def parameters(self) -> tuple[Port, ...]:
        """The ports that the function sees."""
        return tuple(p for p in self.ports if p.how != "index")
