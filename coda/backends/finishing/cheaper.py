"""Elementwise operations that what surrounds them makes cheaper, found in the program alone.

    cheaper   a node, or the one that computes the same value in fewer instructions:
                  exp_nonpositive(x)        e^x where x is never positive: nothing can overflow
                  reciprocal(c, y)          a constant of moderate size over y: no scaling of large and tiny y
                  scaled(v; scale, shift)   scale·(constant + v) with a power of two as scale: one rounding, and the same
    signs     whether a value is never negative, and whether it is never positive; NaN aside

Both lowering tables have the three; they are no operations of a program. What they give up are subnormal numbers: a
`reciprocal` takes subnormal y for 0 and returns 0 where 1/y would be subnormal, and so does `exp_nonpositive`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from coda.primitives.types import DType, Kind
from coda.primitives.value import Node

_MODERATE = 2.0**64
_DEPTH = 8
"""Operations that a sign is looked for through."""

Signs = tuple[bool, bool]


def cheaper(nodes: Sequence[Node], node: Node, fast: bool) -> Node:
    """`node` itself unless it is a floating-point tile of one of the three forms. `fast`: functions are approximated anyway."""
    if node.type.kind is not Kind.TILE or node.type.dtype is not DType.FLOAT:
        return node
    if node.op == "exp" and not fast and signs(nodes, node.args[0])[1]:
        return Node("exp_nonpositive", node.args, (), node.type)
    if node.op == "div":
        above = _constant(nodes, node.args[0])
        below = _constant(nodes, node.args[1])
        if above is not None and below is None and abs(above) <= _MODERATE:
            return Node("reciprocal", node.args, (), node.type)
    if node.op == "mul":
        return _scaled(nodes, node) or node
    return node


def _constant(nodes: Sequence[Node], i: int) -> float | None:
    return float(nodes[i].attr("value")) if nodes[i].op == "const" else None


def _scaled(nodes: Sequence[Node], node: Node) -> Node | None:
    for i, j in (node.args, node.args[::-1]):
        scale, inner = _constant(nodes, i), nodes[j]
        if scale is None or inner.op != "add" or not _power_of_two(scale):
            continue
        for k, v in (inner.args, inner.args[::-1]):
            shift = _constant(nodes, k)
            if shift is not None and abs(shift) <= _MODERATE and nodes[v].op != "const":
                return Node("scaled", (v,), (("scale", scale), ("shift", scale * shift)), node.type)
    return None


def _power_of_two(x: float) -> bool:
    return math.isfinite(x) and abs(math.frexp(x)[0]) == 0.5 and 1 / _MODERATE <= abs(x) <= _MODERATE


def signs(nodes: Sequence[Node], i: int, depth: int = _DEPTH) -> Signs:
    """(never negative, never positive), whatever the operands hold."""
    node = nodes[i]
    if node.op == "const":
        value = float(node.attr("value"))
        return value >= 0, value <= 0
    if node.op in ("abs", "exp", "exp2", "sigmoid", "sqrt", "rsqrt"):
        return True, False
    if node.op == "mul":
        return _product(nodes, node, depth)
    if depth == 0 or node.op not in _RULES:
        return False, False
    known = node.args[1:] if node.op == "where" else node.args
    return _RULES[node.op](*(signs(nodes, j, depth - 1) for j in known))


def _times(x: Signs, y: Signs) -> Signs:
    return (x[0] and y[0]) or (x[1] and y[1]), (x[0] and y[1]) or (x[1] and y[0])


def _product(nodes: Sequence[Node], node: Node, depth: int) -> Signs:
    """Squares are never negative: also in c·z·z and -z·z, whichever two are multiplied first."""
    if depth == 0:
        return False, False
    factors = list(node.args)
    inner = next((i for i in node.args if nodes[i].op == "mul"), None)
    if inner is not None:
        factors.remove(inner)
        factors += nodes[inner].args
    found: Signs = (True, False)
    for k, i in enumerate(factors):
        if nodes[i].op == "neg":
            factors[k], found = nodes[i].args[0], (found[1], found[0])
    for i in dict.fromkeys(factors):
        if factors.count(i) % 2:
            found = _times(found, signs(nodes, i, depth - 1))
    return found


_RULES: dict[str, Callable[..., Signs]] = {
    "add": lambda x, y: (x[0] and y[0], x[1] and y[1]),
    "sub": lambda x, y: (x[0] and y[1], x[1] and y[0]),
    "div": _times,
    "neg": lambda x: (x[1], x[0]),
    "minimum": lambda x, y: (x[0] and y[0], x[1] or y[1]),
    "maximum": lambda x, y: (x[0] or y[0], x[1] and y[1]),
    "where": lambda x, y: (x[0] and y[0], x[1] and y[1]),
}
