"""The vocabulary of traced programs: operations, nodes and the values that an author handles.

    Op     one operation: rule for the result's type, fp64 reference, cost, formula, semantic version
    OPS    every operation by name; the sibling modules fill it, one file per class of primitives
    Graph  a straight list of Nodes; equal nodes are one node, so common subexpressions never exist twice
    Value  what the author's function sees; Python operators on it add nodes

`apply(name, *args, **attrs)` is the single way in: it lifts numbers, converts int to float where the operation
computes in floating point, asks the operation's rule for the result's type and adds the node. Nothing here imports
torch; an operation's `reference` receives it inside an `Evaluation`.
"""

from __future__ import annotations

import math
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeAlias, cast

from coda.errors import (
    AuthoringError,
    BadArgument,
    CodaError,
    DTypeMismatch,
    ProgramTooLarge,
    TracedControlFlow,
    UnknownPrimitive,
    near,
    shown,
)
from coda.primitives.instead import OPERATORS, instead, plain
from coda.primitives.types import Attr, Attrs, DType, Type

MAX_NODES = 512


class Evaluation(Protocol):
    """What an operation's `reference` may use: torch and the sizes at hand."""

    torch: Any
    m: int
    n: int
    dtype: Any
    """The compute dtype."""
    device: Any
    rounds: bool
    """Whether stores and casts round; the fp64 reference never does."""


Rule: TypeAlias = Callable[[Sequence[Type], Attrs], Type]


@dataclass(frozen=True)
class Op:
    """One operation of the closed list."""

    name: str
    primitive_class: int
    """1 map, 2 vector, 3 tile, 4 reduction, 5 stateful transform."""
    rule: Rule
    """Type of the result from the types of the arguments; raises an `AuthoringError`."""
    reference: Callable[..., Any]
    """`reference(evaluation, *tensors, **attrs)` in the evaluation's dtype; rows are (1, C), columns (M, 1)."""
    formula: str
    """How `explain()` writes it: `{0}`, `{1}` are arguments, other fields are attributes."""
    flops: float = 1
    """Floating-point operations per element of the larger side."""
    takes: DType | None = None
    """FLOAT converts every int argument; None converts ints only beside a float; INT converts nothing."""
    exact: tuple[int, ...] = ()
    """Positions of arguments that keep their dtype (an index)."""
    version: int = 1
    """Goes up when the meaning changes: part of every digest."""
    commutative: bool = False


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add an operation to the closed list. A name is taken once."""
    if op.name in OPS:
        raise ValueError(f"operation {op.name!r} is registered twice")
    OPS[op.name] = op
    return op


def encode(value: Attr) -> str:
    """An attribute as text that tells 1 from 1.0 from True and every float from every other, -0.0 and NaN included."""
    if isinstance(value, bool):
        return f"bool:{value}"
    if isinstance(value, float):
        return f"float:{'nan' if math.isnan(value) else value.hex()}"
    return f"{type(value).__name__}:{value}"


@dataclass(frozen=True)
class Node:
    """One operation applied to earlier nodes; `attrs` is sorted by name."""

    op: str
    args: tuple[int, ...]
    attrs: tuple[tuple[str, Attr], ...]
    type: Type = field(compare=False)

    @property
    def key(self) -> str:
        """Equal keys compute equal values."""
        attrs = ",".join(f"{name}={encode(value)}" for name, value in self.attrs)
        return f"{self.op}({','.join(map(str, self.args))};{attrs})"

    def attr(self, name: str) -> Attr:
        """One attribute by name."""
        return dict(self.attrs)[name]


class Graph:
    """The nodes of a program under construction, in an order in which arguments come first."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._index: dict[str, int] = {}

    def add(self, op: str, args: tuple[int, ...], attrs: Attrs) -> int:
        """Index of the node, new or already there. Raises what the operation's rule raises."""
        rule = OPS[op].rule
        node = Node(op, args, tuple(sorted(attrs.items())), rule([self.nodes[i].type for i in args], attrs))
        known = self._index.get(node.key)
        if known is not None:
            return known
        if len(self.nodes) >= MAX_NODES:
            raise ProgramTooLarge(
                "the program is too large",
                got=f"more than {MAX_NODES} nodes",
                expected=f"at most {MAX_NODES}",
                hint="split it into a plan of several programs, or shorten a loop over constants",
                where=author_line(),
            )
        self.nodes.append(node)
        self._index[node.key] = len(self.nodes) - 1
        return len(self.nodes) - 1


_ACTIVE: ContextVar[Graph | None] = ContextVar("coda_graph", default=None)


@contextmanager
def tracing(graph: Graph) -> Iterator[Graph]:
    """Make `graph` the one that primitives without a traced argument add to."""
    token = _ACTIVE.set(graph)
    try:
        yield graph
    finally:
        _ACTIVE.reset(token)


def author_line() -> str | None:
    """ "file.py:12" of the innermost frame outside this package, and outside those that an author may have called with a
    traced value: the author's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ("coda", "torch", "numpy"):
        frame = frame.f_back
    return f"{pathlib.PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else None


def _control_flow(what: str, instead: str) -> NoReturn:
    raise TracedControlFlow(
        f"{what} on a traced value: its value is not known while the program is traced",
        hint=instead,
        where=author_line(),
    )


class Value:
    """A traced value: arithmetic, comparison and `& | ~` on it add nodes; asking for its truth or number raises."""

    __slots__ = ("graph", "index")

    def __init__(self, graph: Graph, index: int) -> None:
        self.graph, self.index = graph, index

    @property
    def type(self) -> Type:
        """Kind, width, dtype and phase."""
        return self.graph.nodes[self.index].type

    def __repr__(self) -> str:
        return f"<{self.type}>"

    # arithmetic -----------------------------------------------------------------------------------------------
    def __add__(self, other: Operand) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return apply("div", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return apply("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return apply("floordiv", other, self)

    def __mod__(self, other: Operand) -> Value:
        return apply("mod", self, other)

    def __rmod__(self, other: Operand) -> Value:
        return apply("mod", other, self)

    def __pow__(self, power: int) -> Value:
        return integer_power(self, power)

    def __rpow__(self, base: object) -> Value:
        return integer_power(base, self)  # type: ignore[arg-type]  # which says what a power is

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __round__(self, digits: int = 0) -> Value:
        if digits:
            raise BadArgument(
                "round() takes no digits here", got=digits, hint="round(x * 10**d) / 10**d", where=author_line()
            )
        return apply("round", self)

    # comparison and logic ---------------------------------------------------------------------------------------
    def __lt__(self, other: Operand) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return apply("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return apply("ge", self, other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return apply("eq", self, _operand(other))

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return apply("ne", self, _operand(other))

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Value:
        return apply("and", self, other)

    def __rand__(self, other: Operand) -> Value:
        return apply("and", other, self)

    def __or__(self, other: Operand) -> Value:
        return apply("or", self, other)

    def __ror__(self, other: Operand) -> Value:
        return apply("or", other, self)

    def __invert__(self) -> Value:
        return apply("not", self)

    # what Python would need a number for ------------------------------------------------------------------------
    def __bool__(self) -> bool:
        _control_flow(
            "`if`, `and`, `or`, `not`, `min`, `max` or a chained comparison",
            "write where(condition, a, b), `&`, `|`, `~`, minimum(a, b) or maximum(a, b)",
        )

    def __float__(self) -> float:
        _control_flow("float() or a function of `math`", "use the primitive of the same name from coda.primitives")

    __int__ = __float__
    __index__ = __float__

    def __len__(self) -> int:
        _control_flow(
            "len(), torch.tensor() or torch.as_tensor()",
            "columns() and rows() are the sizes as scalars; a value is used as it is",
        )

    def __iter__(self) -> Iterator[Value]:
        _control_flow(
            "iteration or unpacking", "unpair(v) gives the even and odd columns; row_moments(v) gives two values"
        )

    def __contains__(self, item: object) -> bool:
        _control_flow("`in`", "compare element by element: (v == a) | (v == b)")

    def __getitem__(self, item: object) -> Value:
        _control_flow(
            "indexing", "a program is tile-local: unpair(v) splits columns, select_column(v, index) picks one"
        )

    def __matmul__(self, other: object) -> Value:
        raise AuthoringError(
            "`@` inside a program: a program has one GEMM, whose result is `acc`",
            hint="write a @coda.plan that calls two programs, or coda.matmul there",
            where=author_line(),
        )

    __rmatmul__ = __matmul__

    # what a tensor has and a value has not ------------------------------------------------------------------------
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # a protocol that somebody asks for
            raise AttributeError(name)
        _no_tensor(f"`.{name}` of a traced value", name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        if plain(name) in OPERATORS:
            for x in args:
                _operand(x)  # `tensor * v` is the same mistake as `v * tensor`
        _no_tensor(f"torch's {name}() on a traced value", name)

    # numpy asks this also of `numpy.float32(2) * v`, which is a number times `v`
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Value:
        name = ufunc.__name__
        if name not in OPERATORS or method != "__call__" or kwargs:
            _no_tensor(f"numpy's {name}() on a traced value", name)
        return cast("Value", OPERATORS[name](*map(_operand, inputs)))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        _no_tensor(f"numpy's {function.__name__}() on a traced value", function.__name__)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _control_flow(
            "np.asarray() or np.array()", "compute with the value itself: operators, and functions of coda.primitives"
        )


Operand: TypeAlias = Value | int | float | bool


def _no_tensor(what: str, name: str) -> NoReturn:
    from coda.primitives import FUNCTIONS  # which is made of modules that need this one

    raise UnknownPrimitive(
        f"{what}: it is no tensor",
        expected="operators, and functions of coda.primitives",
        hint=instead(name, FUNCTIONS),
        where=author_line(),
    )


def unboxed(x: object) -> object:
    """A number of numpy, also as an array without dimensions, as Python's; anything else as it is."""
    numpy = sys.modules.get("numpy")  # without it, nothing is its number
    return x.item() if numpy is not None and isinstance(x, (numpy.generic, numpy.ndarray)) and not x.ndim else x


def _operand(x: object) -> Operand:
    x = unboxed(x)
    if isinstance(x, (Value, bool, int, float)):
        return x
    hint = None
    if hasattr(type(x), "shape"):
        hint = "pass it as an operand of the kernel: a parameter annotated Tile, RowVector, ColVector or Scalar"
        if getattr(x, "shape", None) == () and type(x).__module__ == "numpy":  # a number that Python has not
            hint = "use a Python number: float(x)"
    raise AuthoringError(
        "not something a program can compute with",
        got=shown(x),
        expected="a traced value or a number",
        hint=hint,
        where=author_line(),
    )


def integer_power(x: Value, power: int) -> Value:
    """`x ** power` by repeated squaring; a negative power is the reciprocal."""
    power = unboxed(power)  # type: ignore[assignment]  # which is asked next
    if isinstance(power, bool) or not isinstance(power, int) or power == 0 or abs(power) > 64:
        raise BadArgument(
            "`**` takes a constant integer power",
            got=repr(power),
            expected="-64 to 64 without 0",
            hint="use sqrt(x), rsqrt(x) or exp2(p * log2(x)) for other powers",
            where=author_line(),
        )
    result: Value | None = None
    square, rest = x, abs(power)
    while rest:
        if rest & 1:
            result = square if result is None else result * square
        rest >>= 1
        if rest:
            square = square * square
    assert result is not None
    return result if power > 0 else 1 / result


def apply(name: str, *args: Any, **attrs: Attr) -> Value:
    """Add the operation `name` to the graph of its arguments (or to the one being traced) and return its value.

    An argument that is neither a `Value` nor a number may bring its own `__coda_apply__(name, args, attrs)`: that is how
    vectors of a plan are computed with the same spelling.
    """
    for x in args:
        takes_over = getattr(x, "__coda_apply__", None)
        if takes_over is not None:
            return cast("Value", takes_over(name, args, attrs))
    op = OPS.get(name)
    if op is None:
        raise UnknownPrimitive(f"no operation {name!r}", hint=near(name, OPS), where=author_line())
    graph = _graph_of(args)
    values: list[Value] = []
    try:
        values = [_lift(graph, _operand(x)) for x in args]
        values = promoted(op, values)
        return Value(graph, graph.add(name, tuple(v.index for v in values), attrs))
    except CodaError as error:
        located = _located(error)
        if isinstance(located, DTypeMismatch):
            # an operation with an index can only want an integer there; any other may want one everywhere
            blamed = [v for i, v in enumerate(values) if not op.exact or i in op.exact]
            located.float_operands = frozenset().union(*(float_operands(graph, v.index) for v in blamed))
        raise located from None


def float_operands(graph: Graph, index: int) -> set[str]:
    """Names of the float operands that a value depends on."""
    seen: set[int] = set()
    stack, names = [index], set()
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        node = graph.nodes[i]
        if node.op == "operand" and node.type.dtype is DType.FLOAT:
            names.add(str(node.attr("name")))
        stack.extend(node.args)
    return names


def _graph_of(args: Sequence[Any]) -> Graph:
    graphs = {id(x.graph): x.graph for x in args if isinstance(x, Value)}
    active = _ACTIVE.get()
    if active is not None:
        graphs.setdefault(id(active), active)
    if len(graphs) == 1:
        return next(iter(graphs.values()))
    if graphs:
        raise AuthoringError(
            "a value of another program",
            hint="pass it as an operand; a value cannot leave the function that made it",
            where=author_line(),
        )
    raise AuthoringError(
        "a primitive was called outside a program",
        hint="primitives work inside a function under @coda.epilogue or @coda.pointwise",
        where=author_line(),
    )


def _located(error: CodaError) -> CodaError:
    """The same error with the author's line, if it has none yet."""
    if error.where is not None:
        return error
    return type(error)(error.what, got=error.got, expected=error.expected, hint=error.hint, where=author_line())


def _lift(graph: Graph, x: Operand) -> Value:
    if isinstance(x, Value):
        return x
    return Value(graph, graph.add("const", (), {"value": x}))


def promoted(op: Op, values: Sequence[Value]) -> list[Value]:
    """The arguments in the dtype that the operation computes in: int becomes float beside a float."""
    numeric = [v for i, v in enumerate(values) if v.type.dtype is not DType.BOOL and i not in op.exact]
    to_float = op.takes is DType.FLOAT or (op.takes is None and any(v.type.dtype is DType.FLOAT for v in numeric))
    if not to_float:
        return list(values)
    out = []
    for i, v in enumerate(values):
        if v.type.dtype is DType.INT and i not in op.exact:
            node = v.graph.nodes[v.index]
            if node.op == "const":  # a literal 1 beside a float is 1.0: the program stays free of conversions
                v = Value(v.graph, v.graph.add("const", (), {"value": float(node.attr("value"))}))
            else:
                v = Value(v.graph, v.graph.add("to_float", (v.index,), {}))
        out.append(v)
    return out
