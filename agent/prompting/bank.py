"""Which curated examples a prompt shows, and which it withholds.

    Example      one example: id, rung, source, program
    examples     the curated bank as such records
    similarity   how alike two programs are, by what they compute and not by what they are called
    Interface    what a kernel takes and gives; `interface_of` a task
    withhold     reason for every example that would give the answer away
    select       what fits into a token budget
    Shown        the outcome, recorded in the run and beside every kept kernel

**Withholding.** Only the curated bank is ever shown, never a kept kernel. For task T an example is withheld when

1. it is T's own (equal id);
2. one of its programs has the digest of T's own example, or a `similarity` of 0.9 or more to it;
3. it gives T's results: one of its programs, of T's kind, has outputs of the same names, dimensions and widths as T, all of
   them and no more, or all of them where T has several. That is the same kernel up to an activation, a row scale in front
   or one more output: `gemm_swiglu` for GeGLU, `rms_rope` for RoPE, `swiglu_backward` for every gated backward.
4. it could be called in T's place: a plan with T's inputs and outputs.

Programs inside a plan count one by one, so a plan that contains the answer is withheld; an ingredient of T (T a plan) is
not.

**Selection.** First what T needs: of the examples that are left, those that teach a primitive or idiom that T needs
(`needs`) and no chosen one does; each time the one that adds most, of equals the lower rung. Then the others from the
bottom of the ladder, as long as the next one fits. Sizes are estimates, four characters to a token. What is chosen is
shown in ladder order. All of it is a pure function of task and bank, so the prefix of a prompt is the same bytes in every
round.

Everything here is a pure function of its arguments but `examples`, which reads the bank.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import examples_curated
from coda.plan import Plan
from coda.program import EpilogueProgram

from ..settings import EXAMPLE_TOKENS
from ..task import Task
from .frame import Results, results, results_of
from .needs import needs, teaches

Program = EpilogueProgram | Plan

NEAR = 0.9
"""From this similarity on, an example is a near-duplicate."""
CHARACTERS_PER_TOKEN = 4


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
        """An estimate, four characters to a token."""
        return -(-len(self.source) // CHARACTERS_PER_TOKEN)


@dataclass(frozen=True)
class Shown:
    """What a prompt shows of the bank."""

    examples: tuple[Example, ...]
    withheld: Mapping[str, str]
    """Id -> why it is not shown."""
    untaught: tuple[str, ...] = ()
    """What the task needs and no example that is shown teaches."""
    budget: int = EXAMPLE_TOKENS

    @property
    def ids(self) -> tuple[str, ...]:
        """In ladder order."""
        return tuple(e.id for e in self.examples)

    @property
    def tokens(self) -> int:
        """Of the examples, estimated."""
        return sum(e.tokens for e in self.examples)


@dataclass(frozen=True)
class Interface:
    """What a kernel takes and gives."""

    kind: str
    """epilogue, pointwise or plan."""
    inputs: frozenset[str]
    """Names, as a plan takes them."""
    results: Results
    needs: frozenset[str] = field(default=frozenset())
    """Primitives and idioms of a solution."""

    @property
    def names(self) -> frozenset[str]:
        """Of the results."""
        return frozenset(name for name, _, _ in self.results)


@functools.cache
def examples() -> tuple[Example, ...]:
    """The curated bank, in ladder order. Imports the kernels (no torch)."""
    return tuple(
        Example(i, examples_curated.card(i).rung, examples_curated.source(i), examples_curated.load(i).program)
        for i in examples_curated.catalog()
    )


def interface_of(task: Task, bank: Iterable[Example] = ()) -> Interface:
    """What a candidate for the task must have, and what it needs to know."""
    return Interface(task.kind, frozenset(i.name for i in task.inputs), results(task), needs(task, bank))


def choose(
    task_id: str,
    bank: Sequence[Example],
    *,
    budget: int = EXAMPLE_TOKENS,
    show_own: bool = False,
    interface: Interface | None = None,
) -> Shown:
    """What the prompt for a task shows. `show_own` withholds nothing: a person asked for it, and it is recorded."""
    withheld = {} if show_own else withhold(task_id, bank, interface)
    left = [e for e in sorted(bank, key=lambda e: (e.rung, e.id)) if e.id not in withheld]
    wanted = interface.needs if interface is not None else frozenset[str]()
    chosen = select(left, budget, wanted)
    over = {e.id: f"over the budget of {budget} tokens for examples" for e in left if e not in chosen}
    taught = frozenset[str]().union(*(teaches(e) for e in chosen))
    return Shown(chosen, {**withheld, **over}, tuple(sorted(wanted - taught)), budget)


def select(left: Sequence[Example], budget: int, wanted: frozenset[str] = frozenset()) -> tuple[Example, ...]:
    """Those that teach what is wanted, then the longest beginning of the ladder that fits; in the order of `left`."""
    chosen: list[Example] = []
    open_needs = set(wanted)
    words = {e.id: teaches(e) for e in left} if wanted else {}
    while open_needs:
        fitting = [e for e in left if e not in chosen and e.tokens <= budget and words[e.id] & open_needs]
        if not fitting:
            break
        best = max(fitting, key=lambda e: len(words[e.id] & open_needs))  # of equals the first: the lower rung
        chosen.append(best)
        budget -= best.tokens
        open_needs -= words[best.id]
    for example in left:
        if example in chosen:
            continue
        budget -= example.tokens
        if budget < 0:
            break
        chosen.append(example)
    return tuple(e for e in left if e in chosen)


def withhold(task_id: str, bank: Iterable[Example], interface: Interface | None = None) -> dict[str, str]:
    """Id -> why, of every example that is the answer or nearly so. `interface` is the task's (`interface_of`)."""
    bank = tuple(bank)
    own = next((e for e in bank if e.id == task_id), None)
    reasons: dict[str, str] = {}
    for example in bank:
        if example.id == task_id:
            reasons[example.id] = "it is the task's own"
        elif (own is not None and (why := _too_near(own.program, example.program))) or (
            interface is not None and (why := _gives(example.program, interface))
        ):
            reasons[example.id] = why
    return reasons


def _gives(program: Program, interface: Interface) -> str | None:
    """Why a program is the task's answer but for a formula."""
    if isinstance(program, Plan):
        outputs = frozenset(o.name for o in program.outputs)
        if interface.kind == "plan" and _same(outputs, interface.names):
            return "it gives the task's results"
        if outputs == interface.names and {name for name, _, _ in program.inputs} == interface.inputs:
            return "it has the task's interface"
    for part in (program, *_parts(program)):
        if part.kind == interface.kind and part.kind != "plan" and _same(results_of(part), interface.results):
            return "it gives the task's results"
    return None


def _same(given: frozenset[object], wanted: frozenset[object]) -> bool:
    """All of the results and no more, or all of several."""
    return given == wanted or (len(wanted) > 1 and wanted <= given)


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
