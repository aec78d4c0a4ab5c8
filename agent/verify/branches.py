"""Which ways through a program were taken: a kernel is judged on what the inputs reach, and on nothing else.

    Branches   the choices of a subject's programs; runs them in fp64 while watching, and counts the sides that were taken
    Seen       what one run took, and how far each choice was from turning
    spelled    a node as a formula

A choice is a condition of `where`, a comparison below `& | ~`, a `minimum` or `maximum`, a floor or remainder: an operation that
computes one thing for some values and another for the rest. Each has two sides, of a floor or remainder only one can be missed.
A side counts as taken only where it matters, as in masking MC/DC (Chilenski, DOT/FAA/AR-01/18, 2001): the branch of a `where`
that is thrown away does not count, nor the larger argument of a `minimum`, the other condition of a false `&`, or what is
multiplied by another's 0. So a window built of nested or multiplied conditions is as visible as a plain one. `Branches.count` is
told only of runs whose results were compared and found right.

`probes.py` makes inputs that reach the other sides; `algebra.py` compares on them. What no input reached is named in the gate's
evidence: it may be a guard against what cannot happen, or a kernel that waits for a value that no test draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.evaluate import reference
from coda.plan import Plan, Step, execute
from coda.primitives.types import DType, Kind
from coda.primitives.value import OPS, Node
from coda.program import EpilogueProgram, live_nodes

from . import inputs as draws
from .subject import Subject

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
EXTREMES = ("minimum", "maximum")
STEPS = ("floor", "ceil", "round", "floordiv", "mod")
"""Missed where the result is always 0; for `mod`, always what went in."""
CHOICES = ("where", *COMPARISONS, *EXTREMES, *STEPS)
WATCHED = 1 << 25
"""Elements of all values of a run together that are kept while it is watched (8 bytes each); a larger run is not."""
LETTERS = 90
"""Of a formula in a message."""

Key = tuple[int, int]
"""Of a choice: the step of the plan that runs the program (0 without a plan), and the node; -1 for a step that is the choice."""


@dataclass
class Seen:
    """What one run took."""

    sides: set[tuple[Key, bool]] = field(default_factory=set)
    margins: dict[Key, torch.Tensor] = field(default_factory=dict)
    """Of floating choices and of sums with a constant: the number whose sign turns them, element by element."""


@dataclass(frozen=True)
class Part:
    """One program as it runs: all of a subject, or one call of its plan."""

    step: int
    program: EpilogueProgram
    roots: tuple[int, ...]
    """Nodes of the outputs that somebody uses."""


class Branches:
    """The choices of a subject and the sides that were taken."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.parts = tuple(_parts(subject))
        self.maps = tuple(_map_choices(subject.program)) if isinstance(subject.program, Plan) else ()
        self.taken: set[tuple[Key, bool]] = set()

    @property
    def keys(self) -> tuple[Key, ...]:
        """Every choice, in order."""
        inner = (
            (part.step, index)
            for part in self.parts
            for index in live_nodes(part.program.nodes, part.roots)
            if _is_choice(part.program, index)
        )
        return (*inner, *((at, -1) for at, _ in self.maps))

    def missing(self) -> list[tuple[Key, bool]]:
        """Sides that were never taken."""
        return [(key, side) for key in self.keys for side in self._sides_of(key) if (key, side) not in self.taken]

    def _sides_of(self, key: Key) -> tuple[bool, ...]:
        return (False,) if self.op(key) in STEPS else (True, False)

    def op(self, key: Key) -> str:
        """The operation of a choice, or of another node."""
        step, index = key
        if index < 0:
            return str(self.subject.program.steps[step].attr("name"))  # type: ignore[union-attr]
        return next(part.program.nodes[index].op for part in self.parts if part.step == step)

    def untested(self) -> list[str]:
        """The same in words, each once."""
        said = {self._said(key, side): None for key, side in self.missing()}
        return list(said)

    def count(self, seen: Seen) -> None:
        """What this run took is proven: its results were compared."""
        self.taken |= seen.sides

    def constants(self) -> set[float]:
        """Every number that the programs and the plan write down, but 0."""
        found = [n.attr("value") for part in self.parts for n in part.program.nodes if n.op == "const"]
        if isinstance(self.subject.program, Plan):
            found += [s.attr("value") for s in self.subject.program.steps if s.op == "const"]
        return {float(v) for v in found if isinstance(v, (int, float)) and not isinstance(v, bool) and v and v == v}

    # running --------------------------------------------------------------------------------------------------
    def run(self, inputs: Mapping[str, Any], *, margins: bool = False) -> tuple[dict[str, torch.Tensor], Seen]:
        """`subject.reference(inputs)`, watched. A run too large to be watched has seen nothing."""
        program, seen = self.subject.program, Seen()
        bound = self.subject.bind(draws.upcast(inputs))
        if isinstance(program, Plan):
            return self._plan(program, bound, seen, margins), seen
        return self._program(self.parts[0], bound, seen, margins), seen

    def _plan(self, plan: Plan, bound: Mapping[str, Any], seen: Seen, margins: bool) -> dict[str, torch.Tensor]:
        calls = iter(self.parts)
        values: dict[int, Any] = {}
        wanted = {i for _, step in self.maps for i in step.args} | {at for at, _ in self.maps}

        def watch(at: int, value: Any) -> None:
            if at in wanted:
                values[at] = value

        found = execute(
            plan,
            plan.bind((), bound),
            lambda program, tensors: self._program(next(calls), tensors, seen, margins),
            torch.float64,
            rounds=False,
            watch=watch,
        )
        for at, step in self.maps:
            args = [torch.as_tensor(values[i]) for i in step.args]
            seen.sides |= _sides((at, -1), str(step.attr("name")), args, torch.as_tensor(values[at]), _ALL)
        return found

    def _program(self, part: Part, tensors: Mapping[str, Any], seen: Seen, margins: bool) -> dict[str, torch.Tensor]:
        program = part.program
        m, n, _ = program.sizes({name: tuple(x.shape) for name, x in tensors.items() if hasattr(x, "shape")})
        widest = max((node.type.width for node in program.nodes if node.type.kind is Kind.TILE), default=1)
        values: dict[int, torch.Tensor] = {}
        watched = int(m * n * widest) * len(program.nodes) <= WATCHED and (margins or self._has_choices(part))
        found = reference(program, (), tensors, torch.float64, watch=values.__setitem__ if watched else None)
        if watched:
            _observe(part, values, n, seen, margins)
        return found

    def _has_choices(self, part: Part) -> bool:
        return any(step == part.step and node >= 0 for step, node in self.keys)

    # words ----------------------------------------------------------------------------------------------------
    def _said(self, key: Key, side: bool) -> str:
        step, index = key
        if index < 0:
            return f"a step of the plan, `{self.op(key)}`, never went {'one' if side else 'the other'} way"
        program = next(part.program for part in self.parts if part.step == step)
        node = program.nodes[index]
        if node.op == "where" or node.op in COMPARISONS:
            about = node.args[0] if node.op == "where" else index
            return f"`{spelled(program, about)}` was never {'true' if side else 'false'}"
        if node.op in EXTREMES:
            first = side if node.op == "minimum" else not side
            return f"`{spelled(program, index)}` never gave `{spelled(program, node.args[0 if first else 1])}`"
        return f"`{spelled(program, index)}` was always {spelled(program, node.args[0]) if node.op == 'mod' else 0}"


def _parts(subject: Subject) -> Iterator[Part]:
    program = subject.program
    if not isinstance(program, Plan):
        yield Part(0, program, tuple(o.node for o in program.outputs))
        return
    for at, step in enumerate(program.steps):
        if step.op == "call":
            called = program.programs[int(step.attr("program"))]
            used = {str(s.attr("name")) for s in program.steps if s.op == "result" and s.args == (at,)}
            yield Part(at, called, tuple(o.node for o in called.outputs if o.name in used))


def _map_choices(plan: Plan) -> Iterator[tuple[int, Step]]:
    for at, step in enumerate(plan.steps):
        if step.op == "map" and step.attr("name") in CHOICES:
            yield at, step


def _is_choice(program: EpilogueProgram, index: int) -> bool:
    node = program.nodes[index]
    if node.op == "where":
        return program.nodes[node.args[0]].op != "const"
    return node.op in CHOICES


def spelled(program: EpilogueProgram, index: int) -> str:
    """A node as a formula over operands, cut where it is long."""

    def text(at: int, depth: int) -> str:
        node = program.nodes[at]
        attrs = dict(node.attrs)
        if node.op == "operand":
            return str(attrs["name"])
        if node.op == "const":
            return f"{attrs['value']:.9g}"
        if depth > 5:
            return "…"
        return OPS[node.op].formula.format(*(text(i, depth + 1) for i in node.args), **attrs)

    whole = text(index, 0)
    if OPS[program.nodes[index].op].formula.startswith("("):
        whole = whole[1:-1]  # what stands alone needs no brackets
    return whole if len(whole) <= LETTERS else whole[: LETTERS - 1] + "…"


# watching -------------------------------------------------------------------------------------------------------------

_ALL = torch.ones((1, 1), dtype=torch.bool)


def _observe(part: Part, values: Mapping[int, torch.Tensor], n: int, seen: Seen, margins: bool) -> None:
    """From the outputs back: where each value matters, and which sides were taken there."""
    program = part.program
    matters: dict[int, torch.Tensor] = dict.fromkeys(part.roots, _ALL)
    for index in reversed(live_nodes(program.nodes, part.roots)):
        node, here = program.nodes[index], matters[index]
        args = [_whole(program, node, i, values[i], n) for i in node.args]
        for position, i in enumerate(node.args):
            mask = _narrowed(node, position, args, here)
            mask = _moved(program, node, position, mask, n)
            mask = _fitted(mask, values[i].shape)
            matters[i] = matters[i] | mask if i in matters else mask
        if _is_choice(program, index):
            seen.sides |= _sides((part.step, index), node.op, args, values[index], here)
        if margins:
            margin = _margin(program, node, args, values[index])
            if margin is not None:
                seen.margins[part.step, index] = margin


def _whole(program: EpilogueProgram, node: Node, arg: int, value: torch.Tensor, n: int) -> torch.Tensor:
    """An argument as the operation meets it: a segment's value stands beside each of its columns."""
    t = program.nodes[arg].type
    if t.kind is Kind.SEGMENT and node.type.kind is Kind.TILE:
        return value.expand(-1, t.columns(n)).repeat_interleave(t.size, 1)
    return value


def _narrowed(node: Node, position: int, args: Sequence[torch.Tensor], here: torch.Tensor) -> torch.Tensor:
    """Where an argument matters, of where the result does."""
    match node.op:
        case "where" if position:
            return here & (args[0] if position == 1 else ~args[0])
        case "and":
            return here & args[1 - position]
        case "or":
            return here & ~args[1 - position]
        case "minimum":
            return here & ~(args[position] > args[1 - position])
        case "maximum":
            return here & ~(args[position] < args[1 - position])
        case "mul":
            return here & ((args[1 - position] != 0) | (args[position] == 0))
        case _:
            return here


def _moved(program: EpilogueProgram, node: Node, position: int, mask: torch.Tensor, n: int) -> torch.Tensor:
    """A mask of the result as one of an argument, where columns are not what they were."""
    if node.op == "unpair":
        wide = torch.zeros((mask.shape[0], 2 * node.type.columns(n)), dtype=torch.bool)
        wide[:, int(node.attr("odd")) :: 2] = mask
        return wide
    if mask.shape[1] == 1:
        return mask
    source = program.nodes[node.args[position]].type
    if node.op == "pair":
        return mask[:, position::2]
    if node.type.kind is Kind.SEGMENT and source.kind is Kind.TILE:
        return mask.repeat_interleave(node.type.size, 1)
    if source.kind is Kind.SEGMENT and node.type.kind is Kind.TILE:
        return mask.reshape(mask.shape[0], -1, source.size).any(2)
    return mask


def _fitted(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Whether it matters anywhere among the elements that a broadcast value stands for."""
    if not shape:
        return mask.any().reshape(1, 1)
    for dim, length in enumerate(shape[-2:]):
        if mask.ndim == 2 and length == 1 and mask.shape[dim] > 1:
            mask = mask.any(dim, keepdim=True)
    return mask


def _sides(
    key: Key, op: str, args: Sequence[torch.Tensor], value: torch.Tensor, here: torch.Tensor
) -> set[tuple[Key, bool]]:
    """The sides of one choice that were taken where it matters."""
    if op == "where":
        yes, no = args[0], ~args[0]
    elif op in COMPARISONS:
        yes, no = value, ~value
    elif op in EXTREMES:
        yes, no = args[0] < args[1], args[0] > args[1]
    else:
        yes = value == (args[0] if op == "mod" else 0)
        no = ~yes
    return {(key, side) for side, mask in ((True, yes), (False, no)) if bool((mask & here).any())}


def _margin(
    program: EpilogueProgram, node: Node, args: Sequence[torch.Tensor], value: torch.Tensor
) -> torch.Tensor | None:
    """The number whose sign turns a node, if it has one: also a sum with a constant, which a steep function may follow."""
    types = [program.nodes[i].type for i in node.args]
    if not types or any(t.dtype is not DType.FLOAT for t in types):
        return None
    if node.op in (*COMPARISONS, *EXTREMES):
        return args[0] - args[1]
    if node.op in ("abs", "sign"):
        return args[0]
    constant = [program.nodes[i].op == "const" for i in node.args]
    return value if node.op in ("add", "sub") and any(constant) and not all(constant) else None
