"""Which curated examples a prompt shows, and which it withholds.

    Example      one example: id, rung, source, program
    examples     the curated bank as such records
    similarity   how alike two programs are, by what they compute and not by what they are called
    Interface    what a kernel takes and gives; `interface_of` a task
    withhold     reason for every example that would give the answer away
    select       what fits into a token budget
    Shown        the outcome, recorded in the run and beside every kept kernel

**Withholding.** For task T an example is withheld when it is T's own (equal id); when one of its programs has the digest of T's
own example; or when one of its programs has a `similarity` of 0.9 or more to it. Programs inside a plan count one by one,
so a plan that contains the answer is withheld; an ingredient of T (T a plan) is not. A task without an example of its own
is compared by its interface, which is all that is known of its answer: an example with the same operands (names, and whether
they are numbers, vectors or matrices) and the same outputs differs from it in a formula at most.

**Selection.** All that are left, where they fit. Otherwise by rung, lowest first, as long as the next one fits: the ladder
teaches from the bottom. Shown in ladder order, so that the prefix is the same text every time.

Everything here is a pure function of its arguments but `examples`, which reads the bank.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import examples_curated
from coda.plan import Plan
from coda.program import EpilogueProgram

from ..task import Task

Program = EpilogueProgram | Plan

NEAR = 0.9
"""From this similarity on, an example is a near-duplicate."""
BUDGET_TOKENS = 24_000
"""For examples; the whole curated bank takes about half of it."""
_RANK = {"scalar": 0, "row": 1, "col": 1, "tile": 2}


@dataclass(frozen=True)
class Example:
    """One example that a prompt may show."""

    id: str
    """Of the task it solves, where there is one of that id."""
    rung: int
    source: str
    program: Program

    @property
    def tokens(self) -> int:
        """On the high side, as `agent.llm.protocol.estimate_tokens` counts."""
        return 2 * len(self.source.encode()) // 5 + 8


@dataclass(frozen=True)
class Shown:
    """What a prompt shows of the bank."""

    examples: tuple[Example, ...]
    withheld: Mapping[str, str]
    """Id -> why it is not shown."""

    @property
    def ids(self) -> tuple[str, ...]:
        """In ladder order."""
        return tuple(e.id for e in self.examples)


@dataclass(frozen=True)
class Interface:
    """What a kernel takes and gives: names, with the number of dimensions."""

    operands: frozenset[tuple[str, int]]
    """Of an epilogue or a pointwise program, without a GEMM's two matrices."""
    inputs: frozenset[tuple[str, int]]
    """Of a plan."""
    outputs: frozenset[str]


@functools.cache
def examples() -> tuple[Example, ...]:
    """The curated bank, in ladder order. Imports the kernels (no torch)."""
    return tuple(
        Example(i, examples_curated.card(i).rung, examples_curated.source(i), examples_curated.load(i).program)
        for i in examples_curated.catalog()
    )


def choose(
    task_id: str,
    bank: Sequence[Example],
    *,
    budget: int = BUDGET_TOKENS,
    show_own: bool = False,
    interface: Interface | None = None,
) -> Shown:
    """What the prompt for a task shows. `show_own` withholds nothing: a person asked for it, and it is recorded."""
    withheld = {} if show_own else withhold(task_id, bank, interface)
    left = [e for e in sorted(bank, key=lambda e: (e.rung, e.id)) if e.id not in withheld]
    chosen = select(left, budget)
    over = {e.id: f"over the budget of {budget} tokens for examples" for e in left if e not in chosen}
    return Shown(chosen, {**withheld, **over})


def select(left: Sequence[Example], budget: int) -> tuple[Example, ...]:
    """The longest beginning of the ladder that fits."""
    chosen: list[Example] = []
    for example in left:
        budget -= example.tokens
        if budget < 0:
            break
        chosen.append(example)
    return tuple(chosen)


def withhold(task_id: str, bank: Iterable[Example], interface: Interface | None = None) -> dict[str, str]:
    """Id -> why, of every example that is the answer or nearly so. `interface` is the task's (`interface_of`)."""
    bank = tuple(bank)
    own = next((e for e in bank if e.id == task_id), None)
    reasons: dict[str, str] = {}
    for example in bank:
        if example.id == task_id:
            reasons[example.id] = "it is the task's own"
        elif own is not None and (why := _too_near(own.program, example.program)):
            reasons[example.id] = why
        elif own is None and interface is not None and _offers(example.program, interface):
            reasons[example.id] = "it has the task's interface"
    return reasons


def interface_of(task: Task) -> Interface:
    """The interface that a candidate for the task must have."""
    operands = frozenset((i.name, len(i.shape)) for i in task.inputs if i.role not in ("a", "b"))
    matrices = frozenset((i.name, len(i.shape)) for i in task.inputs if i.role in ("a", "b"))
    return Interface(operands, operands | matrices, frozenset(o.name for o in task.outputs))


def _offers(program: Program, interface: Interface) -> bool:
    """Whether a program could be called in place of the task's answer."""
    if frozenset(o.name for o in program.outputs) != interface.outputs:
        return False
    if isinstance(program, Plan):
        return {name for name, _, _ in program.inputs} == {name for name, _ in interface.inputs}
    found = frozenset((o.name, _RANK[o.kind]) for o in program.operands)
    return found == interface.operands


def _too_near(own: Program, other: Program) -> str | None:
    for part in (other, *_parts(other)):
        if part.digest == own.digest:
            return "it contains the same program"
        alike = similarity(part, own)
        if alike >= NEAR:
            return f"it contains a program that is {100 * alike:.0f} % alike"
    return None


def similarity(one: Program, two: Program) -> float:
    """Jaccard index of the multisets of operations, 0 to 1. Names, constants' values and the order do not count."""
    a, b = _operations(one), _operations(two)
    both, either = (a & b).total(), (a | b).total()
    return both / either if either else 1.0


def _parts(program: Program) -> tuple[EpilogueProgram, ...]:
    return program.programs if isinstance(program, Plan) else ()


def _operations(program: Program) -> Counter[str]:
    """Every node with the type of its result, every operand and every store; a plan's calls are its programs."""
    found: Counter[str] = Counter()
    if isinstance(program, Plan):
        for step in program.steps:
            if step.op == "call":
                found += _operations(program.programs[int(step.attr("program"))])
            elif step.op not in ("result", "input"):
                found[f"{step.op} {dict(step.attrs).get('name', '')}"] += 1
        found["plan"] += 1
        return found
    found[program.kind] += 1
    for node in program.nodes:
        attrs = "" if node.op in ("operand", "const") else ",".join(f"{k}={v}" for k, v in node.attrs)
        found[f"{node.op} {attrs} {dataclasses.astuple(node.type)}"] += 1
    for output in program.outputs:
        found[f"store {program.nodes[output.node].type} {output.dtype}"] += 1
    return found
