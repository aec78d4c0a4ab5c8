"""What a program asks of the template's tiles: how they may be cut, and what they move.

    Tiling   the program's anatomy (see `finishing.anatomy`) with the questions that schedules depend on

`configs` asks all of it; `template` asks how many columns of a part are used.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from coda.backends.finishing.anatomy import Anatomy
from coda.primitives.types import Kind


@dataclass(frozen=True)
class Tiling(Anatomy):
    """A program taken apart, for tiles of a size that is still to be chosen."""

    @functools.cached_property
    def unit(self) -> int:
        """Columns of width 1 that a tile must be a multiple of: whole pairs and whole segments."""
        unit = 1
        for i in self.in_tile:
            t = self.program.nodes[i].type
            if t.kind in (Kind.TILE, Kind.ROW, Kind.SEGMENT):
                unit = math.lcm(unit, (t.width / (t.size or 1)).denominator)
        return unit

    def step(self, columns: int) -> int:
        """How many of a part's columns are used: all of them, or the largest multiple of `unit` below."""
        return columns // self.unit * self.unit

    @functools.cached_property
    def max_width(self) -> Fraction:
        """The largest width of a tile value."""
        widths = [
            self.program.nodes[i].type.width for i in self.in_tile if self.program.nodes[i].type.kind is Kind.TILE
        ]
        return max(widths, default=Fraction(1))

    @functools.cached_property
    def reads(self) -> bool:
        """Whether the epilogue reads a matrix."""
        nodes = self.program.nodes
        return any(nodes[i].op == "operand" and nodes[i].type.kind is Kind.TILE for i in self.in_tile)

    @functools.cached_property
    def traffic(self) -> Fraction:
        """Matrices of width 1 that the epilogue reads and writes."""
        read = sum(
            (
                n.type.width
                for i in self.in_tile
                if (n := self.program.nodes[i]).op == "operand" and n.type.kind is Kind.TILE
            ),
            Fraction(0),
        )
        nodes = self.program.nodes
        written = sum(
            (nodes[o.node].type.width for o in self.tile_outputs if nodes[o.node].type.kind is Kind.TILE), Fraction(0)
        )
        return read + written
