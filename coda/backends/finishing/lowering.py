"""One table: operation -> Triton expression; and how numbers of every dtype are read, rounded and written.

    expression     the text of one elementwise operation on the texts of its arguments
    literal        a constant as text
    loaded         what follows a `tl.load`: the compute dtype of an operand
    stored         what a value is turned into before a `tl.store`
    pointer_type   Triton's name of a tensor's type

Floats are computed in fp32, ints in int64. An operation on constants alone gets its first argument as a typed scalar,
so that no arithmetic is left to Triton's untyped literals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coda.primitives.types import DType
from coda.primitives.value import Node

TABLE: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "reciprocal": "{0} * maths.reciprocal({1})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "~{0}",
    "neg": "-{0}",
    "where": "tl.where({0}, {1}, {2})",
    "to_float": "{0}.to(tl.float32)",
    "floordiv": "maths.floor_div({0}, {1})",
    "mod": "maths.floor_mod({0}, {1})",
    "abs": "tl.abs({0})",
    "sign": "maths.sign({0})",
    "exp": "maths.exp({0})",
    "exp_nonpositive": "maths.exp_nonpositive({0})",
    "exp2": "tl.exp2({0})",
    "expm1": "maths.expm1({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "log1p": "maths.log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "maths.sin({0})",
    "cos": "maths.cos({0})",
    "tanh": "maths.tanh({0})",
    "erf": "maths.erf({0})",
    "sigmoid": "maths.sigmoid({0})",
    "round": "maths.round_even({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
}
"""Elementwise operations whose text does not depend on the dtype; those of `cheaper.py` among them."""

FAST: dict[str, str] = {
    "exp": "maths.fast_exp({0})",
    "sigmoid": "maths.fast_sigmoid({0})",
    "tanh": "maths.fast_tanh({0})",
}
"""What `fast_math=True` changes."""

ALWAYS_TYPED = ("floordiv", "mod")
"""Operations written as functions that look at the dtype of every argument."""

TYPES = {DType.FLOAT: "tl.float32", DType.INT: "tl.int64", DType.BOOL: "tl.int1"}

TRITON_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
}
FP8 = {"float8_e4m3fn": (3, 448.0, "tl.float8e4nv"), "float8_e5m2": (2, 57344.0, "tl.float8e5")}
"""Bits of mantissa, largest finite value, Triton's name."""

_FP32_MAX, _FP32_TINY = 3.4028234663852886e38, 2.0**-126


def literal(value: bool | int | float) -> str:
    """A constant as text; floats beyond fp32 become what fp32 makes of them."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if math.isnan(value):
        return 'float("nan")'
    if abs(value) > _FP32_MAX:
        return 'float("inf")' if value > 0 else 'float("-inf")'
    if 0 < abs(value) < _FP32_TINY:
        return "0.0"
    return repr(value) if value >= 0 else f"({value!r})"


def typed(value: bool | int | float, dtype: DType) -> str:
    """A constant as a scalar of its dtype."""
    text = str(int(value)) if isinstance(value, bool) else literal(value)
    return f"tl.full((), {text}, {TYPES[dtype]})"


def expression(
    node: Node, args: Sequence[str], constants: Sequence[bool | int | float | None], types: Sequence[DType], fast: bool
) -> str:
    """The text of an elementwise operation. `constants[i]` is the value of an argument that is a constant."""
    texts = list(args)
    for group in [[0], [1, 2]] if node.op == "where" else [list(range(len(args)))]:
        known = [constants[i] for i in group]
        every = node.op in ALWAYS_TYPED
        if every or all(c is not None for c in known):
            for i in group if every else group[:1]:
                value = constants[i]
                if value is not None:
                    texts[i] = typed(value, types[i])
    if node.op in ("minimum", "maximum"):
        nan = ", propagate_nan=tl.PropagateNan.ALL" if node.type.dtype is DType.FLOAT else ""
        return f"tl.{node.op}({texts[0]}, {texts[1]}{nan})"
    if node.op == "scaled":
        return f"maths.fma({texts[0]}, {literal(float(node.attr('scale')))}, {literal(float(node.attr('shift')))})"
    if fast and node.op in FAST:
        return FAST[node.op].format(*texts)
    return TABLE[node.op].format(*texts)


def rounded(text: str, dtype: str, native_fp8: bool) -> str:
    """`cast(v, dtype)`: rounded, in fp32 again. fp8 saturates."""
    if dtype in ("float32", "float64"):
        return text
    if dtype in FP8 and not native_fp8:
        bits, limit, _ = FP8[dtype]
        return f"maths.decode_fp8(maths.encode_fp8(maths.clip({text}, {limit}), {bits}), {bits})"
    return f"{stored(text, DType.FLOAT, dtype, True, native_fp8)}.to(tl.float32)"


def stored(text: str, value: DType, dtype: str, saturate: bool, native_fp8: bool) -> str:
    """A value in the dtype that it is stored in."""
    if dtype in ("int64", "int32"):
        return text if dtype == "int64" else f"{text}.to(tl.int32)"
    if value is DType.INT:
        text = f"{text}.to(tl.{'float64' if dtype == 'float64' else 'float32'})"
    if dtype == "bfloat16":
        return f"maths.to_bf16({text})"
    if dtype in FP8:
        bits, limit, name = FP8[dtype]
        if saturate:
            text = f"maths.clip({text}, {limit})"
        if native_fp8 and saturate:
            return f"{text}.to({name})"
        return f"maths.encode_fp8({text}, {bits})" + (f".to({name}, bitcast=True)" if native_fp8 else "")
    return text if dtype == "float32" else f"{text}.to(tl.{dtype})"


def loaded(text: str, value: DType, dtype: str, native_fp8: bool) -> str:
    """A loaded operand in the dtype that it is computed in."""
    if dtype in FP8 and not native_fp8:
        text = f"maths.decode_fp8({text}, {FP8[dtype][0]})"
        return text if value is DType.FLOAT else f"{text}.to(tl.int64)"
    return f"{text}.to({TYPES[value]})"


def pointer_type(dtype: str, native_fp8: bool) -> str:
    """The type of a pointer to such elements. Where fp8 is emulated its bytes are passed."""
    return "*u8" if dtype in FP8 and not native_fp8 else f"*{TRITON_NAMES[dtype]}"
