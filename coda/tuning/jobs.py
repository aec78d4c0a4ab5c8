"""What to tune.

Job    one program on one problem, with schedules that somebody submitted for it
jobs   every program of a call, at the sizes that it meets there
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coda.binding import bind
from coda.kernel import Epilogue, PlanKernel, Pointwise
from coda.plan import Plan, execute
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram
from coda.replay import compute_of


@dataclass(frozen=True)
class Job:
    """One program on one problem."""

    program: EpilogueProgram
    problem: Problem
    extra: tuple[Schedule, ...] = ()
    """Submitted schedules, to be raced among the backends' own candidates."""

    def __str__(self) -> str:
        p = self.problem
        sizes = f"{p.m}×{p.n}×{p.k}" if self.program.kind == "epilogue" else f"{p.m}×{p.n}"
        return f"{self.program.name} {sizes} {p.dtype}"


def jobs(kernel: Epilogue | Pointwise | PlanKernel, *args: Any, arch: str | None = None, **operands: Any) -> list[Job]:
    """One job per program that a call with these arguments would run, each once.

    Only shapes, dtypes, strides and alignments are looked at: tensors on the device "meta" will do, and then `arch` says for
    which GPU. Raises a `CallError`.
    """
    found: dict[Job, None] = {}

    def run(program: EpilogueProgram, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        bound = bind(program, (), tensors, None)
        problem = dataclasses.replace(bound.problem, arch=arch) if arch is not None else bound.problem
        found[Job(program, problem)] = None
        return {name: bound.tensors[f"out.{name}"] for name in bound.outputs}

    with torch.no_grad():
        program, given = kernel.of_call(args, operands)
        if isinstance(program, Plan):
            execute(program, given, run, compute_of(program, given), rounds=True)
        else:
            run(program, given)
    return list(found)
