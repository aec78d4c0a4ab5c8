"""Run a judged program on a backend, with every buffer under the judge's control.

Runner    (inputs) -> outputs; each program of a plan gets its outputs from the judge's own allocator
Buffers   such an allocator: poisoned, guarded, and able to say what was written outside
problems  the Problem of every program of a plan at some inputs, on meta tensors: nothing is computed
own       an author's schedule, where it is meant for a program on a backend; `valid`: and this problem can have it;
          `submitted`: on its own backend, for the tuner
arch_here, schedule_of  the current GPU's architecture; an author's schedule out of a payload
in_turn   a gate's work while no other process of ours uses the GPU
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from coda.backends.registry import Artifact, Backend
from coda.bench.timing import GpuBusy, current_gpu, gpu_lock
from coda.binding import bind
from coda.errors import BackendError
from coda.plan import Plan, execute
from coda.problem import Problem, Schedule, compute_dtype
from coda.program import EpilogueProgram
from coda.testing import Guarded

from .subject import Subject, sizes_of

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]


class Run(Protocol):
    """Computes every output by name from the task's inputs, into buffers of `allocate`."""

    def __call__(self, inputs: Mapping[str, Any], allocate: Allocate) -> dict[str, torch.Tensor]: ...


class Buffers:
    """Poisoned tensors between guards. `fill` overrides the poison: two runs with different fills show what was not written."""

    def __init__(self, fill: float | None = None, margin: int = 1024) -> None:
        self.fill, self.margin = fill, margin
        self.guarded: list[Guarded] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        held = Guarded(shape, dtype, device, self.margin)
        if self.fill is not None:
            held.tensor.fill_(self.fill)
        self.guarded.append(held)
        return held.tensor

    def intact(self) -> bool:
        """Whether nothing around any of the tensors was written."""
        return all(held.intact() for held in self.guarded)


class Runner:
    """A program on one backend. Compiled once per (program, problem)."""

    def __init__(self, subject: Subject, backend: Backend, schedule: Schedule | None = None) -> None:
        self.subject, self.backend, self.schedule = subject, backend, schedule
        self._artifacts: dict[Any, Artifact] = {}
        self.with_own = 0
        """How many kernels had the author's schedule."""

    def __call__(self, inputs: Mapping[str, Any], allocate: Allocate) -> dict[str, torch.Tensor]:
        """Every output by name. Raises what binding, compiling or launching raises."""
        bound = self.subject.bind(inputs)
        program = self.subject.program

        def run(part: EpilogueProgram, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            return self._launch(part, tensors, allocate)

        if isinstance(program, Plan):
            first = next(x for x in bound.values() if isinstance(x, torch.Tensor) and x.ndim == 2)
            compute = getattr(torch, compute_dtype(str(first.dtype).removeprefix("torch.")))
            return execute(program, program.bind((), bound), run, compute)
        return run(program, bound)

    def _launch(self, part: EpilogueProgram, tensors: Mapping[str, Any], allocate: Allocate) -> dict[str, torch.Tensor]:
        m, n, dtype = sizes_of(part, tensors)
        device = next(x.device for x in tensors.values() if isinstance(x, torch.Tensor))
        out = {
            o.name: allocate(part.output_shape(o.name, m, n), getattr(torch, part.output_dtype(o.name, dtype)), device)
            for o in part.outputs
        }
        bound = bind(part, (), tensors, out)
        artifact = self.artifact(part, bound.problem)
        self.backend.launch(artifact, bound.tensors)
        return out

    def artifact(self, part: EpilogueProgram, problem: Problem) -> Artifact:
        """Compiled for this process, once."""
        key = (part.digest, problem)
        if key not in self._artifacts:
            theirs = valid(self.schedule, self.backend, part, problem)
            self.with_own += theirs is not None
            schedule = theirs or self.backend.default_schedule(part, problem)
            self._artifacts[key] = self.backend.compile(part, problem, schedule, None)
        return self._artifacts[key]


def arch_here() -> str:
    """Architecture of the current GPU, such as sm_90."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def schedule_of(payload: Mapping[str, Any]) -> Schedule | None:
    """The author's schedule in a worker's payload, if there is one."""
    return Schedule.from_dict(payload["schedule"]) if payload["schedule"] else None


def own(schedule: Schedule | None, backend: str, part: EpilogueProgram) -> Schedule | None:
    """The schedule where it applies: it names the backend, and pointwise programs have none."""
    applies = schedule is not None and schedule.backend == backend and part.kind == "epilogue"
    return schedule if applies else None


def valid(schedule: Schedule | None, backend: Backend, part: EpilogueProgram, problem: Problem) -> Schedule | None:
    """An author's schedule where its backend takes it: it is made for the benchmark's sizes, and small ones may not have it."""
    mine = own(schedule, backend.name, part)
    if mine is None:
        return None
    try:
        backend.check(part, problem, mine)
    except BackendError:
        return None
    return mine


def submitted(schedule: Schedule | None, part: EpilogueProgram) -> tuple[Schedule, ...]:
    """An author's schedule among a job's, where it is meant for the program."""
    return () if schedule is None or own(schedule, schedule.backend, part) is None else (schedule,)


def in_turn(do: Callable[[], dict[str, Any]], *, wait_s: float) -> dict[str, Any]:
    """`do` while holding the current GPU's lock; INFRA_ERROR where it cannot be had within `wait_s` seconds."""
    device = current_gpu()
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(gpu_lock(device, timeout_s=wait_s))
        except GpuBusy as error:
            return {"status": "INFRA_ERROR", "reason": str(error), "evidence": {"waited_s": wait_s}}
        return do()


def problems(subject: Subject, inputs: Mapping[str, Any], arch: str | None) -> list[tuple[EpilogueProgram, Problem]]:
    """Every program that runs with its Problem. Only shapes, dtypes and strides of the inputs are looked at."""
    found: list[tuple[EpilogueProgram, Problem]] = []
    meta = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}

    def run(part: EpilogueProgram, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        bound = bind(part, (), tensors, None)
        found.append((part, dataclasses.replace(bound.problem, arch=arch)))
        return {name: bound.tensors[f"out.{name}"] for name in bound.outputs}

    bound, program = subject.bind(meta), subject.program
    if isinstance(program, Plan):
        execute(program, program.bind((), bound), run, torch.float32)
    else:
        run(program, bound)
    return found
