"""A program as quack's front end takes it: one generated function, its operands, its stores and its statistics.

    lower      program, problem, tile -> Lowered; raises `Inexpressible` with the sentence for `supports`
    Lowered    the function's text and what every parameter, store and statistic is: plain data, no device code

The function sees one element of the accumulator ("element"), or one pair of neighbouring columns where the program
unpairs it ("acc_pair"). A value holds one text per column that it covers there, its lanes:

    width of the value     1/2      1        2
    element                 –       1        2  (two 16-bit numbers in one 32-bit element of a view)
    acc_pair                1       2        4

What is loaded is renamed (x_ operands, o_ stores, s_ statistics), since quack's calls take names of their own.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

from coda.backends.cutedsl import expressions, integers
from coda.backends.finishing.anatomy import Anatomy, Statistic
from coda.backends.finishing.cheaper import cheaper
from coda.primitives.types import DType, Kind, Type
from coda.primitives.value import Node
from coda.problem import Problem
from coda.program import EpilogueProgram, Output

HALF = Fraction(1, 2)
SIXTEEN = ("bfloat16", "float16")
EIGHT = ("float8_e4m3fn", "float8_e5m2")
FOLDS = {"sum": "add", "max": "max", "absmax": "max_abs"}
TILE_COLUMNS = (128, 192, 256)
"""Tiles that the shipped choice takes."""
PART_COLUMNS, PART_ROWS = 32, 128
"""What the size of a part divides, in which quack's epilogue walks over a tile on Hopper: 64 or 128 rows by 16 or 32 columns
(64 or 192 rows of a tile of 192)."""
PLACES = ("row_index", "column_index", "half_index")
"""Vectors of row numbers, of column numbers, and of column numbers of half the width."""
IDENTITY = {"sum": "Float32(0.0)", "max": "Float32(-inf)", "absmax": "Float32(0.0)", "logsumexp": "Float32(-inf)"}


class Inexpressible(Exception):
    """Carries the sentence for `supports`."""


@dataclass(frozen=True)
class Port:
    """One parameter of the function (or, for an index, of a statistic alone)."""

    name: str
    how: str
    """tile, row, col, scalar, index: quack's operator; spread: a shorter row; count: M or N as an int scalar."""
    operand: str = ""
    """Name in the tensors of a launch; "rows" or "columns" of a count; a vector of PLACES, which the launch keeps."""
    view: bool = False
    """The tensor is seen as fp32: two 16-bit numbers of a width-2 value, or an int32, in each element."""
    is_int: bool = False
    half: bool = False
    """Of a spread row: each number for two columns."""
    period: int = 0
    """Of a spread row: its length, where it repeats."""

    @property
    def whole(self) -> int:
        """Columns that a tile must be a multiple of."""
        return self.period * (2 if self.half else 1) or 1


@dataclass(frozen=True)
class Store:
    """One tile output. `name` is "D" or a parameter of quack's."""

    name: str
    output: str
    view: bool = False


@dataclass(frozen=True)
class Sink:
    """One statistic of the running tile."""

    name: str
    statistic: Statistic
    mask: str = ""
    """What is kept out beyond the matrix: nothing "" (no tile reaches there), whole "parts" of a tile, or "elements"."""
    scaled: bool = False
    index: str = ""
    """Name of the port that a selection takes its columns from."""


@dataclass(frozen=True)
class Lowered:
    """What quack's `gemm_epilogue` is called with."""

    function: str
    source: str
    mode: str
    ports: tuple[Port, ...]
    stores: tuple[Store, ...]
    sinks: tuple[Sink, ...]

    @property
    def parameters(self) -> tuple[Port, ...]:
        """The ports that the function sees."""
        return tuple(p for p in self.ports if p.how != "index")


def lower(
    program: EpilogueProgram, problem: Problem, tile_m: int, tile_n: int, version: str, packed: bool = False
) -> Lowered:
    """The program for tiles of this size. `version` names the functions that it calls; `packed`: values come in pairs
    of lanes (Blackwell)."""
    masks = (
        _mask(problem.n, tile_n, None if packed else PART_COLUMNS),
        _mask(problem.m, tile_m, None if packed or tile_m == 192 else PART_ROWS),
    )
    return _lower(program, problem, masks, version, packed)


def _mask(size: int, tile: int, part: int | None) -> str:
    if size % tile == 0:
        return ""
    return "parts" if part and size % part == 0 else "elements"


@functools.lru_cache(maxsize=512)
def _lower(program: EpilogueProgram, problem: Problem, masks: tuple[str, str], version: str, packed: bool) -> Lowered:
    return _Writer(program, problem, masks, version, packed).write()


class _Writer:
    def __init__(
        self, program: EpilogueProgram, problem: Problem, masks: tuple[str, str], version: str, packed: bool
    ) -> None:
        self.program, self.problem, self.version, self.packed = program, problem, version, packed
        self.masks = dict(zip(("row", "col"), masks, strict=True))
        """By the axis of a statistic."""
        self.anatomy = Anatomy(program)
        self.nodes = program.nodes
        self.in_tile = self.anatomy.in_tile
        wide = [self.nodes[i].type for i in self.in_tile if self.nodes[i].type.kind in (Kind.TILE, Kind.ROW)]
        self.pairs = any(t.width == HALF for t in wide)
        self.unit = HALF if self.pairs else Fraction(1)
        self.lines: list[str] = []
        self.ports: dict[tuple[str, str], Port] = {}
        self.lanes: dict[int, list[str]] = {}

    # the whole ------------------------------------------------------------------------------------------------------
    def write(self) -> Lowered:
        """Everything."""
        self.converted = self._converted()
        try:
            integers.intervals(self.program, self.problem, self._computed_ints(), self.converted)
        except integers.TooWide as error:
            raise Inexpressible(str(error)) from error
        for i in self.in_tile:
            if i not in self.index_only:
                self.lanes[i] = self._value(i, self.nodes[i])
        stores, results = self._stores()
        sinks = tuple(self._sink(s, number, results) for number, s in enumerate(self.anatomy.statistics))
        ports = tuple(self.ports.values())
        return self._function(ports, stores, sinks, results)

    @functools.cached_property
    def index_only(self) -> frozenset[int]:
        """Nodes that only say which column is selected: the statistic reads those itself."""
        needed: set[int] = set()
        stack = [o.node for o in self.anatomy.tile_outputs] + [s.source for s in self.anatomy.statistics]
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack.extend(self.nodes[i].args)
        return frozenset(self.in_tile) - needed

    def _computed_ints(self) -> list[int]:
        return [i for i in self.in_tile if i not in self.index_only]

    def _converted(self) -> frozenset[str]:
        """Int vectors that are only turned into floats: the loader does it, from any integer dtype."""
        uses: dict[str, set[str]] = {}
        for i in self.in_tile:
            if i in self.index_only:
                continue
            for j in self.nodes[i].args:
                node = self.nodes[j]
                if node.op == "operand" and node.type.dtype is DType.INT and node.type.kind is not Kind.SCALAR:
                    uses.setdefault(str(node.attr("name")), set()).add(self.nodes[i].op)
        return frozenset(name for name, ops in uses.items() if ops == {"to_float"})

    def _function(
        self, ports: tuple[Port, ...], stores: tuple[Store, ...], sinks: tuple[Sink, ...], results: dict[str, str]
    ) -> Lowered:
        names = [p.name for p in ports if p.how != "index"]
        about = [f"operators  {self.version}"]
        about += [f"{p.name:10} {p.operand}{' as pairs or bits in fp32' if p.view else ''}" for p in ports]
        about += [f"{s.name:10} {s.output}{' as pairs in fp32' if s.view else ''}" for s in stores]
        about += [
            f"{s.name:10} {s.statistic.axis} {s.statistic.fold}{f', {s.mask} masked' if s.mask else ''}" for s in sinks
        ]
        returned = ", ".join(f'"{k}": {v}' for k, v in results.items())
        body = ['"""Generated; do not edit.', "", *about, '"""', *self.lines, f"return {{{returned}}}"]
        text = "\n".join(f"    {line}".rstrip() for line in body)
        mode = "acc_pair" if self.pairs else "element"
        key = hashlib.sha256(f"{mode} {self.packed} {names}\n{text}".encode()).hexdigest()[:16]
        function = f"f_{key}"
        if self.packed and not self.pairs:
            source = _by_lane(
                function, names, [p.how == "scalar" or p.how == "count" for p in ports if p.how != "index"], text
            )
        else:
            source = f"def {function}({', '.join(['acc', *names])}):\n{text}\n"
        source += f"\n\n# program {self.program.name} {self.program.digest}\n"  # not in the function: others share it
        return Lowered(function, source, mode, ports, stores, sinks)

    # values -----------------------------------------------------------------------------------------------------------
    def count(self, t: Type) -> int:
        """Lanes of a value."""
        if t.kind not in (Kind.TILE, Kind.ROW):
            return 1
        lanes = t.width / self.unit
        if lanes.denominator != 1:
            raise Inexpressible("a value of half the width without pairs of accumulator columns")
        return int(lanes)

    def _value(self, i: int, node: Node) -> list[str]:
        if node.type.kind is Kind.SEGMENT or node.op.startswith("segment_"):
            raise Inexpressible(f"{node.op}: segments of columns have no lowering here")
        if node.op == "const":
            return [expressions.literal(node.attr("value"))]
        if node.op == "acc":
            return ["acc.a", "acc.b"] if self.pairs else ["acc"]
        if node.op == "operand":
            return self._operand(i, node)
        if node.op in ("rows", "columns"):
            return [self._port(f"n_{node.op}", "count", node.op, is_int=True)]
        if node.op in ("row_index", "column_index"):
            return self._place(i, node)
        if node.op == "unpair":
            return self.lanes[node.args[0]][int(node.attr("odd")) :: 2]
        if node.op == "pair":
            half = self.count(node.type) // 2
            x, y = (self._spread(j, half) for j in node.args)
            return [lane for both in zip(x, y, strict=True) for lane in both]
        return self._elementwise(i, node)

    def _spread(self, i: int, count: int) -> list[str]:
        lanes = self.lanes[i]
        if self.nodes[i].op == "const":
            lanes = [expressions.typed(lanes[0], self.nodes[i].type.dtype)]
        return lanes * count if len(lanes) == 1 else lanes

    def _elementwise(self, i: int, node: Node) -> list[str]:
        if node.op == "to_float" and self._is_converted(node.args[0]):
            return self.lanes[node.args[0]]
        node = cheaper(self.nodes, node, self.program.fast_math)
        args = [self.nodes[j] for j in node.args]
        count = self.count(node.type)
        known = [a.op == "const" for a in args]
        lanes = [self.lanes[j] for j in node.args]
        if node.op == "div" and known[1] and _exact_reciprocal(args[1].attr("value")):
            node = Node("mul", node.args, (), node.type)
            lanes[1] = [expressions.literal(1.0 / float(args[1].attr("value")))]
        columns = []
        for lane in range(count):
            texts = [x[lane if len(x) > 1 else 0] for x in lanes]
            if known[0] and (all(known) or node.op == "where"):
                texts[0] = expressions.typed(texts[0], args[0].type.dtype)
            numeric = next((a.type.dtype for a in args if a.type.dtype is not DType.BOOL), DType.BOOL)
            try:
                columns.append(expressions.expression(node, texts, numeric, self.program.fast_math))
            except KeyError as error:
                raise Inexpressible(f"{node.op} of {node.type} has no lowering here ({error})") from error
        return self._assign(i, columns)

    def _assign(self, i: int, texts: list[str]) -> list[str]:
        names = [f"v{i}"] if len(texts) == 1 else [f"v{i}_{k}" for k in range(len(texts))]
        self.lines += [f"{name} = {text}" for name, text in zip(names, texts, strict=True)]
        return names

    def _is_converted(self, i: int) -> bool:
        node = self.nodes[i]
        return node.op == "operand" and str(node.attr("name")) in self.converted

    # what is loaded -----------------------------------------------------------------------------------------------------
    def _port(self, name: str, how: str, operand: str, view: bool = False, is_int: bool = False) -> str:
        self.ports.setdefault((name, how), Port(name, how, operand, view, is_int))
        return name

    def _operand(self, i: int, node: Node) -> list[str]:
        name, t = str(node.attr("name")), node.type
        if t.kind is Kind.SCALAR:
            return [self._port(f"x_{name}", "scalar", name, is_int=t.dtype is DType.INT)]
        spec = self.problem.spec(name)
        self._check_loadable(name, t, spec.dtype)
        bits = t.dtype is DType.INT and name not in self.converted
        pairs = t.kind is not Kind.COL and t.width == 2
        if t.kind is Kind.ROW and (node.attr("period") or t.width == HALF):
            port = self._spread_row(name, t, int(node.attr("period")), bits)
        else:
            port = self._port(f"x_{name}", str(t.kind), name, view=bits or pairs)
        lanes = self._lanes_of(port, t)
        if pairs:
            names = [f"v{i}_{k}" for k in range(2 * len(lanes))]
            for k, lane in enumerate(lanes):
                self.lines.append(f"{names[2 * k]}, {names[2 * k + 1]} = split_{spec.dtype}({lane})")
            return names
        return self._assign(i, [f"integer({lane})" for lane in lanes]) if bits else lanes

    def _lanes_of(self, port: str, t: Type) -> list[str]:
        if not self.pairs or t.kind is Kind.COL:
            return [port]
        return [f"{port}.a"] if t.width == HALF else [f"{port}.a", f"{port}.b"]

    def _spread_row(self, name: str, t: Type, period: int, bits: bool) -> str:
        """A row that is shorter than the product's."""
        dtype = self.problem.spec(name).dtype
        if dtype != ("int32" if bits else "float32") or t.width == 2:
            raise Inexpressible(
                f"{name} is spread over the columns and is {dtype}: only float32 and int32 rows are, up to width 1"
            )
        port = Port(f"x_{name}", "spread", name, view=bits, half=t.width == HALF, period=period)
        if all(n % port.whole for n in TILE_COLUMNS):
            raise Inexpressible(f"{name} repeats every {port.whole} columns, which no tile is a multiple of")
        self.ports.setdefault((port.name, port.how), port)
        return port.name

    def _check_loadable(self, name: str, t: Type, dtype: str) -> None:
        if t.kind is Kind.TILE and t.width == HALF:
            raise Inexpressible(f"{name} is a tile of half the width, which the loader of a pair mode reads wrongly")
        if t.kind is not Kind.COL and t.width == 2 and (dtype not in SIXTEEN or t.dtype is DType.INT):
            raise Inexpressible(f"{name} has width 2 and dtype {dtype}: only 16-bit floats travel as pairs")
        floats = ("float32", *SIXTEEN)
        allowed = ("int32", "int64", "uint8") if t.dtype is DType.INT else floats
        if dtype not in allowed:
            raise Inexpressible(f"{name} is {dtype}; a {t.kind} is loaded as {' or '.join(allowed)}")

    def _place(self, i: int, node: Node) -> list[str]:
        """Row or column numbers: a vector that the launch keeps, loaded like any other."""
        if node.op == "row_index":
            return self._assign(i, [f"integer({self._port('n_row_index', 'col', 'row_index', view=True)})"])
        if node.type.width == 2:
            raise Inexpressible("column numbers of twice the product's width have no loader here")
        if node.type.width == HALF:
            port = Port("n_half_index", "spread", "half_index", view=True, half=True)
            self.ports.setdefault((port.name, port.how), port)
            lanes = self._lanes_of(port.name, node.type)
        else:
            lanes = self._lanes_of(self._port("n_column_index", "row", "column_index", view=True), node.type)
        return self._assign(i, [f"integer({lane})" for lane in lanes])

    # what is stored -----------------------------------------------------------------------------------------------------
    def _stores(self) -> tuple[tuple[Store, ...], dict[str, str]]:
        stores: list[Store] = []
        results: dict[str, str] = {}
        for output in self.anatomy.tile_outputs:
            lanes, view = self._stored(output)
            full = len(lanes) == (2 if self.pairs else 1)
            if full and "D" not in results:
                name = "D"
            elif full and self.pairs:
                raise Inexpressible(
                    "two outputs of full width beside unpaired columns: only one can be stored from pairs"
                )
            else:
                name = f"o_{output.name}"
            if self.pairs and not full and self.problem.spec(f"out.{output.name}").dtype not in SIXTEEN:
                raise Inexpressible(
                    f"{output.name} has half the width and is not a 16-bit float, which pairs cannot store"
                )
            stores.append(Store(name, output.name, view))
            results[name] = f"pack({lanes[0]}, {lanes[1]})" if full and self.pairs else lanes[0]
        return tuple(stores), results

    def _stored(self, output: Output) -> tuple[list[str], bool]:
        node = self.nodes[output.node]
        t, dtype = node.type, self.problem.spec(f"out.{output.name}").dtype
        if t.kind is Kind.SEGMENT:
            raise Inexpressible("segments of columns have no lowering here")
        eight = dtype in EIGHT and output.saturate and t.width == 1 and not self.pairs
        if dtype not in ("float32", *SIXTEEN) and not eight:
            raise Inexpressible(
                f"{output.name} is stored as {dtype}; this backend stores float32, bfloat16 and float16, and saturated "
                "float8 of whole width beside unpaired columns"
            )
        lanes = self._spread(output.node, self.count(t))
        if t.dtype is DType.INT:
            lanes = [f"to_float({lane})" for lane in lanes]
        if t.width != 2:
            return lanes, False
        if dtype not in SIXTEEN:
            raise Inexpressible(
                f"{output.name} has width 2 and is stored as {dtype}: only 16-bit floats travel as pairs"
            )
        return [f"join_{dtype}({lanes[k]}, {lanes[k + 1]})" for k in range(0, len(lanes), 2)], True

    # statistics ---------------------------------------------------------------------------------------------------------
    def _sink(self, s: Statistic, number: int, results: dict[str, str]) -> Sink:
        name = f"s_{number}"
        lanes = self._spread(s.source, self.count(self.nodes[s.source].type))
        natural = 2 if self.pairs else 1
        mask = self.masks[s.axis]
        if s.fold == "moments":
            raise Inexpressible("row_moments couples mean and deviations, which no operator here accumulates")
        if s.axis == "col" and len(lanes) != natural:
            raise Inexpressible("a statistic of columns of a value of another width than the product's")
        if s.fold in ("logsumexp", "select") and len(lanes) > natural:
            raise Inexpressible(f"{s.fold} of a value that is wider than the product")
        if s.fold == "select":
            if len(lanes) != natural:
                raise Inexpressible("select_column of a value that is narrower than the product")
            results[name] = self._packed(lanes)
            return Sink(name, s, index=self._index(s))
        scaled = self._factors(s, natural, mask)
        if scaled:
            results[name] = f"({scaled[0]}, {scaled[1]})"
            return Sink(name, s, mask, scaled=True)
        while len(lanes) > natural:
            lanes = [self._joined(s.fold, lanes[k], lanes[k + 1]) for k in range(0, len(lanes), 2)]
        if len(lanes) < natural:
            lanes = [lanes[0], IDENTITY[s.fold]]
        results[name] = self._packed(lanes)
        return Sink(name, s, mask)

    @staticmethod
    def _packed(lanes: list[str]) -> str:
        return f"pack({lanes[0]}, {lanes[1]})" if len(lanes) == 2 else lanes[0]

    @staticmethod
    def _joined(fold: str, x: str, y: str) -> str:
        if fold == "sum":
            return f"{x} + {y}"
        return f"larger(magnitude({x}), magnitude({y}))" if fold == "absmax" else f"larger({x}, {y})"

    def _factors(self, s: Statistic, natural: int, mask: str) -> list[str] | None:
        """The factors of a product that is summed: quack adds them with one rounding. Not where elements are masked."""
        node = self.nodes[s.source]
        if s.fold != "sum" or natural != 1 or mask == "elements" or self.packed:
            return None
        if node.op != "mul" or self.count(node.type) != 1:
            return None
        return [self._spread(j, 1)[0] for j in node.args]

    def _index(self, s: Statistic) -> str:
        node = self.nodes[s.index]
        if node.op != "operand":
            raise Inexpressible("select_column takes its columns from an operand here, not from a computed value")
        name = str(node.attr("name"))
        if self.problem.spec(name).dtype not in ("int32", "int64"):
            raise Inexpressible(f"{name} selects columns and is {self.problem.spec(name).dtype}: pass int32 or int64")
        return self._port(f"i_{name}", "index", name)


def _exact_reciprocal(value: object) -> bool:
    """Whether dividing by a constant is multiplying by another one."""
    return (
        isinstance(value, float)
        and math.isfinite(value)
        and value != 0
        and abs(math.frexp(value)[0]) == 0.5
        and 2.0**-100 < abs(value) < 2.0**100
    )


def _by_lane(function: str, names: list[str], shared: list[bool], body: str) -> str:
    """A function of pairs of lanes from one of a single lane."""
    one = f"one_{function[2:]}"
    calls = []
    for lane in ("lo", "hi"):
        args = [n if alone else f"{n}.{lane}" for n, alone in zip(names, shared, strict=True)]
        calls.append(f"    {lane} = {one}({', '.join([f'acc.{lane}', *args])})")
    return "\n".join(
        [
            f"def {one}({', '.join(['acc', *names])}):",
            body,
            "",
            "",
            f"def {function}({', '.join(['acc', *names])}):",
            *calls,
            "    return {name: F2(lo[name], hi[name]) for name in lo}",
            "",
        ]
    )
