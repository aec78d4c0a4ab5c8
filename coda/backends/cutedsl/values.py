"""Nodes as lines of a generated function: lanes, what is loaded, elementwise operations.

    Values    the values of one function, and the ports that it reads; the epilogue's own and the one before it
              (`segments.py`) each have one, over the same ports

The function sees one element of the accumulator, or one pair of neighbouring columns where the program unpairs it. A value
holds one text per column that it covers there, its lanes:

    width of the value     1/2      1        2
    element                 –       1        2  (two 16-bit numbers in one 32-bit element of a view)
    pairs                   1       2        4
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from coda.backends.cutedsl import expressions
from coda.backends.cutedsl.lowered import HALF, SIXTEEN, TILE_COLUMNS, Inexpressible, Port
from coda.backends.finishing.cheaper import cheaper
from coda.primitives.types import DType, Kind, Type
from coda.primitives.value import Node
from coda.problem import Problem
from coda.program import EpilogueProgram


@dataclass
class Values:
    """The values of one function."""

    program: EpilogueProgram
    problem: Problem
    pairs: bool
    """Whether the function sees pairs of columns."""
    converted: frozenset[str]
    """Int vectors that the loader turns into floats."""
    ports: dict[tuple[str, str], Port]
    """Of the kernel; what is read is added."""
    segments: Mapping[int, Port]
    """Nodes that are folded before."""
    lines: list[str] = field(default_factory=list)
    lanes: dict[int, list[str]] = field(default_factory=dict)
    read: dict[str, None] = field(default_factory=dict)
    """Names of the ports that this function reads, in order."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Of the program."""
        return self.program.nodes

    def add(self, i: int) -> None:
        """Write a node, whose arguments are written."""
        self.lanes[i] = self._value(i, self.nodes[i])

    def count(self, t: Type) -> int:
        """Lanes of a value."""
        if t.kind not in (Kind.TILE, Kind.ROW):
            return 1
        lanes = t.width / (HALF if self.pairs else Fraction(1))
        if lanes.denominator != 1:
            raise Inexpressible("a value of half the width without pairs of accumulator columns")
        return int(lanes)

    def _value(self, i: int, node: Node) -> list[str]:
        if i in self.segments:
            return self._segment(i, node, self.segments[i])
        if node.op == "const":
            return [expressions.literal(node.attr("value"))]
        if node.op == "acc":
            return ["acc.a", "acc.b"] if self.pairs else ["acc"]
        if node.op == "operand":
            return self._operand(i, node)
        if node.op in ("rows", "columns"):
            return [self._port(f"n_{node.op}", "count", node.op, is_int=True)]
        if node.op in ("row_index", "column_index"):
            return self._place(i, node)
        if node.op == "unpair":
            return self.lanes[node.args[0]][int(node.attr("odd")) :: 2]
        if node.op == "pair":
            half = self.count(node.type) // 2
            x, y = (self.spread(j, half) for j in node.args)
            return [lane for both in zip(x, y, strict=True) for lane in both]
        return self._elementwise(i, node)

    def spread(self, i: int, count: int) -> list[str]:
        """A value's lanes, as many as are wanted."""
        lanes = self.lanes[i]
        if self.nodes[i].op == "const":
            lanes = [expressions.typed(lanes[0], self.nodes[i].type.dtype)]
        return lanes * count if len(lanes) == 1 else lanes

    def _elementwise(self, i: int, node: Node) -> list[str]:
        if node.op == "to_float" and self._is_converted(node.args[0]):
            return self.lanes[node.args[0]]
        node = cheaper(self.nodes, node, self.program.fast_math)
        args = [self.nodes[j] for j in node.args]
        count = self.count(node.type)
        known = [a.op == "const" for a in args]
        lanes = [self.lanes[j] for j in node.args]
        if node.op == "div" and known[1] and exact_reciprocal(args[1].attr("value")):
            node = Node("mul", node.args, (), node.type)
            lanes[1] = [expressions.literal(1.0 / float(args[1].attr("value")))]
        columns = []
        for lane in range(count):
            texts = [x[lane if len(x) > 1 else 0] for x in lanes]
            if known[0] and (all(known) or node.op == "where"):
                texts[0] = expressions.typed(texts[0], args[0].type.dtype)
            numeric = next((a.type.dtype for a in args if a.type.dtype is not DType.BOOL), DType.BOOL)
            try:
                columns.append(expressions.expression(node, texts, numeric, self.program.fast_math))
            except KeyError as error:
                raise Inexpressible(f"{node.op} of {node.type} has no lowering here ({error})") from error
        return self._assign(i, columns)

    def _assign(self, i: int, texts: list[str]) -> list[str]:
        names = [f"v{i}"] if len(texts) == 1 else [f"v{i}_{k}" for k in range(len(texts))]
        self.lines += [f"{name} = {text}" for name, text in zip(names, texts, strict=True)]
        return names

    def _is_converted(self, i: int) -> bool:
        node = self.nodes[i]
        return node.op == "operand" and str(node.attr("name")) in self.converted

    def _segment(self, i: int, node: Node, port: Port) -> list[str]:
        lane = f"{self._take(port)}.a" if self.pairs else self._take(port)  # both columns of a pair lie in one segment
        if node.op != "segment_mean":
            return [lane]
        by = float(port.period)
        mean = f"{lane} * {expressions.literal(1 / by)}" if exact_reciprocal(by) else f"div({lane}, {by})"
        return self._assign(i, [mean])

    # what is loaded -----------------------------------------------------------------------------------------------------
    def _take(self, port: Port) -> str:
        self.ports.setdefault((port.name, port.how), port)
        self.read[port.name] = None
        return port.name

    def _port(self, name: str, how: str, operand: str, view: bool = False, is_int: bool = False) -> str:
        return self._take(Port(name, how, operand, view, is_int))

    def _operand(self, i: int, node: Node) -> list[str]:
        name, t = str(node.attr("name")), node.type
        if t.kind is Kind.SCALAR:
            return [self._port(f"x_{name}", "scalar", name, is_int=t.dtype is DType.INT)]
        spec = self.problem.spec(name)
        self._check_loadable(name, t, spec.dtype)
        bits = t.dtype is DType.INT and name not in self.converted
        narrow = bits and spec.dtype != "int32"
        pairs = t.kind is not Kind.COL and t.width == 2
        if t.kind is Kind.ROW and (node.attr("period") or t.width == HALF):
            port = self._spread_row(name, t, int(node.attr("period")), bits and not narrow, narrow)
        else:
            view = (bits or pairs) and not narrow
            port = self._take(Port(f"x_{name}", str(t.kind), name, view=view, narrow=narrow))
        lanes = self._lanes_of(port, t)
        if pairs:
            names = [f"v{i}_{k}" for k in range(2 * len(lanes))]
            for k, lane in enumerate(lanes):
                self.lines.append(f"{names[2 * k]}, {names[2 * k + 1]} = split_{spec.dtype}({lane})")
            return names
        return self._assign(i, [f"integer({lane})" for lane in lanes]) if bits else lanes

    def _lanes_of(self, port: str, t: Type) -> list[str]:
        if not self.pairs or t.kind is Kind.COL:
            return [port]
        return [f"{port}.a"] if t.width == HALF else [f"{port}.a", f"{port}.b"]

    def _spread_row(self, name: str, t: Type, period: int, view: bool, narrow: bool) -> str:
        """A row that is shorter than the product's."""
        if t.width == 2:
            raise Inexpressible(f"{name} has width 2 and repeats: rows that repeat are loaded up to width 1")
        wide = self.problem.spec(name).dtype in ("float32", "int32")
        port = Port(f"x_{name}", "spread", name, view, False, t.width == HALF, period, wide, narrow)
        if all(n % port.whole for n in TILE_COLUMNS):
            raise Inexpressible(f"{name} repeats every {port.whole} columns, which no tile is a multiple of")
        return self._take(port)

    def _check_loadable(self, name: str, t: Type, dtype: str) -> None:
        if t.kind is Kind.TILE and t.width == HALF:
            raise Inexpressible(f"{name} is a tile of half the width, which the loader of a pair mode reads wrongly")
        if t.kind is not Kind.COL and t.width == 2 and (dtype not in SIXTEEN or t.dtype is DType.INT):
            raise Inexpressible(f"{name} has width 2 and dtype {dtype}: only 16-bit floats travel as pairs")
        floats = ("float32", *SIXTEEN)
        allowed = ("int32", "int64", "uint8") if t.dtype is DType.INT else floats
        if dtype not in allowed:
            raise Inexpressible(f"{name} is {dtype}; a {t.kind} is loaded as {' or '.join(allowed)}")

    def _place(self, i: int, node: Node) -> list[str]:
        """Row or column numbers: a vector that the launch keeps, loaded like any other."""
        if node.op == "row_index":
            return self._assign(i, [f"integer({self._port('n_row_index', 'col', 'row_index', view=True)})"])
        if node.type.width == 2:
            raise Inexpressible("column numbers of twice the product's width have no loader here")
        if node.type.width == HALF:
            port = self._take(Port("n_half_index", "spread", "half_index", view=True, half=True))
            lanes = self._lanes_of(port, node.type)
        else:
            lanes = self._lanes_of(self._port("n_column_index", "row", "column_index", view=True), node.type)
        return self._assign(i, [f"integer({lane})" for lane in lanes])


def exact_reciprocal(value: object) -> bool:
    """Whether dividing by a constant is multiplying by another one."""
    return (
        isinstance(value, float)
        and math.isfinite(value)
        and value != 0
        and abs(math.frexp(value)[0]) == 0.5
        and 2.0**-100 < abs(value) < 2.0**100
    )
