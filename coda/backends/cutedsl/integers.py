"""Integers in 32 bits, proved: the epilogue computes them as int32, the reference as int64.

    check    raises the reason why 32 bits do not do; returns the range of every integer node

An int32 vector may hold anything, a row number lies in [0, M), a constant is itself, and so on through the operations.

An int64 vector that is only turned into floats is taken as it is: the loader does that, with one rounding, as the reference. One
that is computed with is loaded as the nearest number within ±2^30 ("narrow"). A narrow number is right up to a magnitude, its
reach, and beyond on the right side of it: enough for every comparison with numbers within reach, as row and column numbers are,
and so are sums with small numbers, minima, maxima and signs. What needs the number itself (products, remainders, a conversion
to float, a store) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from coda.backends.cutedsl.expressions import COMPARE
from coda.primitives.types import DType
from coda.primitives.value import Node
from coda.problem import Problem
from coda.program import EpilogueProgram

NARROW = 2**30
"""The largest magnitude of an int64 as it is loaded."""


@dataclass(frozen=True)
class Range:
    """Smallest and largest value in 32 bits."""

    low: int
    high: int
    reach: int = 0
    """Of a narrow number: up to this magnitude it is the number, beyond it only its side is. 0: it always is."""

    @property
    def largest(self) -> int:
        """Magnitude."""
        return max(abs(self.low), abs(self.high))


INT32 = Range(-(2**31), 2**31 - 1)
WIDTHS = {"uint8": Range(0, 255), "int32": INT32, "int64": Range(-NARROW, NARROW, NARROW - 1)}


class TooWide(Exception):
    """Carries the sentence for `supports`."""


def check(program: EpilogueProgram, problem: Problem, nodes: list[int], converted: frozenset[str]) -> dict[int, Range]:
    """The range of every int node among `nodes`. `converted`: operands that the loader turns into floats.

    Raises `TooWide`.
    """
    found: dict[int, Range] = {}
    for i in nodes:
        node = program.nodes[i]
        narrow = [found[j] for j in node.args if j in found and found[j].reach]
        if node.type.dtype is not DType.INT:
            if narrow:
                _check_use(node, [found[j] for j in node.args])
            continue
        if node.op == "operand" and node.attr("name") in converted:
            continue
        found[i] = _range(program, problem, node, found)
        if found[i].low < INT32.low or found[i].high > INT32.high:
            raise TooWide(
                f"{node.op} of integers may leave 32 bits ({found[i].low} to {found[i].high}), and the epilogue computes "
                "them in 32"
            )
    for output in program.outputs:
        if output.node in found and found[output.node].reach:
            raise TooWide(f"{output.name} stores integers of 64 bits, and the epilogue computes them in 32: pass int32")
    return found


def _check_use(node: Node, args: list[Range]) -> None:
    if node.op not in COMPARE:
        raise TooWide(f"{node.op} needs all of an integer of 64 bits, and the epilogue computes them in 32: pass int32")
    x, y = args
    reach = min(r.reach for r in args if r.reach)
    other = y if x.reach else x
    if (x.reach and y.reach) or other.largest > reach:
        raise TooWide(
            f"{node.op} of an integer of 64 bits with numbers beyond 2^30, and the epilogue compares them in 32: pass int32"
        )


def _range(program: EpilogueProgram, problem: Problem, node: Node, found: Mapping[int, Range]) -> Range:
    if node.op == "const":
        value = int(node.attr("value"))
        return Range(value, value)
    if node.op == "operand":
        name = str(node.attr("name"))
        if node.type.kind == "scalar":
            return INT32
        dtype = problem.spec(name).dtype
        if dtype not in WIDTHS or (node.type.kind == "tile" and dtype != "int32"):
            raise TooWide(f"{name} is computed with as an integer and is {dtype}: pass int32")
        return WIDTHS[dtype]
    if node.op in ("row_index", "rows"):
        return Range(0, problem.m)
    if node.op == "columns":
        return Range(problem.n, problem.n)
    if node.op == "column_index":
        return Range(0, max(int(Fraction(str(node.attr("width"))) * problem.n) - 1, 0))
    args = [found[i] for i in node.args if program.nodes[i].type.dtype is DType.INT]
    if any(r.reach for r in args):
        return _narrow(node, args)
    rule = _RULES.get(node.op)
    if rule is None:
        raise TooWide(f"{node.op} of integers has no lowering here")
    return rule(args)


def _narrow(node: Node, args: list[Range]) -> Range:
    """Of an operation that keeps the sides of narrow numbers."""
    reach = min(r.reach for r in args if r.reach)
    exact = [r for r in args if not r.reach]
    if node.op in ("add", "sub"):
        left = reach - max(r.largest for r in exact) if exact else 0
    elif node.op in ("minimum", "maximum", "neg", "abs", "sign", "where", "pair", "unpair"):
        left = reach
        if any(r.largest > reach for r in exact):
            left = 0
    else:
        left = 0
    if left <= 0:
        raise TooWide(f"{node.op} needs all of an integer of 64 bits, and the epilogue computes them in 32: pass int32")
    plain = _RULES[node.op](args)
    if plain.largest <= left:  # bounded, as by clamp: from here on it is the number itself
        return plain
    return Range(plain.low, plain.high, left)


def _corners(f: Callable[[int, int], int]) -> Callable[[list[Range]], Range]:
    def rule(args: list[Range]) -> Range:
        x, y = args
        values = [f(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
        return Range(min(values), max(values))

    return rule


def _positive_division(args: list[Range]) -> Range:
    x, y = args
    if x.low < 0 or y.low <= 0:
        raise TooWide(
            "integer division of values that may be negative, or by values that may be 0, has no lowering here"
        )
    return Range(x.low // y.high, x.high // y.low)


def _positive_remainder(args: list[Range]) -> Range:
    _positive_division(args)
    return Range(0, min(args[0].high, args[1].high - 1))


def _magnitude(args: list[Range]) -> Range:
    (x,) = args
    return Range(0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high)), x.largest)


def _hull(args: list[Range]) -> Range:
    return Range(min(r.low for r in args), max(r.high for r in args))


_RULES: dict[str, Callable[[list[Range]], Range]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "minimum": lambda a: Range(min(a[0].low, a[1].low), min(a[0].high, a[1].high)),
    "maximum": lambda a: Range(max(a[0].low, a[1].low), max(a[0].high, a[1].high)),
    "where": lambda a: _hull(a[-2:]),
    "neg": lambda a: Range(-a[0].high, -a[0].low),
    "abs": _magnitude,
    "sign": lambda a: Range(-1, 1),
    "floordiv": _positive_division,
    "mod": _positive_remainder,
    "unpair": _hull,
    "pair": _hull,
}
