"""What torch and numpy call it, and how a program writes it: the words of hints.

OPERATORS   what they call Python's operators -> the operator
plain       a name without its decoration
instead     the hint for a name that a program does not have
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from coda.errors import near

_WRITTEN: dict[str, tuple[Callable[..., Any], str]] = {  # what it is, and the names that others give it
    "x + y": (operator.add, "add"),
    "x - y": (operator.sub, "sub subtract"),
    "x * y": (operator.mul, "mul multiply"),
    "x / y": (operator.truediv, "div divide true_divide"),
    "x // y": (operator.floordiv, "floordiv floor_divide"),
    "x % y": (operator.mod, "mod remainder"),
    "x < y": (operator.lt, "lt less"),
    "x <= y": (operator.le, "le less_equal"),
    "x > y": (operator.gt, "gt greater"),
    "x >= y": (operator.ge, "ge greater_equal"),
    "x == y": (operator.eq, "eq equal"),
    "x != y": (operator.ne, "ne not_equal"),
    "x & y": (operator.and_, "and bitwise_and logical_and"),
    "x | y": (operator.or_, "or bitwise_or logical_or"),
    "~x": (operator.invert, "invert bitwise_not logical_not"),
    "-x": (operator.neg, "neg negative"),
}
OPERATORS = {name: op for op, names in _WRITTEN.values() for name in names.split()}
"""A name that others give to an operator -> what it is."""

_PRIMITIVES = {
    "absolute": "abs",
    "fabs": "abs",
    "clip": "clamp",
    "rint": "round",
    "expit": "sigmoid",
    "fmin": "minimum",
    "fmax": "maximum",
    "logsumexp": "row_logsumexp",
    "gather": "select_column",
}
"""Primitives under other names."""

_HINTS = {name: f"write {written}" for written, (_, names) in _WRITTEN.items() for name in names.split()} | {
    name: hint
    for names, hint in {
        "floordiv floor_divide": "write x // y of integers, floor(x / y) of floats",
        "mod remainder": "write x % y of integers, x - y * floor(x / y) of floats",
        "invert bitwise_not logical_not": "write ~c of a condition, such as c = x != 0",
        "and bitwise_and logical_and": "write c & d of conditions, such as (x > 0) & (y > 0)",
        "or bitwise_or logical_or": "write c | d of conditions, such as (x > 0) | (y > 0)",
        "square": "write x * x",
        "reciprocal": "write 1 / x",
        "pow power float_power": "write x**2: a power is a constant integer; sqrt(x), rsqrt(x) or exp2(p * log2(x)) for others",
        "to type_as astype dtype float double half bfloat16": "floats are fp32 whatever the inputs (fp64 if those are): "
        "store(x, dtype) rounds what is returned, cast(x, dtype) what goes on",
        "int long": "no float becomes an int: floor(x), ceil(x) and round(x) stay floats",
        "matmul mm bmm mv dot addmm baddbmm linear einsum": "a program has one GEMM, whose result is `acc`: write a @coda.plan "
        "that calls two programs, or coda.matmul there",
        "isnan": "write x != x",
        "clamp_min": "write maximum(x, low), from coda.primitives",
        "clamp_max": "write minimum(x, high), from coda.primitives",
        "sum mean max amax": "row_…, col_… and segment_… say along what: row_sum, col_mean, segment_max; maximum(x, y) is of two values",
        "min amin": "the smallest of a row is -row_max(-x); minimum(x, y) is of two values",
        "var std var_mean layer_norm": "row_moments(x) gives the mean and the variance of each row",
        "shape size": "columns() and rows() are the sizes as scalars",
    }.items()
    for name in names.split()
}


def plain(name: str) -> str:
    """A name as the tables have it: "exp" of exp_ and torch.special's, "add" of __iadd__ and __radd__."""
    bare = name.strip("_").removeprefix("special_")
    return bare[1:] if name.startswith("__") and bare[:1] in ("i", "r") and bare[1:] in OPERATORS else bare


def instead(name: str, known: Sequence[str]) -> str:
    """The hint for a name that a program does not have: what to write, or which of the `known` are near."""
    from coda import primitives  # whose modules need this one

    name = plain(name)
    if name in _HINTS:
        return _HINTS[name]
    name = _PRIMITIVES.get(name, name)
    if name in known:
        parameters = ", ".join(inspect.signature(getattr(primitives, name)).parameters)
        return f"write {name}({parameters}), from coda.primitives"
    return near(name, known, cutoff=0.7) or f"the primitives are: {', '.join(known)}"
