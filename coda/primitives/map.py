"""Class 1, elementwise and pairwise maps: one element, or one adjacent pair of columns, at a time.

    even column   odd column                     unpair(v) -> two values of half the width
    +------+------+------+------+                pair(a, b) interleaves them again
    | v[0] | v[1] | v[2] | v[3] |  …
    +------+------+------+------+

A map is the cheapest primitive: it works on registers and fuses with everything. NaN follows PyTorch (`minimum`,
`maximum`, `relu`, `clamp` pass it on). Functions that others compose (`silu`, `gelu`, `relu`, `clamp`, `softplus`, `**`)
add the nodes of their definition, so that two spellings of one formula are one program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from coda.errors import BadArgument, DTypeMismatch, KindMismatch, WidthMismatch, near
from coda.primitives.types import WIDTHS, Attrs, DType, Kind, Type, broadcast, checked_width, require
from coda.primitives.value import Op, Operand, Rule, Value, apply, author_line, register

__all__ = [
    "abs",
    "cast",
    "ceil",
    "clamp",
    "column_index",
    "columns",
    "cos",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "gelu",
    "log",
    "log1p",
    "log2",
    "maximum",
    "minimum",
    "pair",
    "relu",
    "round",
    "row_index",
    "rows",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "tanh",
    "unpair",
    "where",
]

_NUMERIC = (DType.FLOAT, DType.INT)
STORE_DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
"""Floating-point dtypes that a value can be rounded to; `float64` only where the compute dtype is."""


def _elementwise(name: str, takes: Sequence[DType], gives: DType | None = None) -> Rule:
    def rule(types: Sequence[Type], attrs: Attrs) -> Type:
        require(name, types, takes)
        if len({t.dtype for t in types}) > 1:
            raise DTypeMismatch(f"{name}: int beside float", got=", ".join(map(str, types)), expected="one dtype")
        result = broadcast(name, types)
        return result if gives is None else replace(result, dtype=gives)

    return rule


# constants and conversions ----------------------------------------------------------------------------------------


def _const_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    value = attrs["value"]
    if isinstance(value, bool):
        return Type(Kind.SCALAR, dtype=DType.BOOL)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadArgument("an integer constant outside 64 bits", got=value)
        return Type(Kind.SCALAR, dtype=DType.INT)
    if isinstance(value, float):
        return Type(Kind.SCALAR)
    raise BadArgument("a constant is a number", got=repr(value))


def _const(e: Any, value: Any) -> Any:
    dtype = e.torch.bool if isinstance(value, bool) else e.torch.int64 if isinstance(value, int) else e.dtype
    return e.torch.tensor(value, dtype=dtype, device=e.device)


register(Op("const", 1, _const_rule, _const, "{value}", flops=0))
register(
    Op(
        "to_float",
        1,
        _elementwise("to_float", (DType.INT, DType.FLOAT), DType.FLOAT),
        lambda e, x: x.to(e.dtype),
        "{0}",
        takes=DType.INT,
    )
)


# arithmetic, comparison, logic ------------------------------------------------------------------------------------


def _binary(
    name: str,
    formula: str,
    reference: Callable[[Any, Any, Any], Any],
    *,
    takes: Sequence[DType] = _NUMERIC,
    gives: DType | None = None,
    to: DType | None = None,
    commutative: bool = False,
    flops: float = 1,
) -> None:
    rule = _elementwise(name, takes, gives)
    register(Op(name, 1, rule, reference, formula, flops=flops, takes=to, commutative=commutative))


_binary("add", "({0} + {1})", lambda e, x, y: x + y, commutative=True)
_binary("sub", "({0} - {1})", lambda e, x, y: x - y)
_binary("mul", "{0}·{1}", lambda e, x, y: x * y, commutative=True)
_binary("div", "({0} / {1})", lambda e, x, y: x / y, to=DType.FLOAT, flops=4)
_binary("floordiv", "⌊{0} / {1}⌋", lambda e, x, y: e.torch.div(x, y, rounding_mode="floor"), takes=(DType.INT,))
_binary("mod", "({0} mod {1})", lambda e, x, y: e.torch.remainder(x, y), takes=(DType.INT,))
_binary("minimum", "min({0}, {1})", lambda e, x, y: e.torch.minimum(x, y), commutative=True)
_binary("maximum", "max({0}, {1})", lambda e, x, y: e.torch.maximum(x, y), commutative=True)
_binary("lt", "({0} < {1})", lambda e, x, y: x < y, gives=DType.BOOL)
_binary("le", "({0} ≤ {1})", lambda e, x, y: x <= y, gives=DType.BOOL)
_binary("gt", "({0} > {1})", lambda e, x, y: x > y, gives=DType.BOOL)
_binary("ge", "({0} ≥ {1})", lambda e, x, y: x >= y, gives=DType.BOOL)
_binary("eq", "({0} = {1})", lambda e, x, y: x == y, gives=DType.BOOL, commutative=True)
_binary("ne", "({0} ≠ {1})", lambda e, x, y: x != y, gives=DType.BOOL, commutative=True)
_binary("and", "({0} ∧ {1})", lambda e, x, y: x & y, takes=(DType.BOOL,), commutative=True)
_binary("or", "({0} ∨ {1})", lambda e, x, y: x | y, takes=(DType.BOOL,), commutative=True)
register(Op("not", 1, _elementwise("not", (DType.BOOL,)), lambda e, x: ~x, "¬{0}"))
register(Op("neg", 1, _elementwise("neg", _NUMERIC), lambda e, x: -x, "-{0}"))


def minimum(x: Operand, y: Operand) -> Value:
    """The smaller of two; NaN if either is."""
    return apply("minimum", x, y)


def maximum(x: Operand, y: Operand) -> Value:
    """The larger of two; NaN if either is."""
    return apply("maximum", x, y)


def _where_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    condition, a, b = types
    require("where", [condition], (DType.BOOL,))
    if a.dtype is not b.dtype:
        raise DTypeMismatch("where: the branches differ", got=f"{a} and {b}", expected="one dtype")
    return replace(broadcast("where", types), dtype=a.dtype)


register(Op("where", 1, _where_rule, lambda e, c, x, y: e.torch.where(c, x, y), "({1} if {0} else {2})"))


def where(condition: Operand, a: Operand, b: Operand) -> Value:
    """`a` where the condition holds, else `b`. Both are computed; a NaN in the branch not taken does no harm."""
    return apply("where", condition, a, b)


def clamp(x: Operand, low: Operand | None = None, high: Operand | None = None) -> Value:
    """`minimum(maximum(x, low), high)`; NaN stays NaN."""
    if low is None and high is None:
        raise BadArgument("clamp without bounds", expected="low, high or both", where=author_line())
    if high is None:
        return maximum(x, low)  # type: ignore[arg-type]
    return minimum(x if low is None else maximum(x, low), high)


# functions of one number ------------------------------------------------------------------------------------------


def _unary(name: str, formula: str, flops: float, reference: Callable[[Any, Any], Any]) -> Callable[[Operand], Value]:
    register(Op(name, 1, _elementwise(name, (DType.FLOAT,)), reference, formula, flops=flops, takes=DType.FLOAT))

    def function(x: Operand) -> Value:
        return apply(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {formula.format('x')}."
    return function


exp = _unary("exp", "exp({0})", 8, lambda e, x: x.exp())
exp2 = _unary("exp2", "exp2({0})", 6, lambda e, x: x.exp2())
expm1 = _unary("expm1", "expm1({0})", 10, lambda e, x: x.expm1())
log = _unary("log", "log({0})", 8, lambda e, x: x.log())
log2 = _unary("log2", "log2({0})", 8, lambda e, x: x.log2())
log1p = _unary("log1p", "log1p({0})", 10, lambda e, x: x.log1p())
sqrt = _unary("sqrt", "√{0}", 4, lambda e, x: x.sqrt())
rsqrt = _unary("rsqrt", "{0}^(-1/2)", 4, lambda e, x: x.rsqrt())
sin = _unary("sin", "sin({0})", 12, lambda e, x: x.sin())
cos = _unary("cos", "cos({0})", 12, lambda e, x: x.cos())
tanh = _unary("tanh", "tanh({0})", 12, lambda e, x: x.tanh())
erf = _unary("erf", "erf({0})", 16, lambda e, x: x.erf())
sigmoid = _unary("sigmoid", "σ({0})", 10, lambda e, x: x.sigmoid())
round = _unary("round", "round({0})", 1, lambda e, x: x.round())
floor = _unary("floor", "⌊{0}⌋", 1, lambda e, x: x.floor())
ceil = _unary("ceil", "⌈{0}⌉", 1, lambda e, x: x.ceil())

register(Op("abs", 1, _elementwise("abs", _NUMERIC), lambda e, x: x.abs(), "|{0}|"))
register(Op("sign", 1, _elementwise("sign", _NUMERIC), lambda e, x: x.sign(), "sign({0})"))


def abs(x: Operand) -> Value:
    """Absolute value, of a float or an int."""
    return apply("abs", x)


def sign(x: Operand) -> Value:
    """-1, 0 or 1; 0 for NaN, as PyTorch."""
    return apply("sign", x)


def relu(x: Operand) -> Value:
    """`maximum(x, 0)`; NaN stays NaN."""
    return maximum(x, 0)


def silu(x: Operand) -> Value:
    """`x * sigmoid(x)`."""
    return x * sigmoid(x)


def softplus(x: Operand) -> Value:
    """`log(1 + exp(x))`, without overflow."""
    return maximum(x, 0) + log1p(exp(-abs(x)))


def gelu(x: Operand, approximate: Literal["none", "tanh"] = "none") -> Value:
    """`x·Φ(x)`; with `approximate="tanh"` the usual tanh form."""
    if approximate == "none":
        return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + tanh(inner))
    raise BadArgument(
        "gelu: unknown approximation", got=repr(approximate), expected="'none' or 'tanh'", where=author_line()
    )


# rounding in between ----------------------------------------------------------------------------------------------


def unknown_dtype(name: str, dtype: object, known: Sequence[str]) -> BadArgument:
    """The error for what is no dtype's name: torch.bfloat16 for "bfloat16", say."""
    bare = str(dtype).removeprefix("torch.")
    hint = f'write "{bare}"' if bare in known else near(bare, known)
    return BadArgument(
        f"{name}: unknown dtype", got=repr(dtype), expected=", ".join(known), hint=hint, where=author_line()
    )


def _cast_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    require("cast", types, (DType.FLOAT,))
    if attrs["dtype"] not in STORE_DTYPES:
        raise unknown_dtype("cast", attrs["dtype"], STORE_DTYPES)
    return types[0]


def round_to(torch: Any, x: Any, dtype: str, saturate: bool) -> Any:
    """`x` in the torch dtype named. An fp8 dtype clips to its largest finite value if asked; NaN stays NaN.

    Unasked, what is too large becomes infinity in e5m2 and NaN in e4m3fn, which has no infinity: some builds of torch
    clip there whatever one asks, so it is spelled out (464 is halfway between 448 and the next step, and rounds down).
    """
    target = getattr(torch, dtype)
    if saturate and dtype.startswith("float8"):
        limit = torch.finfo(target).max
        x = x.clamp(-limit, limit)
    elif dtype == "float8_e4m3fn":
        x = torch.where(x.abs() > 464, float("nan"), x)
    return x.to(target)


def _cast(e: Any, x: Any, dtype: str) -> Any:
    return round_to(e.torch, x, dtype, True).to(e.dtype) if e.rounds else x


register(Op("cast", 1, _cast_rule, _cast, "{0}→{dtype}", takes=DType.FLOAT))


def cast(x: Operand, dtype: str) -> Value:
    """Round to `dtype` and go on in the compute dtype: the only rounding that is not at a store. fp8 saturates."""
    return apply("cast", x, dtype=dtype)


# adjacent pairs ---------------------------------------------------------------------------------------------------


def _unpair_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    (t,) = types
    if t.kind not in (Kind.TILE, Kind.ROW):
        raise KindMismatch("unpair takes a tile or a row", got=str(t))
    if t.finished:
        raise KindMismatch("unpair takes a value of the running tile", got=str(t), hint="unpair before the reduction")
    if t.width / 2 not in WIDTHS:
        raise WidthMismatch("unpair would go below width 1/2", got=str(t), hint="unpair once; widths are 1/2, 1 and 2")
    return replace(t, width=t.width / 2)


def _pair_rule(types: Sequence[Type], attrs: Attrs) -> Type:
    if types[0].dtype is not types[1].dtype:
        raise DTypeMismatch("pair: the halves differ", got=f"{types[0]} and {types[1]}", expected="one dtype")
    t = broadcast("pair", types)
    if t.kind not in (Kind.TILE, Kind.ROW) or t.finished:
        raise KindMismatch(
            "pair takes tiles and rows", got=f"{types[0]} and {types[1]}", expected="a tile or a row among them"
        )
    if t.width * 2 not in WIDTHS:
        raise WidthMismatch("pair would go above width 2", got=str(t), hint="return the two halves as two outputs")
    return replace(t, width=t.width * 2)


def _pair(e: Any, x: Any, y: Any) -> Any:
    x, y = e.torch.broadcast_tensors(x, y)
    return e.torch.stack([x, y], -1).flatten(-2)


register(Op("unpair", 1, _unpair_rule, lambda e, x, odd: x[:, int(odd) :: 2], "{0}[{odd}::2]", flops=0))
register(Op("pair", 1, _pair_rule, _pair, "interleave({0}, {1})", flops=0))


def unpair(v: Operand) -> tuple[Value, Value]:
    """The even and the odd columns, each of half the width. A tile or a row."""
    return apply("unpair", v, odd=0), apply("unpair", v, odd=1)


def pair(a: Operand, b: Operand) -> Value:
    """Interleave: `a` becomes the even columns and `b` the odd ones, at twice the width."""
    return apply("pair", a, b)


# positions and sizes ----------------------------------------------------------------------------------------------


def _arange(e: Any, count: int) -> Any:
    return e.torch.arange(count, device=e.device)


register(
    Op(
        "row_index",
        1,
        lambda types, attrs: Type(Kind.COL, dtype=DType.INT),
        lambda e: _arange(e, e.m)[:, None],
        "i",
        flops=0,
    )
)
register(
    Op(
        "column_index",
        1,
        lambda types, attrs: Type(Kind.ROW, checked_width(str(attrs.get("width", "1")), "column_index"), DType.INT),
        lambda e, width: _arange(e, int(Fraction(width) * e.n))[None],
        "j",
        flops=0,
    )
)
for _name, _symbol in (("rows", "M"), ("columns", "N")):
    register(
        Op(
            _name,
            1,
            lambda types, attrs: Type(Kind.SCALAR, dtype=DType.INT),
            (lambda e: _const(e, int(e.m))) if _name == "rows" else (lambda e: _const(e, int(e.n))),
            _symbol,
            flops=0,
        )
    )


def row_index() -> Value:
    """The row number of each row: an int col."""
    return apply("row_index")


def column_index(width: float | Fraction = 1) -> Value:
    """The column number of each column of a value of that width: an int row."""
    return apply("column_index", width=str(Fraction(width)))


def rows() -> Value:
    """M as an int scalar."""
    return apply("rows")


def columns() -> Value:
    """N as an int scalar (of width 1)."""
    return apply("columns")
