"""A plan's calls: its steps worked out once per kind of call, then run again without a look at any of them.

    PlanCalls   the kinds of call that one plan has seen; `again` repeats one of the latest, calling it runs the plan

What decides a plan's intermediate shapes, strides and dtypes is the kind of its call (`coda.call.kind_of`), and memory
that a call allocates is always aligned: the programs inside are launched as they were made ready by the first call. Where
a number given by the caller decides how much is sliced or viewed, its value is part of the kind; in a 0-d tensor it may
change unseen, and such a call takes the long way every time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.call import ELSEWHERE, GENERATION, Ready, kind_of, prepare, trim
from coda.errors import ShapeMismatch
from coda.plan import Plan, Step, execute, map_step, view_step
from coda.problem import Schedule, compute_dtype
from coda.program import EpilogueProgram
from coda.warm import Again, Call, Piece, Written, again_plan


@dataclass(frozen=True)
class _Work:
    """One thing that a plan does: a program's launch, or a function of a list of values."""

    do: Ready | Callable[[list[Any]], Any]
    args: tuple[int, ...]
    targets: tuple[tuple[int, int], ...]
    """Which of a launch's results, or 0, becomes the value of which step."""


@dataclass(frozen=True)
class _Replay:
    """A plan's steps for one kind of call."""

    constants: dict[int, Any]
    """Values of steps that are the same at every call."""
    inputs: tuple[tuple[int, int], ...]
    """Step, and position among the values of a call."""
    work: tuple[_Work, ...]
    outputs: tuple[int, ...]
    made: list[Again] = field(default_factory=list, repr=False, compare=False)
    """The warm path as functions."""

    def run(self, given: Sequence[Any]) -> tuple[list[Any], list[Piece]]:
        """The outputs, and what was done for them."""
        values: dict[int, Any] = self.constants | {step: given[at] for step, at in self.inputs}
        pieces = []
        for work in self.work:
            args = [values[i] for i in work.args]
            if isinstance(work.do, Ready):
                tensors = work.do.launch(args)
                done = work.do.of(tensors)
                pieces.append(Piece(work.do.as_launch(tensors), work.args, work.targets))
            else:
                done = [work.do(args)]
                pieces.append(Piece(work.do, work.args, work.targets))
            for which, step in work.targets:
                values[step] = done[which]
        return [values[step] for step in self.outputs], pieces


class PlanCalls(Written):
    """The kinds of call that one plan has seen."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self._arguments = tuple(name for name, _, _ in plan.inputs)
        self._by_value = plan.deciding
        self._replays: collections.OrderedDict[Any, _Replay] = collections.OrderedDict()

    def __call__(
        self,
        specialise: Callable[[Mapping[str, Any]], Plan],
        args: tuple[Any, ...],
        operands: Mapping[str, Any],
        backend: str | None = None,
        config: Schedule | None = None,
    ) -> Sequence[Any] | None:
        """The outputs in order, or None for tensors that belong to the dispatcher. `specialise` gives the plan for inputs by name, at the first call of a kind."""
        call = Call(args, operands, backend, config)
        values = call.values
        parts = [GENERATION[0], call.preferred, config, torch.is_grad_enabled(), len(args), tuple(operands)]
        deciding = self._deciding(args, operands) if self._by_value else ()
        parts += [x for x in deciding if isinstance(x, (int, float))]
        kind = kind_of(values, parts)
        if kind is not ELSEWHERE and any(isinstance(x, torch.Tensor) for x in deciding):
            kind = None
        replay = self._replays.get(kind)
        if replay is not None:
            return self._repeated(replay, call, values)
        if kind is ELSEWHERE:
            return None
        bound = self.plan.bind(args, operands)
        given = (*(name for name, _, _ in self.plan.inputs[: len(args)]), *operands)
        replay, results = _first(specialise(bound), bound, given, backend, config)
        if kind is not None:
            self._replays[kind] = replay
            trim(self._replays)
        return results

    def _repeated(self, replay: _Replay, call: Call, values: tuple[Any, ...]) -> Sequence[Any]:
        """A call of a known kind, by a function of its own where PyTorch allows that."""
        results = self._again(replay.made, call)
        if results is not None:
            return results
        outputs, pieces = replay.run(values)
        if self._may_write(replay.made):
            names = (*self._arguments[: len(call.args)], *call.operands)
            fixed = [at for at, name in enumerate(names) if name in self._by_value]
            new = again_plan(call, GENERATION, fixed, replay.constants, replay.inputs, pieces, replay.outputs)
            self._keep(replay.made, new)
        return outputs

    def _deciding(self, args: tuple[Any, ...], operands: Mapping[str, Any]) -> list[Any]:
        """The values of a call that decide how much is sliced or viewed."""
        given = (*zip(self._arguments, args, strict=False), *operands.items())
        return [x for name, x in given if name in self._by_value]


def compute_of(plan: Plan, bound: Mapping[str, Any]) -> torch.dtype:
    """The dtype of vector arithmetic: the first matrix decides. Raises `ShapeMismatch` where no input is one."""
    first = next((x for x in bound.values() if isinstance(x, torch.Tensor) and x.ndim == 2), None)
    if first is None:
        raise ShapeMismatch(f"{plan.name}: no input is a matrix")
    found: torch.dtype = getattr(torch, compute_dtype(str(first.dtype).removeprefix("torch.")))
    return found


def _first(
    plan: Plan, bound: Mapping[str, Any], given: tuple[str, ...], backend: str | None, config: Schedule | None
) -> tuple[_Replay, list[Any]]:
    """Run the plan with every check, and keep what was made ready."""
    compute = compute_of(plan, bound)
    readies: list[Ready] = []

    def call(program: EpilogueProgram, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        ready, results = prepare(program, (), tensors, backend, config if program.kind == "epilogue" else None)
        readies.append(ready)
        return dict(zip((o.name for o in program.outputs), results, strict=True))

    results = list(execute(plan, bound, call, compute, rounds=True).values())
    constants: dict[int, Any] = {}
    inputs, work = [], []
    calls = iter(readies)
    for at, step in enumerate(plan.steps):
        if step.op == "input":
            name = str(step.attr("name"))
            if name in given:
                inputs.append((at, given.index(name)))
            else:
                constants[at] = bound[name]
        elif step.op == "const":
            constants[at] = step.attr("value")
        elif step.op != "result":
            work.append(_work(plan, at, step, calls, compute))
    return _Replay(constants, tuple(inputs), tuple(work), tuple(o.step for o in plan.outputs)), results


def _work(plan: Plan, at: int, step: Step, calls: Iterator[Ready], compute: torch.dtype) -> _Work:
    if step.op == "call":
        outputs = [o.name for o in plan.programs[int(step.attr("program"))].outputs]
        targets = tuple(
            (outputs.index(str(s.attr("name"))), i)
            for i, s in enumerate(plan.steps)
            if s.op == "result" and s.args[0] == at
        )
        return _Work(next(calls), step.args, targets)
    if step.op == "map":
        attrs = dict(step.attrs)
        return _Work(lambda args: map_step(plan, attrs, args, compute, True), step.args, ((0, at),))
    op = step.op
    return _Work(lambda args: view_step(plan, op, args), step.args, ((0, at),))
