"""The reference backend: PyTorch on any device and in any float dtype, rounded once at each store.

It is what a program means, in the dtypes of a call: slow, and always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coda.backends.registry import Artifact, Support
from coda.errors import BadSchedule
from coda.evaluate import evaluate
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram


class Reference:
    """Implements `coda.backends.registry.Backend`."""

    name = "reference"
    table = "1"

    def available(self) -> Support:
        """Always."""
        return Support(True)

    def supports(self, program: EpilogueProgram, problem: Problem) -> Support:
        """Every program."""
        return Support(True)

    def default_schedule(self, program: EpilogueProgram, problem: Problem) -> Schedule:
        """There is nothing to choose."""
        return Schedule(backend="reference")

    def candidates(self, program: EpilogueProgram, problem: Problem) -> list[Schedule]:
        """None: there is nothing to choose."""
        return []

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        """Only its own one."""
        if schedule != Schedule(backend="reference"):
            raise BadSchedule("the reference backend has no schedules", got=schedule, expected="none")

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        """There is nothing to compile."""
        return Artifact(self.name, program, problem, schedule, source="")

    def prepare(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """There is nothing to build."""

    def launch(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """Evaluate and copy into the outputs."""
        problem = artifact.problem
        results = evaluate(
            artifact.program,
            {name: t for name, t in tensors.items() if not name.startswith("out.")},
            m=problem.m,
            n=problem.n,
            dtype=getattr(torch, problem.compute),
            stored_as=problem.dtype,
        )
        for name, value in results.items():
            tensors[f"out.{name}"].copy_(value)


BACKEND = Reference()
