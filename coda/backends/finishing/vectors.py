"""Scalars, rows and columns as text: computed at a vector of positions, in the tile and in the finisher alike.

    Axis      a vector of positions by name: row numbers, or column numbers of one width
    Vectors   writes one line per node and axis, and remembers what it has written

A row is a function of its column number, so `unpair(v)[j]` is `v[2j + odd]` and `pair(x, y)[j]` chooses by j's parity:
nothing is ever shuffled. What a finished statistic is worth is asked of `finished`, which the finisher overrides.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coda.backends.finishing import lowering
from coda.primitives.types import Kind
from coda.primitives.value import Node
from coda.problem import Problem, TensorSpec
from coda.program import EpilogueProgram


@dataclass(frozen=True)
class Axis:
    """Positions and which of them are inside, by the names of two vectors."""

    at: str
    ok: str


def suffix(width: Fraction) -> str:
    """How names of a width end."""
    return {Fraction(1): "", Fraction(2): "_twice", Fraction(1, 2): "_half"}[width]


def times(width: Fraction, name: str) -> str:
    """`width · name` as text."""
    return {Fraction(1): name, Fraction(2): f"2 * {name}", Fraction(1, 2): f"{name} // 2"}[width]


class Vectors:
    """Writes the vectors of one kernel."""

    def __init__(self, program: EpilogueProgram, problem: Problem, native_fp8: bool) -> None:
        self.program, self.problem, self.native_fp8 = program, problem, native_fp8
        self.lines: list[str] = []
        self.used: set[str] = set()
        """Names of operands that are read."""
        self._known: dict[tuple[int, str], str] = {}
        self._axes: dict[str, Axis] = {}

    # lines ------------------------------------------------------------------------------------------------------
    def line(self, text: str, comment: str = "") -> None:
        """Add a line of code."""
        self.lines.append(f"{text}  # {comment}" if comment else text)

    def spec(self, name: str) -> TensorSpec:
        """The spec of a tensor."""
        return self.problem.spec(name)

    # values -----------------------------------------------------------------------------------------------------
    def vector(self, index: int, axis: Axis | None) -> str:
        """The name of a scalar, or of a row or col at the positions of `axis`."""
        node = self.program.nodes[index]
        if node.op == "const":
            return lowering.literal(node.attr("value"))  # type: ignore[arg-type]
        if node.type.kind is Kind.SCALAR:
            axis = None
        key = (index, axis.at if axis else "")
        if key not in self._known:
            name = f"v{index}" if not any(i == index for i, _ in self._known) else f"v{index}_{axis.at if axis else ''}"
            text = self._text(index, node, axis)
            self.line(f"{name} = {text}", describe(node))
            self._known[key] = name
        return self._known[key]

    def finished(self, index: int, axis: Axis) -> str:
        """The text of a finished statistic."""
        raise AssertionError("a tile does not know finished values")

    def _text(self, index: int, node: Node, axis: Axis | None) -> str:
        if node.op == "operand":
            return self._operand(node, axis)
        if node.op in ("rows", "columns"):
            return f"tl.cast({'M' if node.op == 'rows' else 'N'}, tl.int64)"
        if axis is not None:
            if node.op in ("row_index", "column_index"):
                return f"{axis.at}.to(tl.int64)"
            if node.op == "unpair":
                return self.vector(node.args[0], self._derived(axis, "odd" if node.attr("odd") else "even"))
            if node.op == "pair":
                half = self._derived(axis, "pair")
                x, y = (self._typed(i, half) for i in node.args)
                return f"tl.where({axis.at} % 2 == 0, {x}, {y})"
            if node.type.finished and self.program.nodes[node.args[0]].type.kind is Kind.TILE:
                return self.finished(index, axis)
        return self.elementwise(node, [self.vector(i, axis) for i in node.args])

    def elementwise(self, node: Node, args: list[str]) -> str:
        """The text of an elementwise operation."""
        nodes = self.program.nodes
        if node.op == "cast":
            (source,) = node.args
            text = self._typed(source, None) if nodes[source].op == "const" else args[0]
            return lowering.rounded(text, str(node.attr("dtype")), self.native_fp8)
        constants = [nodes[i].attr("value") if nodes[i].op == "const" else None for i in node.args]
        types = [nodes[i].type.dtype for i in node.args]
        return lowering.expression(node, args, constants, types, self.program.fast_math)  # type: ignore[arg-type]

    def _typed(self, index: int, axis: Axis | None) -> str:
        node = self.program.nodes[index]
        if node.op == "const":
            return lowering.typed(node.attr("value"), node.type.dtype)  # type: ignore[arg-type]
        return self.vector(index, axis)

    def _derived(self, axis: Axis, how: str) -> Axis:
        """The positions that a pair operation reads."""
        name = f"{axis.at}_{how}"
        if name not in self._axes:
            self.line(
                f"{name} = " + {"even": f"2 * {axis.at}", "odd": f"2 * {axis.at} + 1", "pair": f"{axis.at} // 2"}[how]
            )
            self._axes[name] = Axis(name, axis.ok)
        return self._axes[name]

    def _operand(self, node: Node, axis: Axis | None) -> str:
        name = str(node.attr("name"))
        self.used.add(name)
        if axis is None:
            return f"maths.scalar({name}_arg, {lowering.TYPES[node.type.dtype]})"
        spec = self.spec(name)
        period = int(node.attr("period"))
        at = f"{axis.at} % {period}" if period else axis.at
        if spec.layout == "any":
            at = f"({at}).to(tl.int64) * {name}_ptr_stride"
        other = "0" if spec.dtype in lowering.FP8 and not self.native_fp8 else "0.0" if "float" in spec.dtype else "0"
        return lowering.loaded(
            f"tl.load({name}_ptr + {at}, mask={axis.ok}, other={other})", node.type.dtype, spec.dtype, self.native_fp8
        )


def describe(node: Node) -> str:
    """A comment for a line: what a reader cannot see from the code."""
    if node.op == "operand":
        return {"scalar": "a scalar", "col": "one number per row", "row": "one number per column"}.get(
            str(node.type.kind), ""
        )
    return ""
