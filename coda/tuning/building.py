"""Compiling without racing, in parallel processes.

    compile_only   jobs and an architecture in; registers, spills and shared memory of each candidate out
    Built          one of them
    build_ahead    what jobs will run on the GPU that is here, so that their calls find it on disk

The first needs no GPU and keeps nothing: it shows what a program's candidates cost, and that they compile. The second keeps
what compilers keep, and says nothing: whatever does not compile shows in the call that needs it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coda.backends import registry
from coda.problem import Schedule
from coda.tune import standings
from coda.tuning import steps
from coda.tuning.contest import OF_ERRORS, contestants
from coda.tuning.crew import Answer, Crew
from coda.tuning.jobs import Job
from coda.tuning.search import builders, request_of

SECONDS = 330.0
"""Of one candidate: what the slowest backend allows its own compiler, and the start of a process."""


@dataclass(frozen=True)
class Built:
    """One candidate of one job."""

    job: Job
    schedule: Schedule
    status: Literal["built", "refused", "failed", "timeout", "crash"]
    """`refused`: no kernel can have the schedule, or its backend cannot express the program at all; `failed`: compiling raised
    something else."""
    reason: str = ""
    registers: int | None = None
    """Per thread, of the GEMM kernel."""
    spills: int | None = None
    """Bytes of local memory per thread."""
    shared_memory: int | None = None
    """Bytes per block."""
    seconds: float = 0.0


def compile_only(
    jobs: Sequence[Job],
    arch: str,
    *,
    backends: Sequence[str] = (),
    workers: int | None = None,
    most: int | None = None,
    on_built: Callable[[Built, int, int], None] | None = None,
) -> list[Built]:
    """Compile every candidate of every job for `arch`, in parallel processes. `on_built` hears each with its number and the
    number of all; `most`: so many of each backend, in its order. Never raises for what a candidate does."""
    wanted = [x for job in _at(jobs, arch) for x in _wanted(job, backends, most)]
    found: dict[int, Built] = {}

    def ended(at: int, built: Built) -> None:
        found[at] = built
        if on_built is not None:
            on_built(built, len(found), len(wanted))

    with Crew(workers if workers is not None else builders(())) as crew:
        for at, (job, schedule, status, reason) in enumerate(wanted):
            if status == "refused":  # known without compiling
                ended(at, Built(job, schedule, "refused", reason))
                continue
            request = {**steps.request_of(job.program, job.problem), "step": "build", "arch": arch}
            request |= {"modules": dict(registry.MODULES), "schedule": schedule.to_dict()}

            def done(answer: Answer, at: int = at, job: Job = job, schedule: Schedule = schedule) -> None:
                ended(at, _built(job, schedule, answer))

            crew.submit(request, SECONDS, done)
        while len(found) < len(wanted):
            crew.pump(1.0)
    return [found[at] for at in range(len(wanted))]


def build_ahead(
    jobs: Sequence[Job], *, backends: Sequence[str] = (), workers: int | None = None, budget_s: float = SECONDS
) -> int:
    """Compile what every backend would run for each job, untuned, and its submitted schedules, into the compilers' own caches:
    how many kernels were built. Whoever builds one kernel after the other in a single process is quicker after it."""
    wanted = dict.fromkeys(
        (job, c.schedule)
        for job in jobs
        for c in contestants(
            job, [s.backend for s in standings(job.program, job.problem, backends) if s.backend], None, 1
        )
        if c.status != "refused"
    )
    until, answers = time.monotonic() + budget_s, list[Answer]()
    with Crew(min(len(wanted), workers if workers is not None else builders(jobs))) as crew:
        for job, schedule in wanted:
            crew.submit({**request_of(job, "build"), "schedule": schedule.to_dict()}, SECONDS, answers.append)
        while len(answers) < len(wanted) and time.monotonic() < until:
            crew.pump(max(0.0, min(1.0, until - time.monotonic())))
    return sum(a.kind == "value" for a in answers)


def _at(jobs: Sequence[Job], arch: str) -> list[Job]:
    return [dataclasses.replace(job, problem=dataclasses.replace(job.problem, arch=arch)) for job in jobs]


def _wanted(job: Job, names: Sequence[str], most: int | None) -> list[tuple[Job, Schedule, str, str]]:
    """Candidates with their states. A backend that was named and cannot express the program, and every one where none can, has
    one line too, with the reason."""
    asked = list(standings(job.program, job.problem, names, here=False))
    can = [s.backend for s in asked if s.backend is not None]
    found = [(job, c.schedule, str(c.status), c.reason) for c in contestants(job, can, None, most)]
    tell = bool(names) or not can
    return found + [(job, Schedule(s.name), "refused", s.reason) for s in asked if tell and s.backend is None]


def _built(job: Job, schedule: Schedule, answer: Answer) -> Built:
    if answer.kind == "value":
        told = answer.value
        return Built(
            job,
            schedule,
            "built",
            registers=told["registers"],
            spills=told["spills"],
            shared_memory=told["shared_memory"],
            seconds=round(told["seconds"], 3),
        )
    if answer.kind == "error":
        return Built(job, schedule, "refused" if answer.code in OF_ERRORS else "failed", answer.reason)
    return Built(job, schedule, answer.kind, answer.reason)
