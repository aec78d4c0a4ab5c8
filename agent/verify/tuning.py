"""Schedules by measurement, for what is judged: which programs at which sizes, and tuning them before a benchmark.

    jobs_at   what a task's program runs at some sizes, with the author's schedule where it applies
    tuned     the step before gate `bench` where it was asked for: the author's schedule races among the tuner's candidates

What wins is kept in the user's cache as `coda-agent tune` keeps it, so the benchmark that follows runs the kernel as a user's
call runs it from then on; whether it was the author's is in the gate's evidence. Neighbours: `coda.tuning` measures,
`runner.problems` knows what a plan runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from coda.problem import ITEM_BYTES, Problem, Schedule
from coda.tuning import Job, Outcome, tune

from ..task import Dims
from .inputs import blank
from .runner import arch_here, problems, submitted
from .subject import Subject

if TYPE_CHECKING:
    from .judge import Run as Judgement

Layout = Literal["row", "col"]
DTYPE = "bfloat16"
"""Of gate `bench`."""


def jobs_at(
    subject: Subject,
    dims: Dims,
    *,
    arch: str | None,
    dtype: str = DTYPE,
    schedule: Schedule | None = None,
    weights: tuple[Layout, ...] = ("row",),
) -> list[Job]:
    """One job per program that runs and per layout of `b` ("row", or "col" as a linear layer's `weight.mT`), each once."""
    found: dict[Job, None] = {}
    for part, problem in problems(subject, blank(subject.task, dims, dtype), arch):
        extra = submitted(schedule, part)
        for layout in weights if part.kind == "epilogue" else weights[:1]:
            found[Job(part, with_b(problem, layout), extra)] = None
    return list(found)


def with_b(problem: Problem, layout: Layout) -> Problem:
    """The problem with `b` in that layout, contiguous there."""
    if layout == "row" or "b" not in dict(problem.tensors):
        return problem
    aligned = problem.k * ITEM_BYTES[problem.dtype] % 16 == 0
    specs = tuple(
        (name, dataclasses.replace(spec, layout=layout, aligned=aligned) if name == "b" else spec)
        for name, spec in problem.tensors
    )
    return dataclasses.replace(problem, tensors=specs)


def tuned(run: Judgement) -> list[dict[str, JsonValue]]:
    """Tune every program of the judged kernel at the benchmark's shapes, if that was asked for: what won, for the evidence."""
    if not run.options.tune or run.subject is None:
        return []
    arch = arch_here()
    shapes = run.options.bench_shapes or tuple(dict(s.dims) for s in run.task.shapes_of("benchmark"))
    jobs: dict[Job, None] = {}
    for dims in shapes:
        jobs.update(dict.fromkeys(jobs_at(run.subject, dims, arch=arch, schedule=run.schedule)))
    outcomes = tune(list(jobs), backends=run.options.backends, budget_s=run.limits.tune_s)
    return [said(outcome, run.schedule) for outcome in outcomes]


def said(outcome: Outcome, schedule: Schedule | None = None) -> dict[str, JsonValue]:
    """One outcome as plain JSON."""
    problem, entry = outcome.job.problem, outcome.entry
    plain: dict[str, JsonValue] = {
        "program": outcome.job.program.name,
        "digest": outcome.job.program.digest,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype,
        "b": dict(problem.tensors)["b"].layout if outcome.job.program.kind == "epilogue" else None,
        "status": outcome.status,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 2),
    }
    if entry is None:
        return plain
    words = [c.status for c in entry.candidates]
    counts: Mapping[str, int] = {word: words.count(word) for word in dict.fromkeys(words)}
    return {
        **plain,
        "backends": list(entry.backends),
        "winner": entry.first.schedule.to_dict(),
        "origin": "author" if entry.first.schedule == schedule else entry.first.origin,
        "us": round(entry.first.median * 1e6, 3),
        "untuned": None if entry.gain is None else round(entry.gain, 4),
        "candidates": dict(counts),
    }
