"""A plan's calls: its steps worked out once per kind of call, then run again without a look at any of them.

    PlanCalls   the kinds of call that one plan has seen; calling it runs the plan

What decides a plan's intermediate shapes, strides and dtypes is the kind of its call (`coda.call.kind_of`), and memory
that a call allocates is always aligned: the programs inside are launched as they were made ready by the first call. Where
a number given by the caller decides how much is sliced or viewed, its value is part of the kind; in a 0-d tensor it may
change unseen, and such a call takes the long way every time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coda import env
from coda.call import ELSEWHERE, Ready, generation, kind_of, prepare, trim
from coda.errors import ShapeMismatch
from coda.plan import Plan, Step, execute, map_step, view_step
from coda.problem import Schedule, compute_dtype
from coda.program import EpilogueProgram

Targets = int | tuple[tuple[int, int], ...]
"""The step that a value belongs to, or for each result of a call: which one it is, and its step."""


@dataclass(frozen=True)
class _Replay:
    """A plan's steps for one kind of call."""

    blank: tuple[Any, ...]
    """A value per step: constants, else None."""
    inputs: tuple[tuple[int, int], ...]
    """Step, and position among the values of a call."""
    work: tuple[tuple[Callable[[list[Any]], Any], tuple[int, ...], Targets], ...]
    outputs: tuple[int, ...]

    def run(self, given: Sequence[Any]) -> list[Any]:
        values = list(self.blank)
        for step, at in self.inputs:
            values[step] = given[at]
        for do, args, targets in self.work:
            done = do([values[i] for i in args])
            if isinstance(targets, int):
                values[targets] = done
            else:
                for which, step in targets:
                    values[step] = done[which]
        return [values[step] for step in self.outputs]


class PlanCalls:
    """The kinds of call that one plan has seen."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._places = tuple(name for name, _, _ in plan.inputs)
        self._by_value = plan.deciding
        self._replays: collections.OrderedDict[Any, _Replay] = collections.OrderedDict()

    def __call__(
        self,
        specialise: Callable[[Mapping[str, Any]], Plan],
        args: tuple[Any, ...],
        operands: Mapping[str, Any],
        backend: str | None = None,
        config: Schedule | None = None,
    ) -> list[Any] | None:
        """The outputs in order, or None for tensors that belong to the dispatcher. `specialise` gives the plan for inputs by name, at the first call of a kind."""
        values = (*args, *operands.values())
        parts = [generation(), backend or env.backend(), config, torch.is_grad_enabled(), len(args), tuple(operands)]
        deciding = self._deciding(args, operands) if self._by_value else ()
        parts += [x for x in deciding if isinstance(x, (int, float))]
        kind = kind_of(values, parts)
        if kind is not ELSEWHERE and any(isinstance(x, torch.Tensor) for x in deciding):
            kind = None
        replay = self._replays.get(kind)
        if replay is not None:
            return replay.run(values)
        if kind is ELSEWHERE:
            return None
        bound = self.plan.bind(args, operands)
        given = (*(name for name, _, _ in self.plan.inputs[: len(args)]), *operands)
        replay, results = _first(specialise(bound), bound, given, backend, config)
        if kind is not None:
            self._replays[kind] = replay
            trim(self._replays)
        return results

    def _deciding(self, args: tuple[Any, ...], operands: Mapping[str, Any]) -> list[Any]:
        """The values of a call that decide how much is sliced or viewed."""
        given = (*zip(self._places, args, strict=False), *operands.items())
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
    blank: list[Any] = [None] * len(plan.steps)
    inputs, work = [], []
    calls = iter(readies)
    for at, step in enumerate(plan.steps):
        if step.op == "input":
            name = str(step.attr("name"))
            if name in given:
                inputs.append((at, given.index(name)))
            else:
                blank[at] = bound[name]
        elif step.op == "const":
            blank[at] = step.attr("value")
        elif step.op != "result":
            work.append(_work(plan, at, step, calls, compute))
    return _Replay(tuple(blank), tuple(inputs), tuple(work), tuple(o.step for o in plan.outputs)), results


def _work(
    plan: Plan, at: int, step: Step, calls: Any, compute: torch.dtype
) -> tuple[Callable[[list[Any]], Any], tuple[int, ...], Targets]:
    if step.op == "call":
        outputs = [o.name for o in plan.programs[int(step.attr("program"))].outputs]
        targets = tuple(
            (outputs.index(str(s.attr("name"))), i)
            for i, s in enumerate(plan.steps)
            if s.op == "result" and s.args[0] == at
        )
        return next(calls).launch, step.args, targets
    if step.op == "map":
        attrs = dict(step.attrs)
        return (lambda args: map_step(plan, attrs, args, compute, True)), step.args, at
    op = step.op
    return (lambda args: view_step(plan, op, args)), step.args, at
