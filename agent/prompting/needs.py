"""What the solution of a task needs to know, and what an example teaches: primitives and idioms, by name.

    needs    of a task: read from its own example, else declared by the task, always with what its tables say
    tables   what a task's inputs and outputs say alone: widths, dtypes, number of GEMMs
    teaches  what an example shows

Both are sets of the same words, so coverage is a difference of sets: names of `coda.primitives` and ids of
`examples_curated.idioms`. Neighbour: `bank` chooses by them. A new task stays one file: it declares `needs` there, or it
is served by its tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

from examples_curated import idioms

from ..task import Input, Result, Task, lengths
from .frame import frame

if TYPE_CHECKING:
    from .bank import Example

HALF, TWICE = Fraction(1, 2), Fraction(2)


def teaches(example: Example) -> frozenset[str]:
    """Primitives that its file uses and idioms that its program shows."""
    return idioms.primitives(example.source) | idioms.found(example.program)


def needs(task: Task, bank: Iterable[Example]) -> frozenset[str]:
    """Of an obvious solution: the task's own example where `bank` has one, else what the task declares."""
    own = next((e for e in bank if e.id == task.id), None)
    return (teaches(own) if own is not None else frozenset(task.needs)) | tables(task)


def tables(task: Task) -> frozenset[str]:
    """What follows from the interface, whatever the formula."""
    found: set[str] = set()
    if task.kind == "pointwise":
        found.add("pointwise")
    for gemms, idiom in ((2, "plan-two-gemms"), (3, "plan-three-gemms")):
        if task.kind == "plan" and task.gemms >= gemms:
            found.add(idiom)
    for i in task.inputs:
        found |= _of_input(task, i)
    for o in task.outputs:
        found |= _of_output(task, o)
    return frozenset(found)


def _width(task: Task, shape: tuple[str, ...]) -> Fraction | None:
    """Columns relative to N, where there is one N."""
    known = frame(task)
    if known is None or not shape or shape[-1].isdecimal():
        return None
    return Fraction(lengths(shape, known[2])[-1], known[1])


def _of_input(task: Task, i: Input) -> set[str]:
    if i.default is not None:
        return {"run-time-number"}
    if i.dtype == "int64" and len(i.shape) == 1:
        return {"integer-vector"}
    if len(i.shape) == 2 and _width(task, i.shape) == TWICE:
        return {"wide-tile"}
    if len(i.shape) == 1:
        if i.shape[0].isdecimal():
            return {"periodic-vector"}
        if _width(task, i.shape) == HALF:
            return {"half-width-vector"}
    return set()


def _of_output(task: Task, o: Result) -> set[str]:
    width = _width(task, o.shape)
    wide = len(o.shape) == 2
    words = {
        "fp8-store": o.dtype.startswith("float8"),
        "wide-store": wide and o.dtype == "float32" and width in (HALF, 1, TWICE),
        "half-width-output": wide and width == HALF,
        "wide-output": wide and width == TWICE,
    }
    return {word for word, holds in words.items() if holds}
