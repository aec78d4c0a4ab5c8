"""The idioms of the bank: ways of combining primitives that a kernel's author has to have seen once.

    Idiom     id, title, and where it can be told from a program, the predicate that finds it
    IDIOMS    all of them, by id, in the order of the index
    found     ids of those that a program shows, its parts included
    primitives  names that a kernel file imports from `coda.primitives`

An idiom is defined here and nowhere else. It is found in the graph, not in the text: renaming or regrouping a program
does not hide it. What a task needs is the same set of words (`agent/prompting/needs.py`); the index that `README.md`
prints is made from both. Imports neither torch nor a kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from coda.plan import Plan, Step
from coda.primitives import NAMES
from coda.primitives.types import DType, Kind
from coda.primitives.value import Node
from coda.program import EpilogueProgram

__all__ = ["IDIOMS", "Idiom", "found", "primitives"]

Program = EpilogueProgram | Plan
HALF, TWICE = Fraction(1, 2), Fraction(2)
FP8 = "float8"


@dataclass(frozen=True)
class Idiom:
    """One way of combining primitives."""

    id: str
    title: str
    """As the index prints it."""
    of_program: Callable[[EpilogueProgram], bool] | None = None
    """Whether one program shows it."""
    of_plan: Callable[[Plan], bool] | None = None
    """Whether a plan shows it, beyond its programs."""


def found(program: Program) -> frozenset[str]:
    """Ids of every idiom that a program, or a part of a plan, shows."""
    parts = program.programs if isinstance(program, Plan) else (program,)
    one = {i.id for i in IDIOMS.values() if i.of_program and any(i.of_program(p) for p in parts)}
    if isinstance(program, Plan):
        one |= {i.id for i in IDIOMS.values() if i.of_plan and i.of_plan(program)}
    return frozenset(one)


def primitives(source: str) -> frozenset[str]:
    """Names imported from `coda.primitives`, read from the text: a program says `sigmoid` and `mul` for `silu`."""
    return frozenset(
        alias.name
        for statement in ast.parse(source).body
        if isinstance(statement, ast.ImportFrom) and statement.module == "coda.primitives"
        for alias in statement.names
        if alias.name in NAMES
    )


# the graph ------------------------------------------------------------------------------------------------------------


def _args(p: EpilogueProgram, node: Node) -> tuple[Node, ...]:
    return tuple(p.nodes[i] for i in node.args)


def _below(p: EpilogueProgram, index: int) -> set[int]:
    """A node and everything that it is computed from."""
    seen: set[int] = set()
    todo = [index]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo.extend(p.nodes[at].args)
    return seen


def _uses(p: EpilogueProgram, node: Node, op: str) -> bool:
    """Whether a node is computed from an operation of that name, or is one."""
    return node.op == op or any(p.nodes[j].op == op for i in node.args for j in _below(p, i))


def _joins(p: EpilogueProgram, ops: tuple[str, ...], *kinds: Kind) -> bool:
    """Whether one of the operations meets tile-local arguments of all these kinds."""
    return any(
        n.op in ops and not n.type.finished and set(kinds) <= {x.type.kind for x in _args(p, n)} for n in p.nodes
    )


def _operands(p: EpilogueProgram, kind: Kind) -> Iterator[Node]:
    return (n for n in p.nodes if n.op == "operand" and n.attrs and n.type.kind is kind)


def _stored(p: EpilogueProgram) -> Iterator[tuple[Node, str | None]]:
    return ((p.nodes[o.node], o.dtype) for o in p.outputs)


def _stored_tiles(p: EpilogueProgram) -> list[Node]:
    return [n for n, _ in _stored(p) if n.type.kind is Kind.TILE]


# predicates of programs -----------------------------------------------------------------------------------------------


def _row_scale(p: EpilogueProgram) -> bool:
    return any(
        n.op in ("mul", "div")
        and any(x.op == "operand" and x.type.kind is Kind.COL for x in _args(p, n))
        and any(x.type.kind is Kind.TILE for x in _args(p, n))
        for n in p.nodes
    )


def _rotation(p: EpilogueProgram) -> bool:
    """pair(a·c ∓ b·s, …): both halves are a sum of two products."""
    return any(
        n.op == "pair"
        and all(half.op in ("add", "sub") and all(x.op == "mul" for x in _args(p, half)) for half in _args(p, n))
        for n in p.nodes
    )


def _angles(p: EpilogueProgram) -> bool:
    return any(
        n.op in ("sin", "cos")
        and any(
            p.nodes[i].op == "mul" and {x.type.kind for x in _args(p, p.nodes[i])} == {Kind.COL, Kind.ROW}
            for i in _below(p, n.args[0])
        )
        for n in p.nodes
    )


def _mask(op: str) -> Callable[[EpilogueProgram], bool]:
    """A `where` over a tile whose condition comes from that operation."""

    def shown(p: EpilogueProgram) -> bool:
        return any(n.op == "where" and n.type.kind is Kind.TILE and _uses(p, p.nodes[n.args[0]], op) for n in p.nodes)

    return shown


def _one_per_row(p: EpilogueProgram) -> bool:
    """column == some number of the row."""
    return any(
        n.op in ("eq", "ne")
        and {x.type.kind for x in _args(p, n)} == {Kind.ROW, Kind.COL}
        and any(x.op == "column_index" for x in _args(p, n))
        for n in p.nodes
    )


def _guarded(p: EpilogueProgram) -> bool:
    """A finished vector replaced where a condition on a loaded one fails."""
    return any(n.op == "where" and n.type.finished and _uses(p, p.nodes[n.args[0]], "operand") for n in p.nodes)


def _finished_arithmetic(p: EpilogueProgram) -> bool:
    return any(
        n.type.finished and any(x.type.finished for x in _args(p, n)) and len(n.args) > 1 and n.op != "result"
        for n in p.nodes
    )


def _kept_normaliser(p: EpilogueProgram) -> bool:
    """exp(tile - a loaded number of the row)."""
    return any(
        n.op == "exp"
        and any(
            p.nodes[i].op == "sub"
            and p.nodes[i].type.kind is Kind.TILE
            and p.nodes[p.nodes[i].args[1]].op == "operand"
            and p.nodes[p.nodes[i].args[1]].type.kind is Kind.COL
            for i in n.args
        )
        for n in p.nodes
    )


def _row_dot(p: EpilogueProgram) -> bool:
    """row_sum of products of two different tiles."""

    def product(i: int) -> bool:
        node = p.nodes[i]
        if node.op == "add":
            return all(product(j) for j in node.args)
        if node.op != "mul" or len(set(node.args)) < 2:
            return False
        return all(x.type.kind is Kind.TILE for x in _args(p, node))

    return any(n.op == "row_sum" and product(n.args[0]) for n in p.nodes)


def _recomputed(p: EpilogueProgram) -> bool:
    """A stored tile that does not depend on the accumulator."""
    return p.kind == "epilogue" and any(
        all(p.nodes[i].op != "acc" for i in _below(p, o.node)) and p.nodes[o.node].type.kind is Kind.TILE
        for o in p.outputs
    )


def _block_scale(p: EpilogueProgram) -> bool:
    """A tile stored in 8 bits that a statistic of its own block scales, with the scale stored beside it."""
    segments = [n for n, _ in _stored(p) if n.type.kind is Kind.SEGMENT]
    return bool(segments) and any(
        (dtype or "").startswith(FP8) and _uses(p, n, "segment_absmax") for n, dtype in _stored(p)
    )


def _clipped(p: EpilogueProgram) -> bool:
    """Bounded from both sides: a clamp, or a minimum of a maximum."""
    return any(
        n.op == "clamp"
        or (n.op in ("minimum", "maximum") and {x.op for x in _args(p, n)} & ({"minimum", "maximum"} - {n.op}))
        for n in p.nodes
    )


def _segment_in_tile(p: EpilogueProgram) -> bool:
    return any(n.type.kind is Kind.TILE and any(x.type.kind is Kind.SEGMENT for x in _args(p, n)) for n in p.nodes)


# predicates of plans --------------------------------------------------------------------------------------------------


def _calls(plan: Plan) -> list[Step]:
    return [s for s in plan.steps if s.op == "call"]


def _operand_sources(plan: Plan, step: Step) -> dict[str, Step]:
    """Operand name -> the step that it comes from."""
    return {n: plan.steps[i] for n, i in zip(str(step.attr("names")).split(","), step.args, strict=True)}


def _gemms(plan: Plan) -> int:
    products = sum(s.op == "matmul" for s in plan.steps)
    return products + sum(plan.programs[int(s.attr("program"))].kind == "epilogue" for s in _calls(plan))


def _passes_statistic(plan: Plan) -> bool:
    """A vector that one call finished is an operand of a later one."""
    for step in _calls(plan):
        program = plan.programs[int(step.attr("program"))]
        for name, source in _operand_sources(plan, step).items():
            if source.op == "result" and name not in ("a", "b") and program.operand(name).kind is Kind.COL:
                return True
    return False


def _later_tile(plan: Plan) -> bool:
    """A matrix from an earlier call is read beside the accumulator of a later one."""
    for step in _calls(plan):
        program = plan.programs[int(step.attr("program"))]
        for name, source in _operand_sources(plan, step).items():
            if source.op in ("result", "matmul") and name not in ("a", "b") and program.operand(name).kind is Kind.TILE:
                return True
    return False


def _repeats_gemm(plan: Plan) -> bool:
    """Two calls multiply the same two matrices."""
    pairs = []
    for step in _calls(plan):
        if plan.programs[int(step.attr("program"))].kind == "epilogue":
            names = str(step.attr("names")).split(",")
            pairs.append(tuple(_matrix(plan, step.args[names.index(x)]) for x in ("a", "b")))
    return len(set(pairs)) < len(pairs)


def _matrix(plan: Plan, index: int) -> tuple[object, ...]:
    """What a step is, so that two `x.mT` are the same matrix."""
    step = plan.steps[index]
    if step.op in ("mT", "slice", "view"):
        return (step.op, step.attrs, *(_matrix(plan, i) for i in step.args))
    return ("step", index)


_ALL = (
    # vectors and tiles
    Idiom("row-scale", "a column vector scales the rows of a tile", _row_scale),
    Idiom("column-factor", "a row vector joins a tile: a bias or gain of each column", lambda p: _joins(p, ("add", "mul", "sub", "div"), Kind.TILE, Kind.ROW)),
    Idiom("tile-beside", "a whole matrix read beside the accumulator", lambda p: p.kind == "epilogue" and any(n.type.width == 1 for n in _operands(p, Kind.TILE))),
    Idiom("wide-tile", "Tile(width=2): two columns of an operand for each element of the accumulator", lambda p: any(n.type.width == TWICE for n in _operands(p, Kind.TILE))),
    Idiom("wide-output", "pair: an output of twice the width", lambda p: any(n.type.width == TWICE for n in _stored_tiles(p))),
    Idiom("column-pairs", "unpair: neighbouring columns meet", lambda p: any(n.op == "unpair" for n in p.nodes)),
    Idiom("half-width-output", "an output of half the width", lambda p: any(n.type.width == HALF for n in _stored_tiles(p))),
    Idiom("half-width-vector", "RowVector(width=0.5): one number for each pair of columns", lambda p: any(n.type.width == HALF for n in _operands(p, Kind.ROW))),
    Idiom("periodic-vector", "RowVector(period=p): the same numbers for every group of columns", lambda p: any(dict(n.attrs).get("period") for n in _operands(p, Kind.ROW))),
    Idiom("integer-vector", "labels or positions: an integer column vector", lambda p: any(n.type.dtype is DType.INT for n in _operands(p, Kind.COL))),
    Idiom("run-time-number", "a keyword float: a number that may change from call to call", lambda p: any(o.default is not None for o in p.operands)),
    # pairs that turn
    Idiom("pair-rotation", "a rotation of adjacent columns", _rotation),
    Idiom("angles-in-registers", "positions times frequencies, computed instead of read", _angles),
    # conditions
    Idiom("columns-by-number", "columns chosen or masked by their number", _mask("column_index")),
    Idiom("rows-by-number", "rows masked by their number", _mask("row_index")),
    Idiom("one-column-per-row", "a condition that holds in one column of each row", _one_per_row),
    Idiom("clipped", "bounds on both sides, written out", _clipped),
    # statistics
    Idiom("row-statistic", "a reduction over each row, returned", lambda p: any(n.type.finished and n.type.kind is Kind.COL for n, _ in _stored(p))),
    Idiom("column-statistic", "a reduction over each column, as for a bias gradient", lambda p: any(n.type.finished and n.type.kind is Kind.ROW for n, _ in _stored(p))),
    Idiom("row-dot", "the sum over a row of products of two tiles", _row_dot),
    Idiom("finished-arithmetic", "arithmetic of finished vectors", _finished_arithmetic),
    Idiom("finished-guarded", "a finished vector, replaced where a condition on a loaded one fails", _guarded),
    Idiom("segment-in-tile", "a statistic of a group of columns used inside its own tile", _segment_in_tile),
    Idiom("target-and-normaliser", "online log-sum-exp and the target's column", lambda p: {"row_logsumexp", "select_column"} <= {n.op for n in p.nodes}),
    Idiom("kept-normaliser", "exp of a tile minus a kept log-sum-exp", _kept_normaliser),
    Idiom("no-tile-stored", "only vectors are stored: the matrix exists in registers alone", lambda p: not _stored_tiles(p)),
    # stores
    Idiom("fp8-store", "a store in 8 bits", lambda p: any((d or "").startswith(FP8) for _, d in _stored(p))),
    Idiom("block-scale", "an 8-bit store scaled by a statistic of its block, stored beside it", _block_scale),
    Idiom("wide-store", "a tile stored in fp32 whatever the inputs", lambda p: any(n.type.kind is Kind.TILE and d == "float32" for n, d in _stored(p))),
    Idiom("rounding-between", "a rounding in between", lambda p: any(n.op == "cast" for n in p.nodes)),
    Idiom("recomputed-output", "a saved matrix mapped again beside a gradient", _recomputed),
    # kinds of program
    Idiom("pointwise", "a program without a GEMM", lambda p: p.kind == "pointwise"),
    Idiom("plan-two-gemms", "a plan of two GEMMs or more", of_plan=lambda plan: _gemms(plan) >= 2),
    Idiom("plan-three-gemms", "a plan of three GEMMs or more", of_plan=lambda plan: _gemms(plan) >= 3),
    Idiom("plan-statistic", "a statistic finished by one call, applied by a later one", of_plan=_passes_statistic),
    Idiom("plan-tile", "a matrix from an earlier call beside a later accumulator", of_plan=_later_tile),
    Idiom("plan-repeated-gemm", "the same GEMM twice instead of a stored matrix", of_plan=_repeats_gemm),
    Idiom("plan-transposed", "a transposed matrix in a plan", of_plan=lambda plan: any(s.op == "mT" for s in plan.steps)),
)  # fmt: skip

IDIOMS = {idiom.id: idiom for idiom in _ALL}
"""By id, in the order of the index."""
