"""What torch and numpy call it, and how a program writes it: the words of hints.

OPERATORS   what they call Python's operators -> the operator
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

_PRIMITIVES = {"absolute": "abs", "fabs": "abs", "clip": "clamp", "rint": "round", "expit": "sigmoid"}
"""Primitives under other names."""

_HINTS = {name: f"write {written}" for written, (_, names) in _WRITTEN.items() for name in names.split()} | {
    name: hint
    for names, hint in {
        "square": "write x * x",
        "reciprocal": "write 1 / x",
        "pow power float_power": "write x**2: a power is a constant integer; sqrt(x), rsqrt(x) or exp2(p * log2(x)) for others",
        "to type type_as astype dtype float double half bfloat16": "floats are fp32 whatever the inputs (fp64 if those are): "
        "store(x, dtype) rounds what is returned, cast(x, dtype) what goes on",
        "int long": "no float becomes an int: floor(x), ceil(x) and round(x) stay floats",
        "matmul mm bmm mv dot addmm baddbmm linear einsum": "a program has one GEMM, whose result is `acc`: write a @coda.plan "
        "that calls two programs, or coda.matmul there",
        "shape size": "columns() and rows() are the sizes as scalars",
    }.items()
    for name in names.split()
}


def instead(name: str, known: Sequence[str]) -> str:
    """The hint for a name that a program does not have: what to write, or which of the `known` are near."""
    from coda import primitives  # whose modules need this one

    name = name.strip("_").removeprefix("special_")  # exp_, __and__; torch.special
    if name in _HINTS:
        return _HINTS[name]
    name = _PRIMITIVES.get(name, name)
    if name in known:
        parameters = ", ".join(inspect.signature(getattr(primitives, name)).parameters)
        return f"write {name}({parameters}), from coda.primitives"
    return near(name, known) or f"the primitives are: {', '.join(known)}"
