"""Integers in 32 bits, proved: the epilogue computes them as int32, the reference as int64.

    intervals   smallest and largest value of every integer node on a problem, or the reason why 32 bits do not do

An int32 vector may hold anything, a row number lies in [0, M), a constant is itself, and so on through the operations.
An int64 vector is taken where it is only turned into floats: the loader does that, with one rounding, as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from coda.primitives.types import DType
from coda.primitives.value import Node
from coda.problem import Problem
from coda.program import EpilogueProgram

Interval = tuple[int, int]
INT32: Interval = (-(2**31), 2**31 - 1)


class TooWide(Exception):
    """Carries the sentence for `supports`."""


def intervals(
    program: EpilogueProgram, problem: Problem, nodes: list[int], converted: frozenset[str]
) -> dict[int, Interval]:
    """The interval of every int node among `nodes`. `converted`: operands that the loader turns into floats.

    Raises `TooWide`.
    """
    found: dict[int, Interval] = {}
    for i in nodes:
        node = program.nodes[i]
        if node.type.dtype is not DType.INT or (node.op == "operand" and node.attr("name") in converted):
            continue
        low, high = _interval(program, problem, node, found)
        if low < INT32[0] or high > INT32[1]:
            raise TooWide(
                f"{node.op} of integers may leave 32 bits ({low} to {high}), and the epilogue computes them in 32"
            )
        found[i] = (low, high)
    return found


def _interval(program: EpilogueProgram, problem: Problem, node: Node, found: dict[int, Interval]) -> Interval:
    if node.op == "const":
        value = int(node.attr("value"))
        return value, value
    if node.op == "operand":
        name = str(node.attr("name"))
        if node.type.kind != "scalar" and problem.spec(name).dtype != "int32":
            raise TooWide(f"{name} is computed with as an integer and is {problem.spec(name).dtype}: pass int32")
        return INT32
    if node.op in ("row_index", "rows"):
        return 0, problem.m
    if node.op == "columns":
        return problem.n, problem.n
    if node.op == "column_index":
        return 0, max(int(Fraction(str(node.attr("width"))) * problem.n) - 1, 0)
    args = [found[i] for i in node.args if program.nodes[i].type.dtype is DType.INT]
    rule = _RULES.get(node.op)
    if rule is None:
        raise TooWide(f"{node.op} of integers has no lowering here")
    return rule(args)


def _corners(f: Callable[[int, int], int]) -> Callable[[list[Interval]], Interval]:
    def rule(args: list[Interval]) -> Interval:
        values = [f(x, y) for x in args[0] for y in args[1]]
        return min(values), max(values)

    return rule


def _positive_division(args: list[Interval]) -> Interval:
    (low, high), (smallest, largest) = args
    if low < 0 or smallest <= 0:
        raise TooWide(
            "integer division of values that may be negative, or by values that may be 0, has no lowering here"
        )
    return low // largest, high // smallest


def _positive_remainder(args: list[Interval]) -> Interval:
    _positive_division(args)
    return 0, min(args[0][1], args[1][1] - 1)


def _magnitude(args: list[Interval]) -> Interval:
    (low, high) = args[0]
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


_RULES: dict[str, Callable[[list[Interval]], Interval]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "minimum": lambda a: (min(a[0][0], a[1][0]), min(a[0][1], a[1][1])),
    "maximum": lambda a: (max(a[0][0], a[1][0]), max(a[0][1], a[1][1])),
    "where": lambda a: (min(a[-2][0], a[-1][0]), max(a[-2][1], a[-1][1])),
    "neg": lambda a: (-a[0][1], -a[0][0]),
    "abs": _magnitude,
    "sign": lambda a: (-1, 1),
    "floordiv": _positive_division,
    "mod": _positive_remainder,
    "unpair": lambda a: a[0],
    "pair": lambda a: (min(a[0][0], a[1][0]), max(a[0][1], a[1][1])),
}
