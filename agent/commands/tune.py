"""The command `tune`: which backend and schedule runs a program fastest here, measured and kept for later calls.

    Asked     what was asked for: whose programs, at which sizes, how
    tune      the command
    measured  its last step, for programs that a caller has found, `each_once`

A subject is a task (its curated example and its kept kernels are tuned), one of these by name, or a kernel file. Programs are
tuned at the sizes that a task's shapes lead to, so a plan's second program at what its first one writes; equal ones once.
`coda.tuning` measures; `verify/tuning.py` knows what a task's program runs. `--compile-only` builds every candidate without a
GPU, `--dry-run` lists what would be tuned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BenchUnavailable, UsageError
from ..keeping.scheduled import LEGEND, short
from ..task import Dims, cards, find, load
from . import render
from .flags import lengths, number, one_of
from .judging import Judging
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from coda.problem import Schedule
    from coda.tuning import Built, Job, Outcome, Progress

    from ..keeping.benchmarks import Target
    from ..verify.subject import Subject

DTYPES = ("bfloat16", "float16", "float32")
WEIGHTS = ("row", "col", "both")
DEFAULT_ARCH = "sm_90"
UNTUNED = ("failed", "skipped")
"""Of the words for what became of a job, those that leave it with the schedule that it had."""
COLUMNS = (
    "program",
    "digest",
    "M×N×K",
    "dtype",
    "b",
    "result",
    "backend",
    "schedule",
    "µs",
    "untuned/tuned",
    "timed",
    "s",
)
RIGHT = ("µs", "untuned/tuned", "timed", "s")
BUILT_COLUMNS = ("program", "digest", "M×N×K", "backend", "schedule", "result", "regs", "spills, B", "smem, B", "s")


@dataclass(frozen=True)
class Asked:
    """What was asked for."""

    subjects: tuple[str, ...]
    everything: bool = False
    """Every task's curated example and kept kernels."""
    task: str | None = None
    """Of a kernel file."""
    shapes: str = ""
    backends: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    weights: str = "row"
    """Layout of `b`: "row", "col" as a linear layer's `weight.mT`, or "both"."""
    arch: str | None = None
    budget_s: float | None = None
    workers: int | None = None
    most: int | None = None
    """Candidates of each backend, in its order."""
    force: bool = False
    dry_run: bool = False
    compile_only: bool = False

    @property
    def judging(self) -> Judging:
        """The flags that the judge's commands have too."""
        return Judging(arch=self.arch, backends=self.backends, shapes=self.shapes)

    def check(self) -> None:
        """Cheap, before anything slow is imported. Raises `UsageError`."""
        self.judging.check()
        if bool(self.subjects) == self.everything:
            said = "nothing to tune was named" if not self.subjects else "--all and a name exclude each other"
            raise UsageError(said, hint="name tasks, examples, kept kernels or kernel files, or say --all")
        loose = [text for text in self.subjects if not text.endswith(".py")]
        if self.task is not None and (loose or self.everything):
            said = repr(loose[0]) if loose else "--all"
            raise UsageError(f"--task is that of a kernel file, and {said} is none", hint="leave out --task")
        one_of("--dtype", self.dtype, DTYPES, "dtype of a GEMM that is tuned")
        one_of("--weights", self.weights, WEIGHTS, "layout")
        number("--budget", self.budget_s, hint="seconds; leave it out for no limit")
        number("--workers", self.workers, hint="leave it out: then processors and memory decide")
        number("--most", self.most, hint="leave it out for all candidates")
        if self.dry_run and self.compile_only:
            raise UsageError("--dry-run and --compile-only exclude each other", hint="leave one out")


def tune(terminal: Terminal, asked: Asked, found: Sequence[Target] | None = None) -> Answer:
    """The command `tune`. `found` are its subjects, where they have been looked up already."""
    asked.check()
    arch = arch_of(asked)
    wanted: list[Job] = []
    warnings: dict[str, None] = {}
    for subject, schedule in _subjects(terminal, asked) if found is None else map(_subject, found):
        try:
            wanted += _jobs(subject, schedule, asked, arch)
        except UsageError as error:
            if not asked.everything:
                raise
            warnings.setdefault(f"left out: {error.what}")
    jobs = each_once(wanted)
    if not jobs:
        raise UsageError("nothing is left to tune", hint="; ".join(warnings))
    if asked.dry_run:
        return _planned(jobs, asked, list(warnings))
    if asked.compile_only:
        return _compiled(terminal, jobs, asked, arch, list(warnings))
    return measured(terminal, jobs, asked, list(warnings))


def arch_of(asked: Asked) -> str:
    """Of the GPU; without one what is asked for, where nothing is measured. Raises `BenchUnavailable` or `UsageError`."""
    import torch

    from ..verify.runner import arch_here

    here = arch_here() if torch.cuda.is_available() else None
    if asked.dry_run or asked.compile_only:
        return asked.arch or here or DEFAULT_ARCH
    if here is None:
        raise BenchUnavailable(
            "tuning measures, and there is no GPU here",
            hint="`coda-agent tune --compile-only` builds every candidate without one; --dry-run lists them",
        )
    if asked.arch not in (None, here):
        raise UsageError(
            f"--arch {asked.arch} is not this GPU's, which is {here}", hint="--compile-only takes another one"
        )
    return here


# subjects -------------------------------------------------------------------------------------------------------------


def _subjects(terminal: Terminal, asked: Asked) -> Iterator[tuple[Any, Schedule | None]]:
    """Every subject as a `Subject` of a task, or as a plain program, with the schedule that came with it."""
    if asked.everything:
        yield from _named(terminal, None)
    for text in asked.subjects:
        if text.endswith(".py"):
            yield _file(Path(text), asked)
        elif (example := _taskless(text)) is not None:
            yield example, None
        else:
            yield from _named(terminal, text)


def _taskless(text: str) -> Any:
    """The program of a curated example that belongs to no task: it is tuned at --shapes."""
    import examples_curated

    from ..keeping.compare import EXAMPLES

    name = text.removeprefix(EXAMPLES)
    return examples_curated.load(name).program if name in examples_curated.catalog() and name not in cards() else None


def _named(terminal: Terminal, text: str | None) -> Iterator[tuple[Subject, Schedule | None]]:
    """What a name stands for, as for `bench`: a task for its example and its kept kernels; without a name everything. Raises
    `UnknownSubject`, `KernelDamaged`."""
    from ..keeping import benchmarks, shelves

    settings = terminal.settings()
    folders, texts = shelves.shelves(settings), () if text is None else (text,)
    found = benchmarks.targets(texts, folders=folders, runs=settings.runs_dir, everything=text is None)
    yield from map(_subject, found)


def _subject(target: Target) -> tuple[Subject, Schedule | None]:
    from coda.problem import Schedule

    from ..verify.subject import Subject

    schedule = None if target.schedule is None else Schedule.from_dict(target.schedule)
    return Subject.read(target.program, load(target.task)), schedule


def _file(path: Path, asked: Asked) -> tuple[Any, Schedule | None]:
    """A kernel file, traced in a process of its own. Without a task it is a program at --shapes."""
    from coda.kernel import from_json

    from ..verify import static, tracer
    from ..verify.subject import Subject
    from .judging import read_source

    task = load(find(asked.task).id) if asked.task else None
    report = static.check(read_source(path))
    if not report.ok:
        first = report.findings[0]
        raise UsageError(f"{str(path)!r}: line {first.line}: {first.message}", hint="verify it first")
    traced = tracer.trace(report.source, operand_dtypes=task.operand_dtypes() if task else None)
    if traced.program_json is None:
        said = traced.error.message if traced.error is not None else traced.status
        raise UsageError(f"{str(path)!r} cannot be traced: {said}", hint="verify it first")
    return (Subject.read(traced.program_json, task) if task else from_json(traced.program_json).program), None


def _jobs(subject: Any, schedule: Schedule | None, asked: Asked, arch: str) -> list[Job]:
    """What is tuned of a subject."""
    from ..verify.subject import Subject
    from ..verify.tuning import jobs_at

    weights: tuple[Any, ...] = ("row", "col") if asked.weights == "both" else (asked.weights,)
    if not isinstance(subject, Subject):
        return _plain_jobs(subject, asked, arch, weights)
    shapes: Sequence[Dims] = asked.judging.options(subject.task).bench_shapes
    found: dict[Job, None] = {}
    for dims in shapes or tuple(s.dims for s in subject.task.shapes_of("benchmark")):
        found.update(
            dict.fromkeys(jobs_at(subject, dims, arch=arch, dtype=asked.dtype, schedule=schedule, weights=weights))
        )
    return list(found)


def each_once(wanted: Sequence[Job]) -> list[Job]:
    """One job per digest and problem, with the schedules of all: kernels of one task often share a program."""
    found: dict[Any, Job] = {}
    for job in wanted:
        known = found.setdefault((job.program.digest, job.problem), job)
        extra = tuple(dict.fromkeys((*known.extra, *job.extra)))
        found[job.program.digest, job.problem] = dataclasses.replace(known, extra=extra)
    return list(found.values())


def _plain_jobs(program: Any, asked: Asked, arch: str, weights: Sequence[Any]) -> list[Job]:
    """A program without a task, at M×N×K."""
    from coda.plan import Plan
    from coda.problem import Problem
    from coda.tuning import Job

    from ..verify.tuning import with_b

    if isinstance(program, Plan):
        raise UsageError(f"{program.name} is a plan: its sizes come from a task", hint="name the task with --task")
    found = []
    for text in asked.shapes.split(",") if asked.shapes else ():
        m, n, k = lengths(text, ("M", "N", "K"), program.name)
        problem = Problem.example(program, m=m, n=n, k=k, dtype=asked.dtype, arch=arch)
        found += [Job(program, with_b(problem, layout)) for layout in weights]
    if not found:
        raise UsageError(f"{program.name} has no task to take sizes from", hint="say --shapes MxNxK, or --task ID")
    return list(dict.fromkeys(found))


# answers --------------------------------------------------------------------------------------------------------------


def _planned(jobs: list[Job], asked: Asked, warnings: list[str]) -> Answer:
    """--dry-run."""
    from coda import schedules
    from coda.tune import standings
    from coda.tuning.contest import contestants

    rows: list[dict[str, Any]] = []
    for job in jobs:
        can = [s.backend for s in standings(job.program, job.problem, asked.backends, here=False) if s.backend]
        key = schedules.key_of(job.program, job.problem)
        known = schedules.read(key) if key is not None else None
        count = {b.name: len(contestants(job, [b], None, asked.most)) for b in can}
        rows.append({**_about(job), "candidates": count, "known": known is not None})

    def show() -> Iterator[Any]:
        shown = [
            {**row, "candidates": _counted(row["candidates"]), "known": "yes" if row["known"] else "no"} for row in rows
        ]
        yield render.table_of(shown, ("program", "digest", "M×N×K", "dtype", "b", "candidates", "known"))

    return Answer({"dry_run": True, "jobs": rows}, show, warnings=tuple(warnings))


def _compiled(terminal: Terminal, jobs: list[Job], asked: Asked, arch: str, warnings: list[str]) -> Answer:
    """--compile-only."""
    from coda.tuning import compile_only

    with render.Share("compiling", terminal.say, terminal.live) as advance:
        found = compile_only(
            jobs,
            arch,
            backends=asked.backends,
            workers=asked.workers,
            most=asked.most,
            on_built=lambda built, at, total: advance(at, total, str(built.job)),
        )
    rows = [_built_row(b) for b in found]
    built = {str(b.job) for b in found if b.status == "built"}
    empty = [str(job) for job in jobs if str(job) not in built]

    def show() -> Iterator[Any]:
        yield render.table_of(rows, BUILT_COLUMNS, right=BUILT_COLUMNS[6:])
        yield LEGEND
        yield from (
            f"{r['program']}, {r['schedule']}: {r['reason']}" for r in rows if r["reason"] and terminal.options.verbose
        )
        yield f"{sum(r['result'] == 'built' for r in rows)} of {len(rows)} candidates compile for {arch}"

    code, failure = Exit.OK, None
    if empty:
        code = Exit.GOAL_NOT_MET
        failure = Failure("not-built", f"no candidate compiles: {'; '.join(empty)}", "-v shows each one's reason")
    data = {"arch": arch, "candidates": [_built_data(b) for b in found]}
    return Answer(data, show, code, failure, tuple(warnings))


def measured(terminal: Terminal, jobs: list[Job], asked: Asked, warnings: Sequence[str] = ()) -> Answer:
    """The tuning itself."""
    from coda import env
    from coda.schedules import FOLDER
    from coda.tuning import Protocol
    from coda.tuning import tune as run

    from ..verify.tuning import said

    with render.Share("tuning", terminal.say, terminal.live) as advance:
        stages = {"build": 0.0, "try": 1 / 3, "race": 2 / 3, "done": 1.0}

        def told(progress: Progress) -> None:
            if progress.stage == "build" and progress.number > 0:
                return  # those of later jobs run beside the present race
            share = stages[progress.stage] + progress.done / max(progress.total, 1) / 3
            what = f"{progress.job}: {progress.stage} {progress.done} of {progress.total}"
            advance(progress.number + min(1.0, share), progress.jobs, what)

        outcomes = run(
            jobs,
            backends=asked.backends,
            force=asked.force,
            budget_s=asked.budget_s,
            workers=asked.workers,
            protocol=Protocol(most=asked.most),
            on_progress=told,
        )
    rows = [_row(o) for o in outcomes]

    def show() -> Iterator[Any]:
        yield render.table_of(rows, COLUMNS, right=RIGHT)
        if any(o.entry is not None for o in outcomes):
            yield LEGEND
        if terminal.options.verbose:
            yield from _losers(outcomes)
        yield from (f"{o.job}: {o.reason}" for o in outcomes if o.entry is None)

    without = [o for o in outcomes if o.status in UNTUNED]
    code, failure = Exit.OK, None
    if without:
        late = sum(o.status == "skipped" for o in without)
        text = f"{len(without)} of {len(outcomes)} not tuned" + (f", {late} of them for want of time" if late else "")
        code, failure = (
            Exit.GOAL_NOT_MET,
            Failure("not-tuned", text, "the table says why; a larger --budget goes on from here"),
        )
    data = {"jobs": [{**said(o), "path": None if o.path is None else str(o.path)} for o in outcomes]}
    return Answer(data, show, code, failure, tuple(warnings), paths=(("measured schedules", env.cache_dir() / FOLDER),))


def _losers(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for o in outcomes:
        for c in o.entry.candidates if o.entry is not None else ():
            time = f"{c.median * 1e6:.1f} µs" if c.samples else f"{c.status}: {c.reason}"
            yield f"{o.job}: {c.schedule.backend} {short(c.schedule)}: {time}"


# words ----------------------------------------------------------------------------------------------------------------


def _about(job: Job) -> dict[str, Any]:
    p = job.problem
    gemm = job.program.kind == "epilogue"
    return {
        "program": job.program.name,
        "digest": job.program.digest[:12],  # kernels of one task often share the name
        "M×N×K": f"{p.m}×{p.n}×{p.k}" if gemm else f"{p.m}×{p.n}",
        "dtype": p.dtype,
        "b": dict(p.tensors)["b"].layout if gemm else "",
    }


def _row(o: Outcome) -> dict[str, Any]:
    row = {**_about(o.job), "result": o.status, "s": f"{o.seconds:.1f}"}
    if o.entry is None:
        return row
    first, gain = o.entry.first, o.entry.gain
    timed = sum(bool(c.samples) for c in o.entry.candidates)
    return {
        **row,
        "backend": first.schedule.backend,
        "schedule": short(first.schedule),
        "µs": f"{first.median * 1e6:.1f}",
        "untuned/tuned": "" if gain is None else f"{gain:.3f}",
        "timed": f"{timed}/{len(o.entry.candidates)}",
    }


def _built_row(b: Built) -> dict[str, Any]:
    return {
        **_about(b.job),
        "backend": b.schedule.backend,
        "schedule": short(b.schedule),
        "result": b.status,
        "regs": b.registers,
        "spills, B": b.spills,
        "smem, B": b.shared_memory,
        "s": f"{b.seconds:.1f}",
        "reason": b.reason,
    }


def _built_data(b: Built) -> dict[str, Any]:
    p = b.job.problem
    return {
        "program": b.job.program.name,
        "digest": b.job.program.digest,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "dtype": p.dtype,
        "schedule": b.schedule.to_dict(),
        "status": b.status,
        "reason": b.reason,
        "registers": b.registers,
        "spills": b.spills,
        "shared_memory": b.shared_memory,
        "seconds": b.seconds,
    }


def _counted(candidates: dict[str, int]) -> str:
    return ", ".join(f"{backend} {count}" for backend, count in candidates.items())
