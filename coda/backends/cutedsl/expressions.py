"""One table: elementwise operation -> expression of the generated function; names are functions of `maths.py`.

    literal      a constant as text
    expression   the text of an operation on the texts of its arguments

Beside the operations of programs, those of `finishing/cheaper.py`. Floats are computed in fp32, integers in int32
(`integers.py` proves that they fit).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coda.primitives.types import DType
from coda.primitives.value import Node

FLOAT: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "div({0}, {1})",
    "reciprocal": "{0} * reciprocal({1})",
    "minimum": "minimum({0}, {1})",
    "maximum": "maximum({0}, {1})",
    "neg": "-{0}",
    "abs": "magnitude({0})",
    "sign": "sign({0})",
    "exp": "exp({0})",
    "exp_nonpositive": "exp_nonpositive({0})",
    "exp2": "exp2({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log2": "log2({0})",
    "log1p": "log1p({0})",
    "sqrt": "sqrt({0})",
    "rsqrt": "rsqrt({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tanh": "tanh({0})",
    "erf": "erf({0})",
    "sigmoid": "sigmoid({0})",
    "round": "round_even({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
}
INT: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "minimum": "where_int({0} < {1}, {0}, {1})",
    "maximum": "where_int({0} > {1}, {0}, {1})",
    "neg": "-{0}",
    "abs": "where_int({0} < 0, -{0}, {0})",
    "sign": "where_int({0} > 0, 1, where_int({0} < 0, -1, 0))",
}
COMPARE: dict[str, str] = {
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~{0}",
}
FAST = frozenset({"div", "exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid", "sin", "cos"})
"""What has a hardware approximation that `fast_math=True` takes."""

CASTS = {"bfloat16": "round_bfloat16({0})", "float16": "round_float16({0})", "float32": "{0}"}

_FP32_MAX, _FP32_TINY = 3.4028234663852886e38, 2.0**-126


def literal(value: bool | int | float | str) -> str:
    """A constant as text; floats beyond fp32 become what fp32 makes of them."""
    if isinstance(value, (bool, int)):
        return repr(value) if value >= 0 else f"({value})"
    assert isinstance(value, float)
    if math.isnan(value):
        return "nan"
    if abs(value) > _FP32_MAX:
        return "inf" if value > 0 else "(-inf)"
    if 0 < abs(value) < _FP32_TINY:
        return "0.0"
    return repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})"


def typed(text: str, dtype: DType) -> str:
    """A constant as a number of the device."""
    return f"{ {DType.FLOAT: 'Float32', DType.INT: 'Int32', DType.BOOL: 'Boolean'}[dtype] }({text})".replace(" ", "")


def expression(node: Node, args: Sequence[str], source: DType, fast: bool) -> str:
    """The text of an elementwise operation; `source` is the dtype of its first numeric argument. Raises `KeyError`."""
    if node.op == "where":
        function = {DType.FLOAT: "where", DType.INT: "where_int"}[node.type.dtype]
        return f"{function}({', '.join(args)})"
    if node.op == "cast":
        return CASTS[str(node.attr("dtype"))].format(*args)
    if node.op == "to_float":
        return f"to_float({args[0]})" if source is DType.INT else args[0]
    if node.op == "scaled":
        return f"fma({args[0]}, {literal(node.attr('scale'))}, {literal(node.attr('shift'))})"
    if node.op == "reciprocal" and args[0] == "1.0":
        return f"reciprocal({args[1]})"
    if node.op in COMPARE:
        return COMPARE[node.op].format(*args)
    text = (INT if node.type.dtype is DType.INT else FLOAT)[node.op].format(*args)
    return f"fast_{text}" if fast and node.op in FAST and node.type.dtype is DType.FLOAT else text
