"""A program as quack's front end takes it: one generated function, its operands, its stores and its statistics.

    lower      program, problem, tile -> Lowered; raises `Inexpressible` with the sentence for `supports`

The function sees one element of the accumulator ("element"), or one pair of neighbouring columns where the program
unpairs it ("acc_pair"); `values.py` writes what it computes, `segments.py` the function that runs before it. What is loaded is
renamed (x_ operands, o_ stores, s_ statistics, g_ segments), since quack's calls take names of their own.
"""

from __future__ import annotations

import functools
import hashlib
import math

from coda.backends.cutedsl import integers, segments
from coda.backends.cutedsl.lowered import (
    EIGHT,
    HALF,
    IDENTITY,
    PART_COLUMNS,
    PART_ROWS,
    SIXTEEN,
    TILE_COLUMNS,
    Inexpressible,
    Lowered,
    Port,
    SegmentStore,
    Sink,
    Store,
)
from coda.backends.cutedsl.values import Values
from coda.backends.finishing.anatomy import Anatomy, Statistic
from coda.primitives.types import DType, Kind
from coda.problem import Problem
from coda.program import EpilogueProgram, Output


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
        self.ports: dict[tuple[str, str], Port] = {}

    # the whole ------------------------------------------------------------------------------------------------------
    def write(self) -> Lowered:
        """Everything."""
        converted = self._converted()
        try:
            integers.check(self.program, self.problem, self._computed(), converted)
        except integers.TooWide as error:
            raise Inexpressible(str(error)) from error
        self.folded = segments.ports(self.program, self._computed())
        self.values = Values(self.program, self.problem, self.pairs, converted, self.ports, self.folded)
        before = Values(self.program, self.problem, False, converted, self.ports, {})
        prepass = segments.prepass(before, self.folded) if self.folded else []
        for i in self._computed():
            self.values.add(i)
        stores, results = self._stores()
        sinks = tuple(self._sink(s, number, results) for number, s in enumerate(self.anatomy.statistics))
        whole = math.lcm(*(port.whole for port in self.ports.values()))
        if all(n % whole for n in TILE_COLUMNS):
            raise Inexpressible(f"rows that repeat and groups of columns want tiles of {whole} columns, which none has")
        return self._function(stores, sinks, results, prepass, list(before.read))

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

    def _computed(self) -> list[int]:
        """What the function computes."""
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
        self,
        stores: tuple[Store, ...],
        sinks: tuple[Sink, ...],
        results: dict[str, str],
        prepass: list[str],
        before: list[str],
    ) -> Lowered:
        ports = tuple(self.ports.values())
        shown = [p for p in ports if p.how != "index"]
        names = [p.name for p in shown]
        about = [f"operators  {self.version}"]
        about += [f"{p.name:10} {_about(p)}" for p in ports]
        about += [f"{s.name:10} {s.output}{' as pairs in fp32' if s.view else ''}" for s in stores]
        about += [
            f"{s.name:10} {s.statistic.axis} {s.statistic.fold}{f', {s.mask} masked' if s.mask else ''}" for s in sinks
        ]
        returned = ", ".join(f'"{k}": {v}' for k, v in results.items())
        body = ['"""Generated; do not edit.', "", *about, '"""', *self.values.lines, f"return {{{returned}}}"]
        text, first = _indented(body), _indented(prepass)
        mode = "acc_pair" if self.pairs else "element"
        outside = [self._segment_output(o) for o in self.anatomy.tile_outputs if self._is_segment(o)]
        key = hashlib.sha256(f"{mode} {self.packed} {names}\n{first}\n{text}".encode()).hexdigest()[:16]
        function = f"f_{key}"
        if self.packed and not self.pairs:
            source = _by_lane(function, names, [p.how in ("scalar", "count") for p in shown], text)
        else:
            source = f"def {function}({', '.join(['acc', *names])}):\n{text}\n"
        if prepass:
            source += f"\n\ndef p_{key}({', '.join(['acc', *before])}):\n{first}\n"
        kept = []
        for store, lines in outside:
            short = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
            kept.append(SegmentStore(store.name, store.output, store.segment, f"h_{short}"))
            source += f"\n\ndef h_{short}(s):\n{_indented(lines)}\n"
        source += f"\n\n# program {self.program.name} {self.program.digest}\n"  # not in the function: others share it
        return Lowered(function, source, mode, ports, stores, sinks, tuple(kept), f"p_{key}" if prepass else "")

    def _is_segment(self, output: Output) -> bool:
        return self.nodes[output.node].type.kind is Kind.SEGMENT

    def _segment_output(self, output: Output) -> tuple[SegmentStore, list[str]]:
        return segments.stored(self.program, self.problem, output, self.folded)

    # what is stored -----------------------------------------------------------------------------------------------------
    def _stores(self) -> tuple[tuple[Store, ...], dict[str, str]]:
        stores: list[Store] = []
        results: dict[str, str] = {}
        for output in self.anatomy.tile_outputs:
            if self._is_segment(output):
                continue
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
        eight = dtype in EIGHT and output.saturate and t.width == 1 and not self.pairs
        if dtype not in ("float32", *SIXTEEN) and not eight:
            raise Inexpressible(
                f"{output.name} is stored as {dtype}; this backend stores float32, bfloat16 and float16, and saturated "
                "float8 of whole width beside unpaired columns"
            )
        lanes = self.values.spread(output.node, self.values.count(t))
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
        lanes = self.values.spread(s.source, self.values.count(self.nodes[s.source].type))
        natural = 2 if self.pairs else 1
        mask = self.masks[s.axis]
        if s.axis == "col" and len(lanes) != natural:
            raise Inexpressible("a statistic of columns of a value of another width than the product's")
        if s.fold in ("logsumexp", "select") and len(lanes) > natural:
            raise Inexpressible(f"{s.fold} of a value that is wider than the product")
        if s.fold == "moments" and len(lanes) != natural:
            wider = "wider" if len(lanes) > natural else "narrower"
            raise Inexpressible(f"row_moments of a value that is {wider} than the product")
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
        if node.op != "mul" or self.values.count(node.type) != 1:
            return None
        return [self.values.spread(j, 1)[0] for j in node.args]

    def _index(self, s: Statistic) -> str:
        node = self.nodes[s.index]
        if node.op != "operand":
            raise Inexpressible("select_column takes its columns from an operand here, not from a computed value")
        name = str(node.attr("name"))
        if self.problem.spec(name).dtype not in ("int32", "int64"):
            raise Inexpressible(f"{name} selects columns and is {self.problem.spec(name).dtype}: pass int32 or int64")
        self.ports.setdefault((f"i_{name}", "index"), Port(f"i_{name}", "index", name))
        return f"i_{name}"


def _about(port: Port) -> str:
    if port.how == "segment":
        return f"{port.fold} of {port.period} columns"
    how = " as pairs or bits in fp32" if port.view else " as int32" if port.narrow else ""
    return f"{port.operand}{how}"


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)


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
