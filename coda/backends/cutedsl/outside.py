"""What a value is where a tile reaches beyond the matrix: there accumulator and tiles are zeros, vectors are anything.

    outside    the one number that a node has there, or None where that is not known

A sum or a largest magnitude of a value that is 0 there needs no mask, which costs registers: Σh² of h = acc + residual,
say. Vectors and scalars may be NaN or infinite, so 0 times one of them is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from coda.primitives.types import DType, Kind
from coda.program import EpilogueProgram, live_nodes

KNOWN: dict[str, Callable[..., float]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "minimum": min,
    "maximum": max,
    "neg": lambda x: -x,
    "abs": abs,
    "exp": math.exp,
    "erf": math.erf,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
    "sqrt": math.sqrt,
    "unpair": lambda x: x,
    "cast": lambda x: x,
    "round": round,
    "floor": math.floor,
    "ceil": math.ceil,
}


def outside(program: EpilogueProgram, index: int) -> float | None:
    """The number that a node has beyond the matrix."""
    found: dict[int, float | None] = {}
    for i in live_nodes(program.nodes, [index]):
        node = program.nodes[i]
        args = [found[j] for j in node.args]
        if node.op == "acc" or (node.op == "operand" and node.type.kind is Kind.TILE):
            found[i] = 0.0
        elif node.type.dtype is not DType.FLOAT:
            found[i] = None
        elif node.op == "const":
            found[i] = float(node.attr("value"))
        elif node.op in ("pair", "where"):
            found[i] = args[-1] if args[-1] == args[-2] else None
        else:
            found[i] = _computed(node.op, args)
    return found[index]


def _computed(op: str, args: list[float | None]) -> float | None:
    numbers = [x for x in args if x is not None]
    if op not in KNOWN or len(numbers) < len(args):
        return None
    try:
        value = float(KNOWN[op](*numbers))
    except (ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None
