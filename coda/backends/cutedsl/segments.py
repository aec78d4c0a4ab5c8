"""Segment reductions: a number per row and group of columns, folded over the accumulator before the epilogue runs.

    ports     node of a segment reduction -> the port that carries its statistic
    prepass   the function of an accumulator's element, and of rows and cols, whose values are folded
    stored    an output of segments as a function of one statistic

quack's front end walks over the accumulator once before the epilogue ("prepass"): a thread folds its own columns in
registers, the four lanes of a row exchange what they have, and the epilogue finds the result as one more operand. Matrices are
read after that walk, and a thread holds eight columns of a part of 32 that are no neighbours. Hence:

    - what a segment reduces is computed from the accumulator, rows and cols: no matrix, no pairs, no other segment
    - its columns are a multiple of 32 and divide those of the tile (and N, by the program's own rule)
    - an output of segments is fp32, and a function of one statistic and constants

Beyond the matrix there are whole segments only, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from coda.backends.cutedsl.lowered import PART_COLUMNS, TILE_COLUMNS, Inexpressible, Port, SegmentStore
from coda.backends.cutedsl.values import Values
from coda.primitives.types import DType, Kind
from coda.primitives.value import Node
from coda.problem import Problem
from coda.program import EpilogueProgram, Output, live_nodes

FOLDS = {"segment_sum": "sum", "segment_mean": "sum", "segment_max": "max", "segment_absmax": "absmax"}


def ports(program: EpilogueProgram, in_tile: list[int]) -> dict[int, Port]:
    """The port of every segment reduction; a sum and a mean of one value share theirs. Raises `Inexpressible`."""
    found: dict[int, Port] = {}
    names: dict[tuple[str, int, int], str] = {}
    for i in in_tile:
        node = program.nodes[i]
        if node.op not in FOLDS:
            continue
        size, fold, (source,) = node.type.size, FOLDS[node.op], node.args
        if size % PART_COLUMNS or all(n % size for n in TILE_COLUMNS):
            raise Inexpressible(
                f"{node.op} of {size} columns: groups are folded whose columns are a multiple of {PART_COLUMNS} and divide a "
                f"tile of {', '.join(map(str, TILE_COLUMNS[:-1]))} or {TILE_COLUMNS[-1]}"
            )
        _check_source(program, node, source)
        name = names.setdefault((fold, source, size), f"g_{len(names)}")
        found[i] = Port(name, "segment", period=size, fold=fold)
    return found


def _check_source(program: EpilogueProgram, node: Node, source: int) -> None:
    nodes = program.nodes
    if nodes[source].type.width != 1 or nodes[source].type.dtype is not DType.FLOAT:
        raise Inexpressible(f"{node.op} of a value of another width than the product's, or of integers")
    for i in live_nodes(nodes, [source]):
        inner = nodes[i]
        if inner.op in ("pair", "unpair"):
            raise Inexpressible(f"{node.op} of paired columns: what is folded is computed element by element")
        if inner.op in FOLDS:
            raise Inexpressible(f"{node.op} of a value that depends on {inner.op}: both are folded in one walk")
        if inner.op == "operand" and inner.type.kind is Kind.TILE:
            raise Inexpressible(
                f"{node.op} of a value that depends on the matrix {inner.attr('name')}, which is read after the fold"
            )


def prepass(values: Values, found: Mapping[int, Port]) -> list[str]:
    """Write what is folded into `values`, which are of one element; the lines of the function's body."""
    nodes = values.nodes
    for i in live_nodes(nodes, [nodes[i].args[0] for i in found]):
        values.add(i)
    folded = {}
    for i, port in found.items():
        (text,) = values.spread(nodes[i].args[0], 1)
        folded[port.name] = f"magnitude({text})" if port.fold == "absmax" else text
    returned = ", ".join(f'"{name}": {text}' for name, text in folded.items())
    return [*values.lines, f"return {{{returned}}}"]


def stored(
    program: EpilogueProgram, problem: Problem, output: Output, found: Mapping[int, Port]
) -> tuple[SegmentStore, list[str]]:
    """An output of segments, and the body of its function of `s`. Raises `Inexpressible`."""
    name, nodes = output.name, program.nodes
    dtype = problem.spec(f"out.{name}").dtype
    if dtype != "float32":
        raise Inexpressible(f"{name} is a number per segment and stored as {dtype}: those are stored as float32 here")
    live = live_nodes(nodes, [output.node])
    kept = _until_folded(nodes, output.node, found)
    statistics = {found[i].name for i in kept if i in found}
    if len(statistics) != 1 or any(nodes[i].op != "const" and nodes[i].type.kind is not Kind.SEGMENT for i in kept):
        raise Inexpressible(
            f"{name} is a number per segment that depends on more than one segment reduction and constants"
        )
    (statistic,) = statistics
    values = Values(program, problem, False, frozenset(), {}, {i: _named_s(found[i]) for i in kept if i in found})
    for i in live:
        if i in kept:
            values.add(i)
    return SegmentStore(f"o_{name}", name, statistic), [*values.lines, f"return {values.lanes[output.node][0]}"]


def _until_folded(nodes: tuple[Node, ...], root: int, found: Mapping[int, Port]) -> set[int]:
    kept: set[int] = set()
    stack = [root]
    while stack:
        i = stack.pop()
        if i not in kept:
            kept.add(i)
            stack.extend(() if i in found else nodes[i].args)
    return kept


def _named_s(port: Port) -> Port:
    return Port("s", port.how, period=port.period, fold=port.fold)
