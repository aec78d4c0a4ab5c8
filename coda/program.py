"""`EpilogueProgram`: a kernel as data.

    Operand, Output     what goes in and out, by name
    EpilogueProgram     operands, nodes, outputs; JSON both ways; digest; dtype and shape of every output

A program is made by `coda.tracing` from a function, or read from JSON; both rebuild the graph node by node through the
operations' own rules, so a program that exists is well typed. `coda.evaluate` computes it, `coda.explain` writes it
down and counts its cost. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from coda.errors import BadArgument, BadOutputs, BadSignature, CodaError, FormatError, ShapeMismatch
from coda.primitives.map import STORE_DTYPES
from coda.primitives.tile import INT_DTYPES
from coda.primitives.types import WIDTHS, Attr, DType, Kind, Type
from coda.primitives.value import OPS, Graph, Node, encode
from coda.problem import Problem, compute_dtype

if TYPE_CHECKING:
    from coda.explain import Cost

FORMAT = "coda.program/1"
REFUSED_NAMES = ("a", "b", "acc", "out", "backend", "config")
"""Names that operands and outputs may not have: they belong to the call."""


def check_name(name: str, what: str) -> None:
    """Raise `BadSignature` for a name that an operand or output may not have."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name in REFUSED_NAMES:
        raise BadSignature(
            f"{what}: this name cannot be used",
            got=repr(name),
            expected=f"an identifier without leading underscore, not one of {', '.join(REFUSED_NAMES)}",
            hint="rename it, also where a plan reads it: these names belong to every call, of inner programs too",
        )


@dataclass(frozen=True)
class Operand:
    """One input besides `a` and `b`."""

    name: str
    kind: Kind
    width: Fraction = Fraction(1)
    period: int = 0
    """Length of a row that repeats along the columns; 0 for a whole one."""
    dtype: DType = DType.FLOAT
    default: int | float | None = None
    """Of a scalar."""

    def shape(self, m: int, n: int) -> tuple[int, ...]:
        """Shape of the tensor that belongs to it."""
        if self.kind is Kind.TILE:
            return (m, int(self.width * n))
        if self.kind is Kind.COL:
            return (m,)
        if self.kind is Kind.ROW:
            return (self.period or int(self.width * n),)
        return ()

    def node_attrs(self) -> dict[str, Attr]:
        """The attributes of its node."""
        return {
            "name": self.name,
            "kind": str(self.kind),
            "width": str(self.width),
            "dtype": str(self.dtype),
            "period": self.period,
        }


@dataclass(frozen=True)
class Output:
    """One result: which node, and the dtype it is stored in (None: the default rule)."""

    name: str
    node: int
    dtype: str | None = None
    saturate: bool = True


@dataclass(frozen=True)
class EpilogueProgram:
    """What runs after one GEMM (`kind="epilogue"`) or on tensors alone (`kind="pointwise"`)."""

    name: str
    kind: Literal["epilogue", "pointwise"]
    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    fast_math: bool = False
    doc: str = field(default="", compare=False)

    # names, shapes, dtypes ------------------------------------------------------------------------------------
    def operand(self, name: str) -> Operand:
        """One operand by name."""
        return next(o for o in self.operands if o.name == name)

    @property
    def first_tile(self) -> Operand | None:
        """The tile that decides N and the default dtype of a pointwise program."""
        return next((o for o in self.operands if o.kind is Kind.TILE), None)

    def output_type(self, name: str) -> Type:
        """Type of one output."""
        return self.nodes[next(o.node for o in self.outputs if o.name == name)].type

    def output_dtype(self, name: str, dtype: str) -> str:
        """Name of the dtype that an output is stored in where `a` (or the first tile) has `dtype`."""
        output = next(o for o in self.outputs if o.name == name)
        if output.dtype is not None:
            return output.dtype
        return dtype if self.nodes[output.node].type.kind is Kind.TILE else compute_dtype(dtype)

    def output_axes(self, name: str) -> tuple[bool, Fraction]:
        """Whether an output has rows, and its columns as a fraction of N; 0 of what has none."""
        t = self.output_type(name)
        part = t.width / t.size if t.kind is Kind.SEGMENT else t.width
        return t.kind is not Kind.ROW, Fraction(0) if t.kind is Kind.COL else part

    def output_shape(self, name: str, m: int, n: int) -> tuple[int, ...]:
        """Shape of one output."""
        rows, part = self.output_axes(name)
        return shape_of(rows, part.numerator, part.denominator, m, n)

    @property
    def decides_columns(self) -> tuple[str, Fraction]:
        """The input that decides N, and its columns as a fraction of N."""
        first = self.first_tile
        return ("b", Fraction(1)) if self.kind == "epilogue" or first is None else (first.name, first.width)

    @property
    def argument_names(self) -> list[str]:
        """Every argument of a call: `a` and `b` of an epilogue, then the operands in order."""
        return [*(("a", "b") if self.kind == "epilogue" else ()), *(o.name for o in self.operands)]

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int]:
        """M, N and K (0 for a pointwise) from the shapes of `a` and `b`, or of the first tile. Raises `ShapeMismatch`."""
        if self.kind == "epilogue":
            a, b = shapes["a"], shapes["b"]
            for name, shape in (("a", a), ("b", b)):
                if len(shape) != 2:
                    fold = f"{name}.flatten(0, -2) folds batches into rows" if name == "a" and len(shape) > 2 else None
                    raise ShapeMismatch(f"{self.name}: {name} is not a matrix", got=shape, hint=fold)
            if a[1] != b[0]:
                hint = "b is (K, N): a linear layer passes weight.mT" if a[1] == b[1] else None
                raise ShapeMismatch(
                    f"{self.name}: the contraction does not fit",
                    got=f"a {a}, b {b}",
                    expected="(M, K) and (K, N)",
                    hint=hint,
                )
            return a[0], b[1], a[1]
        first = self.first_tile
        assert first is not None
        shape = shapes[first.name]
        if len(shape) != 2 or (shape[1] / first.width).denominator != 1:
            raise ShapeMismatch(f"{self.name}: {first.name}", got=shape, expected=f"(M, {first.width}·N)")
        return shape[0], int(shape[1] / first.width), 0

    def check_sizes(self, n: int) -> None:
        """Raise `ShapeMismatch` where N does not fit a half width, a segment size or a period."""
        for node in self.nodes:
            t = node.type
            if t.kind in (Kind.ROW, Kind.TILE, Kind.SEGMENT) and (t.width * n).denominator != 1:
                raise ShapeMismatch(f"{self.name}: columns do not come in pairs", got=f"N = {n}", expected="an even N")
            if t.kind is Kind.SEGMENT and int(t.width * n) % t.size:
                raise ShapeMismatch(
                    f"{self.name}: the segment size does not divide the columns",
                    got=f"{int(t.width * n)} columns",
                    expected=f"a multiple of {t.size}",
                )
        for operand in self.operands:
            if operand.period and int(operand.width * n) % operand.period:
                raise ShapeMismatch(
                    f"{self.name}: {operand.name} does not repeat evenly",
                    got=f"{int(operand.width * n)} columns",
                    expected=f"a multiple of the period {operand.period}",
                )

    def select(self, names: Iterable[str]) -> EpilogueProgram:
        """The program that computes only these outputs; its operands stay. An unused operand is not loaded."""
        wanted = set(names)
        outputs = [o for o in self.outputs if o.name in wanted]
        graph = Graph()
        place: dict[int, int] = {}
        for index in live_nodes(self.nodes, (o.node for o in outputs)):
            node = self.nodes[index]
            place[index] = graph.add(node.op, tuple(place[i] for i in node.args), dict(node.attrs))
        kept = tuple(Output(o.name, place[o.node], o.dtype, o.saturate) for o in outputs)
        return EpilogueProgram(self.name, self.kind, self.operands, tuple(graph.nodes), kept, self.fast_math, self.doc)

    # identity -------------------------------------------------------------------------------------------------
    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of what the program computes.

        Only nodes that reach an output count, each by its operation, semantic version, exact attributes and arguments
        (sorted where the operation commutes). Operand and output names are part of it, their order is not; name,
        docstring and order of statements are not.
        """
        hashes: dict[int, str] = {}
        for index in live_nodes(self.nodes, (o.node for o in self.outputs)):
            node = self.nodes[index]
            op = OPS[node.op]
            args = [hashes[i] for i in node.args]
            attrs = ",".join(f"{k}={encode(v)}" for k, v in node.attrs)
            text = f"{op.name}/{op.version}({','.join(sorted(args) if op.commutative else args)};{attrs})"
            hashes[index] = hashlib.sha256(text.encode()).hexdigest()
        first = self.first_tile.name if self.kind == "pointwise" and self.first_tile else ""
        lines = [FORMAT, self.kind, first, f"fast_math={self.fast_math}"]
        for o in sorted(self.operands, key=lambda o: o.name):
            default = "" if o.default is None else encode(o.default)
            lines.append(f"in {o.name} {o.kind} {o.width} {o.period} {o.dtype} {default}")
        for out in sorted(self.outputs, key=lambda o: o.name):
            lines.append(f"out {out.name} {hashes[out.node]} {out.dtype} {out.saturate}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    # JSON -----------------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, versioned."""
        return {
            "format": FORMAT,
            "name": self.name,
            "kind": self.kind,
            "doc": self.doc,
            "fast_math": self.fast_math,
            "operands": [
                {
                    "name": o.name,
                    "kind": str(o.kind),
                    "width": str(o.width),
                    "period": o.period,
                    "dtype": str(o.dtype),
                    "default": None if o.default is None else encode(o.default),
                }
                for o in self.operands
            ],
            "nodes": [
                {"op": n.op, "v": OPS[n.op].version, "args": list(n.args), "attrs": {k: encode(v) for k, v in n.attrs}}
                for n in self.nodes
            ],
            "outputs": [
                {"name": o.name, "node": o.node, "dtype": o.dtype, "saturate": o.saturate} for o in self.outputs
            ],
        }

    def to_json(self) -> str:
        """The program as text; `from_json` gives an equal one."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> EpilogueProgram:
        """Read a program. Raises `FormatError` for anything that is not one, of this version, well typed."""
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EpilogueProgram:
        """Read a program from plain JSON; strict, see `from_json`."""
        if data.get("format") != FORMAT:
            raise FormatError("not a program of this version", got=repr(data.get("format")), expected=repr(FORMAT))
        try:
            return _read(cls, data)
        except FormatError:
            raise
        except CodaError as error:
            raise FormatError(
                f"the program is not well typed: {error.what}", got=error.got, expected=error.expected
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            raise FormatError("the program is malformed", got=f"{type(error).__name__}: {error}") from error

    # what others compute of it --------------------------------------------------------------------------------
    def explain(self, problem: Problem | None = None) -> str:
        """Formula, shapes, primitives by class, flops and mandatory bytes, as text."""
        from coda.explain import explain

        return explain(self, problem)

    def cost(self, problem: Problem) -> Cost:
        """Flops and mandatory bytes on a problem."""
        from coda.explain import cost

        return cost(self, problem)

    def reference(self, *args: Any, dtype: Any = None, **operands: Any) -> dict[str, Any]:
        """Every output by name, computed in `dtype` (torch.float64 if None) without any rounding.

        Arguments as in a call: `(a, b, **operands)` for an epilogue, operands in order or by name for a pointwise.
        """
        from coda.evaluate import reference

        return reference(self, args, operands, dtype)


def shape_of(rows: bool, numerator: int, denominator: int, m: int, n: int) -> tuple[int, ...]:
    """The shape of an output with these axes (`EpilogueProgram.output_axes`); M and N may be symbolic."""
    columns = (n * numerator // denominator,) if numerator else ()
    return (m, *columns) if rows else columns


def live_nodes(nodes: tuple[Node, ...], roots: Iterable[int]) -> list[int]:
    """Indices of the nodes that the roots depend on, in order."""
    live: set[int] = set()
    stack = list(roots)
    while stack:
        index = stack.pop()
        if index not in live:
            live.add(index)
            stack.extend(nodes[index].args)
    return sorted(live)


def check_outputs(name: str, graph: Graph, outputs: Iterable[Output]) -> None:
    """Raise `BadOutputs` for what cannot be stored."""
    outputs = list(outputs)
    if not outputs:
        raise BadOutputs(f"{name} returns nothing", expected="a dictionary of at least one output")
    if len({o.name for o in outputs}) != len(outputs):
        raise BadOutputs(f"{name}: an output name is used twice")
    for o in outputs:
        t = graph.nodes[o.node].type
        if t.kind is Kind.SCALAR:
            raise BadOutputs(f"{name}: output {o.name!r} is a scalar", expected="a tile, segment, col or row value")
        if t.dtype is DType.BOOL:
            raise BadOutputs(f"{name}: output {o.name!r} is a condition", hint="return where(condition, 1.0, 0.0)")
        if o.dtype in INT_DTYPES and t.dtype is not DType.INT:
            raise BadOutputs(
                f"{name}: output {o.name!r} is a float",
                got=f"dtype {o.dtype}",
                hint="only int values are stored as ints",
            )
        if o.dtype is not None and o.dtype not in STORE_DTYPES + INT_DTYPES:
            raise BadOutputs(f"{name}: output {o.name!r}", got=f"dtype {o.dtype!r}", expected=", ".join(STORE_DTYPES))


def encoded_attr(text: str) -> Attr:
    """The inverse of `encode`."""
    kind, _, value = text.partition(":")
    if kind == "bool" and value in ("True", "False"):
        return value == "True"
    if kind == "int":
        return int(value)
    if kind == "float":
        return float.fromhex(value)
    if kind == "str":
        return value
    raise FormatError("an attribute is malformed", got=repr(text)[:60])


def parse_json(text: str) -> dict[str, Any]:
    """A JSON object, or `FormatError`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("not JSON", got=f"{type(error).__name__}: {error}") from error
    if not isinstance(data, dict):
        raise FormatError("not a JSON object", got=type(data).__name__)
    return data


def exact_keys(data: Any, keys: Iterable[str], what: str) -> Mapping[str, Any]:
    """`data` if it is an object with exactly these keys, else `FormatError`."""
    if not isinstance(data, dict) or set(data) != set(keys):
        got = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise FormatError(f"{what}: wrong fields", got=got, expected=sorted(keys))
    return data


def _read(cls: type[EpilogueProgram], data: Mapping[str, Any]) -> EpilogueProgram:
    exact_keys(data, ("format", "name", "kind", "doc", "fast_math", "operands", "nodes", "outputs"), "program")
    if data["kind"] not in ("epilogue", "pointwise") or not isinstance(data["fast_math"], bool):
        raise FormatError("program: kind or fast_math", got=f"{data['kind']!r}, {data['fast_math']!r}")
    operands = tuple(_read_operand(o) for o in data["operands"])
    if len({o.name for o in operands}) != len(operands):
        raise FormatError("program: an operand name is used twice")
    graph = Graph()
    declared = {o.name: o.node_attrs() for o in operands}
    for position, raw in enumerate(data["nodes"]):
        exact_keys(raw, ("op", "v", "args", "attrs"), f"node {position}")
        attrs = {name: encoded_attr(value) for name, value in raw["attrs"].items()}
        op = OPS.get(raw["op"])
        if op is None or op.version != raw["v"]:
            raise FormatError(f"node {position}: unknown operation", got=f"{raw['op']!r} version {raw['v']!r}")
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < position for i in raw["args"]):
            raise FormatError(f"node {position}: an argument is not an earlier node", got=raw["args"])
        if op.name == "operand" and attrs != declared.get(str(attrs.get("name"))):
            raise FormatError(f"node {position}: an operand that is not declared", got=attrs)
        if op.name == "acc" and data["kind"] == "pointwise":
            raise FormatError("a pointwise program has no accumulator")
        if graph.add(op.name, tuple(raw["args"]), attrs) != position:
            raise FormatError(f"node {position} repeats an earlier one")
    outputs = tuple(Output(**exact_keys(o, ("name", "node", "dtype", "saturate"), "output")) for o in data["outputs"])
    for o in outputs:
        check_name(o.name, "output")
        if isinstance(o.node, bool) or not 0 <= o.node < len(graph.nodes) or not isinstance(o.saturate, bool):
            raise FormatError(f"output {o.name!r}: no such node, or a bad flag", got=f"{o.node!r}, {o.saturate!r}")
    check_outputs(str(data["name"]), graph, outputs)
    if data["kind"] == "pointwise" and not any(o.kind is Kind.TILE for o in operands):
        raise BadArgument("a pointwise program needs a tile")
    return cls(
        str(data["name"]), data["kind"], operands, tuple(graph.nodes), outputs, data["fast_math"], str(data["doc"])
    )


def _read_operand(raw: Any) -> Operand:
    exact_keys(raw, ("name", "kind", "width", "period", "dtype", "default"), "operand")
    check_name(raw["name"], "operand")
    default = None if raw["default"] is None else encoded_attr(raw["default"])
    period, width = raw["period"], Fraction(raw["width"])
    if isinstance(default, (bool, str)) or type(period) is not int or period < 0 or width not in WIDTHS:
        raise FormatError(f"operand {raw['name']!r}: default, period or width", got=f"{default!r}, {period!r}, {width}")
    return Operand(raw["name"], Kind(raw["kind"]), width, period, DType(raw["dtype"]), default)
