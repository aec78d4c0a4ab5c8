"""The frame of a task: M and N as its kernel will see them, at sizes that tell symbols apart.

    frame     M, N and the length of every symbol
    results   what a kernel for the task gives: name, dimensions and width relative to N, as `results_of` says of a program

Neighbours: `prompt` writes annotations from it, `bank` compares results.
"""

from __future__ import annotations

from fractions import Fraction

from coda.plan import Plan
from coda.primitives.types import Kind
from coda.program import EpilogueProgram

from ..task import Task, lengths

Results = frozenset[tuple[str, int, Fraction | None]]
"""Name, number of dimensions, and columns relative to N: None for one number per row, and where N is not known."""
PRIMES = (101, 103, 107, 109, 113, 127, 131, 137)
UNIT = 64 * 128 * 3
"""Of what blocks and parts of the columns divide."""


def frame(task: Task) -> tuple[int, int, dict[str, int]] | None:
    """M and N at sizes whose ratios tell symbols apart, with those sizes; None for a plan, which has no N of its own."""
    names = sorted({name for shape in task.shapes for name in shape.dims})
    dims = {name: UNIT * prime for name, prime in zip(names, PRIMES, strict=False)}
    if len(dims) < len(names):
        return None
    by_role = {i.role: i for i in task.inputs if i.role in ("a", "b")}
    if len(by_role) == 2:
        return lengths(by_role["a"].shape, dims)[0], lengths(by_role["b"].shape, dims)[1], dims
    first = next((i for i in task.inputs if len(i.shape) == 2), None)
    if first is None or task.kind == "plan":
        return None
    m, n = lengths(first.shape, dims)
    return m, n, dims


def results(task: Task) -> Results:
    """What a kernel for the task gives."""
    known = frame(task)
    found: set[tuple[str, int, Fraction | None]] = set()
    for o in task.outputs:
        size = lengths(o.shape, known[2]) if known else ()
        per_row = known is None or (len(size) == 1 and size[0] == known[0])
        found.add((o.name, len(o.shape), None if per_row or known is None else Fraction(size[-1], known[1])))
    return frozenset(found)


def results_of(program: EpilogueProgram | Plan) -> Results:
    """What a program gives; of a plan the names alone, with 0 dimensions."""
    if isinstance(program, Plan):
        return frozenset((o.name, 0, None) for o in program.outputs)
    found: set[tuple[str, int, Fraction | None]] = set()
    for o in program.outputs:
        t = program.nodes[o.node].type
        wide = t.kind in (Kind.TILE, Kind.SEGMENT)
        width = None if t.kind is Kind.COL else t.width / (t.size or 1)
        found.add((o.name, 2 if wide else 1, width))
    return frozenset(found)
