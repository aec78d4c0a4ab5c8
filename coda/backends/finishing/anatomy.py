"""A program taken apart: its statistics, and what the tiles and the finisher each do.

    Statistic   one reduction that tiles contribute to: how it folds, along which axis, of which node
    Anatomy     tile outputs (written by the kernel of the tiles), vector outputs (written by the finisher), statistics and
                their place in the workspace

Every row or col output is a function of loaded vectors, sizes and finished statistics, never of the running tile, so the
finisher writes all of them: also where the matrix is empty and no tile runs.

The workspace is one fp32 buffer. Statistics of rows take (tiles_n, M) per plane;
selected columns take (M,), written by the tile that owns the column; statistics of columns take (tiles_m, columns).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from coda.primitives.types import Kind
from coda.primitives.value import Node
from coda.program import EpilogueProgram, Output, live_nodes

ROW_FOLDS = {
    "row_sum": "sum",
    "row_mean": "sum",
    "row_max": "max",
    "row_absmax": "absmax",
    "row_logsumexp": "logsumexp",
    "row_moments": "moments",
    "select_column": "select",
}
COL_FOLDS = {"col_sum": "sum", "col_mean": "sum", "col_max": "max", "col_absmax": "absmax"}
PLANES = {"logsumexp": 2, "moments": 2}


@dataclass(frozen=True)
class Statistic:
    """One reduction. A sum and a mean of one node share it."""

    axis: str
    """ "row": one number per row; "col": one per column."""
    fold: str
    """sum, max, absmax, logsumexp, moments or select."""
    source: int
    index: int = -1
    """The node that says which column is selected."""

    @property
    def planes(self) -> int:
        """Numbers per slot and row (or column)."""
        return PLANES.get(self.fold, 1)


def statistic(node: Node) -> Statistic | None:
    """The statistic that a finished reduction reads, or None for any other node."""
    if node.op in ROW_FOLDS:
        fold = ROW_FOLDS[node.op]
        return Statistic("row", fold, node.args[0], node.args[1] if fold == "select" else -1)
    if node.op in COL_FOLDS:
        return Statistic("col", COL_FOLDS[node.op], node.args[0])
    return None


@dataclass(frozen=True)
class Anatomy:
    """A program taken apart."""

    program: EpilogueProgram

    @functools.cached_property
    def live(self) -> list[int]:
        """Nodes that reach an output."""
        return live_nodes(self.program.nodes, (o.node for o in self.program.outputs))

    @functools.cached_property
    def tile_outputs(self) -> tuple[Output, ...]:
        """Tiles and segments: written where they are computed."""
        nodes = self.program.nodes
        return tuple(o for o in self.program.outputs if nodes[o.node].type.kind in (Kind.TILE, Kind.SEGMENT))

    @functools.cached_property
    def vector_outputs(self) -> tuple[Output, ...]:
        """Rows and columns: written by the finisher."""
        nodes = self.program.nodes
        return tuple(o for o in self.program.outputs if nodes[o.node].type.kind in (Kind.ROW, Kind.COL))

    @functools.cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """Each once; of rows first, then selections, then of columns."""
        found = [s for i in self.live if (s := statistic(self.program.nodes[i])) is not None]
        order = {("row", False): 0, ("row", True): 1, ("col", False): 2}
        return tuple(sorted(dict.fromkeys(found), key=lambda s: order[s.axis, s.fold == "select"]))

    def sliced(self) -> Iterator[tuple[Statistic, int]]:
        """Statistics of rows that every tile contributes to, with their first plane."""
        at = 0
        for s in self.statistics:
            if s.axis == "row" and s.fold != "select":
                yield s, at
                at += s.planes

    @property
    def row_planes(self) -> int:
        """Planes of (tiles_n, M)."""
        return sum(s.planes for s, _ in self.sliced())

    @property
    def selections(self) -> list[Statistic]:
        """Statistics written by one tile alone."""
        return [s for s in self.statistics if s.fold == "select"]

    def col_start(self, wanted: Statistic) -> Fraction:
        """Columns, as a multiple of N, of the statistics of columns that come before this one."""
        before = self.statistics[: self.statistics.index(wanted)]
        return sum((self.width(s) for s in before if s.axis == "col"), Fraction(0))

    def width(self, s: Statistic) -> Fraction:
        """Width of what a statistic reduces."""
        return self.program.nodes[s.source].type.width

    def workspace(self, m: int, n: int, tiles_n: int, tiles_m: int) -> int:
        """Numbers in the workspace."""
        columns = sum(int(self.width(s) * n) for s in self.statistics if s.axis == "col")
        return (self.row_planes * tiles_n + len(self.selections)) * m + tiles_m * columns

    @functools.cached_property
    def in_tile(self) -> list[int]:
        """Nodes that the tile computes: what tile outputs and statistics depend on."""
        roots = [o.node for o in self.tile_outputs] + [s.source for s in self.statistics]
        return live_nodes(self.program.nodes, roots + [s.index for s in self.statistics if s.index >= 0])
