"""The command `bench`, and the measuring of `compare --run`: kernels against everything people use today, on this GPU.

    Asked    what is to be measured, how, and where results go
    bench    the command
    fresh    measure some kernels and keep the records beside them, for `compare --run`
    Fresh    what became of that

Results are written as they come (`results.jsonl` below --out); `--resume` measures what it does not have. Neighbours: `agent.keeping.
benchmarks` finds kernels and keeps records, `agent.verify.suite` runs them, `agent.keeping.results` has the table.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda.bench.record import short

from .. import files
from ..errors import FolderUnusable, PlotsUnavailable, UsageError
from ..keeping import shelves as kernels
from ..task import Task
from . import render
from .flags import number, one_of
from .judging import Judging
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from coda.bench.record import BenchRecord

    from ..keeping.benchmarks import Sweep, Target
    from ..verify.suite import Machine, Options, Result

PROTOCOLS = ("default", "paper")
LOG = "results.jsonl"
RIGHT = ("µs", "compile", "quack", "÷ cuBLAS", "÷ empty epilogue", "of the floor", "host, µs")


@dataclass(frozen=True)
class Asked:
    """What was asked for."""

    subjects: tuple[str, ...]
    everything: bool = False
    """Every example of a task and every kept kernel."""
    shapes: str = ""
    peers: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    protocol: str = "default"
    rounds: int = 25
    resume: bool = False
    out: Path | None = None
    """A folder, or a file for the records alone."""
    plots: Path | None = None
    tune: bool = False
    keep: bool = False
    cache_dir: Path | None = None
    parallel: int = 0
    budget_s: float | None = None

    @property
    def judging(self) -> Judging:
        """The flags that the judge's commands have too."""
        return Judging(backends=self.backends, shapes=self.shapes, peers=self.peers)

    def check(self) -> None:
        """Cheap, before anything slow is imported. Raises `UsageError` or `PlotsUnavailable`."""
        self.judging.check()
        if bool(self.subjects) == self.everything:
            said = "nothing to measure was named" if not self.subjects else "--all and a name exclude each other"
            raise UsageError(said, hint="name tasks, curated examples or kept kernels, or say --all")
        if self.keep and (self.peers or self.backends):
            what = "--peers" if self.peers else "--backend"
            hint = f"leave out {what}, or write the records elsewhere with --out"
            raise UsageError(f"--keep with {what} would put a partial record in the place of a full one", hint=hint)
        one_of("--protocol", self.protocol, PROTOCOLS, "protocol")
        if self.resume and self.out is None:
            raise UsageError("--resume does not say what to go on with", hint="name it: --out DIR")
        number("--rounds", self.rounds, least=3, hint="fewer have no spread; 25 is usual")
        number("--parallel", self.parallel, least=0, hint="0: by processors")
        number("--budget", self.budget_s, hint="seconds; leave it out for no limit")
        if self.tune and self.cache_dir is not None:
            hint = "set CODA_CACHE_DIR: the tuner keeps its schedules there, and calls find them there"
            raise UsageError("--tune does not write to --cache-dir", hint=hint)
        if self.plots is not None:
            require_matplotlib()


def require_matplotlib() -> None:
    """Before anything is measured. Raises `PlotsUnavailable`."""
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'coda-agent[plot]', or leave out --plots: pictures can be drawn later with --resume"
        raise PlotsUnavailable("matplotlib is not installed", hint=hint)


def bench(terminal: Terminal, asked: Asked) -> Answer:
    """The command `bench`."""
    asked.check()
    from ..keeping import benchmarks, measured, results

    settings = terminal.settings()
    found = benchmarks.targets(
        asked.subjects, folders=kernels.shelves(settings), runs=settings.runs_dir, everything=asked.everything
    )
    jobs = benchmarks.jobs(found, _shapes(asked), asked.peers)
    options = _options(asked)
    log = benchmarks.Log(_log(asked, settings.runs_dir))
    _require_places(asked, log.path)
    where = machine(options)
    if asked.keep:
        benchmarks.readable(found, where.environment.get("gpu", measured.UNKNOWN))
    tuned = _tuned(terminal, asked, found) if asked.tune else None
    sweep = benchmarks.measure(
        jobs, where, options, log, resume=asked.resume, tell=terminal.detail, heard=_heard(terminal)
    )
    records = [r for r in map(benchmarks.record_of, sweep.results) if r is not None]
    paths = _written(asked, log.path, records)
    if asked.keep:
        paths += [("records", path) for path in benchmarks.keep(found, sweep.results)]
    rows = results.table(records)
    answer = _answer(sweep, where, records, rows, paths, resume=log.path.parent if asked.out is None else asked.out)
    return answer if tuned is None else with_tuning(answer, tuned)


def machine(options: Options) -> Machine:
    """Where it runs. Raises `BenchUnavailable`."""
    from ..verify import suite

    return suite.machine(options)


@dataclass(frozen=True)
class Fresh:
    """What was measured before a comparison, and what was not."""

    paths: tuple[Path, ...] = ()
    """Of the records."""
    failed: tuple[str, ...] = ()
    """A sentence each."""
    left: int = 0
    """Not reached."""

    def beside(self, answer: Answer) -> Answer:
        """The comparison, with what it shows from older records, or not at all: that is no success."""
        paths = (*answer.paths, *(("records", path) for path in self.paths))
        said = [f"not measured now, so what is shown of it is older: {sentence}" for sentence in self.failed]
        said += [f"{self.left} measurement(s) not reached: what is shown of them is older"] if self.left else []
        answer = dataclasses.replace(answer, paths=paths, warnings=(*answer.warnings, *said))
        if not said or answer.exit is not Exit.OK:
            return answer
        missing = f"{len(self.failed)} of the measurements failed" + (f", {self.left} not reached" if self.left else "")
        failure = Failure("incomplete", missing, "measure these with `coda-agent bench NAME --keep`, then compare")
        return dataclasses.replace(answer, exit=Exit.GOAL_NOT_MET, failure=failure)


def fresh(terminal: Terminal, texts: Sequence[str], *, everything: bool = False) -> Fresh:
    """Measure these kernels, and the curated examples of their tasks, at the tasks' benchmark sizes, and keep the records beside
    them: in one sweep, so that they can be compared. Raises `UsageError`, `BenchUnavailable`."""
    asked = Asked(() if everything else tuple(texts), everything, keep=True)
    asked.check()
    from ..keeping import benchmarks, measured

    settings = terminal.settings()
    shelves, runs = kernels.shelves(settings), settings.runs_dir
    found = benchmarks.targets(asked.subjects, folders=shelves, runs=runs, everything=everything)
    found = benchmarks.with_examples(found)
    options = _options(asked)
    log = benchmarks.Log(_log(asked, runs))
    where = machine(options)
    benchmarks.readable(found, where.environment.get("gpu", measured.UNKNOWN))
    sweep = benchmarks.measure(
        benchmarks.jobs(found, _shapes(asked)),
        where,
        options,
        log,
        resume=False,
        tell=terminal.detail,
        heard=_heard(terminal),
    )
    failed = tuple(_failed(r) for r in sweep.results if r.record is None)
    return Fresh(tuple(benchmarks.keep(found, sweep.results)), failed, sweep.left)


# how ------------------------------------------------------------------------------------------------------------------


def _shapes(asked: Asked) -> Callable[[Task], Sequence[Mapping[str, int]]]:
    def shapes(task: Task) -> Sequence[Mapping[str, int]]:
        named = asked.judging.options(task).bench_shapes
        return named or [s.dims for s in task.shapes_of("benchmark")]

    return shapes


def _options(asked: Asked) -> Options:
    from coda.bench import caches

    from ..verify.suite import Options

    return Options(
        rounds=asked.rounds,
        protocol=asked.protocol,
        backends=asked.backends,
        parallel=asked.parallel,
        stop_s=asked.budget_s,
        env={} if asked.cache_dir is None else caches.variables(asked.cache_dir),
    )


def folder_of_now(runs: Path) -> Path:
    """A folder of now for what is measured, beside the runs."""
    return runs.parent / "bench" / datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")


def _log(asked: Asked, runs: Path) -> Path:
    """Where results go as they come."""
    if asked.out is None:
        return folder_of_now(runs) / LOG
    return asked.out.with_suffix(".jsonl") if asked.out.suffix == ".json" else asked.out / LOG


def _records(asked: Asked, log: Path) -> Path:
    """Where the records go that came of it."""
    return asked.out if asked.out is not None and asked.out.suffix == ".json" else log.parent / "records.json"


def _require_places(asked: Asked, log: Path) -> None:
    """Before anything is measured. Raises `FolderUnusable`."""
    wanted = [(asked.out or log.parent, path) for path in (log, _records(asked, log))]
    wanted += [(asked.plots, asked.plots / "times.svg")] if asked.plots is not None else []
    for named, path in wanted:
        try:
            files.require_place(path)
            if path == log and log.exists():
                os.close(os.open(log, os.O_WRONLY | os.O_APPEND))
        except OSError as error:
            what = f"results go to {str(named)!r}, which cannot be written: {error.strerror}"
            raise FolderUnusable(what, hint="name another place") from error


def _tuned(terminal: Terminal, asked: Asked, found: Sequence[Target]) -> Answer:
    """The fastest schedules first: a call takes them from the cache."""
    from . import tune

    terminal.say(f"tuning {render.count(len(found), 'kernel')}")
    wanted = tune.Asked(asked.subjects, everything=asked.everything, shapes=asked.shapes, backends=asked.backends)
    return tune.tune(terminal, wanted, found)


def with_tuning(answer: Answer, tuned: Answer) -> Answer:
    """What was not tuned ran with a schedule that nobody measured: it is said, and no success."""
    from . import tune

    data = {**answer.data, "tuned": tuned.data}
    said = [*answer.warnings, *tuned.warnings]
    if tuned.failure is None:
        return dataclasses.replace(answer, data=data, warnings=tuple(said))
    said.append(f"--tune: {tuned.failure.message}: these were timed with the schedules that they had")
    said += [
        f"{job['program']} at {job['m']}×{job['n']}×{job['k']}: {job['reason']}"
        for job in tuned.data["jobs"]
        if job["status"] in tune.UNTUNED
    ]
    answer = dataclasses.replace(answer, data=data, warnings=tuple(said))
    failure = dataclasses.replace(
        tuned.failure, hint="the warnings say why; run it again: what is tuned already is known"
    )
    return answer if answer.failure else dataclasses.replace(answer, exit=tuned.exit, failure=failure)


def _heard(terminal: Terminal) -> Callable[[Result], None]:
    """A line per result."""

    def heard(result: Result) -> None:
        terminal.say(f"{result.kernel} {short(result.dims)}: {result.status} {result.reason}".rstrip())

    return heard


# what came of it ------------------------------------------------------------------------------------------------------


def _written(asked: Asked, log: Path, records: Sequence[BenchRecord]) -> list[tuple[str, Path]]:
    """Records, and pictures where they were asked for."""
    from ..keeping import benchmarks

    paths = [("results", log)]
    if records:
        target = _records(asked, log)
        benchmarks.write(target, records)
        paths.append(("records", target))
    if asked.plots is not None:
        from coda.bench import plots

        paths += [("picture", path) for path in plots.draw(records, asked.plots) if path.suffix == ".svg"]
    return paths


def _answer(
    sweep: Sweep,
    where: Machine,
    records: Sequence[BenchRecord],
    rows: Sequence[dict[str, str]],
    paths: list[tuple[str, Path]],
    *,
    resume: Path,
) -> Answer:
    """`resume` is what --out names to go on with the same log."""
    failed = [r for r in sweep.results if r.record is None]
    data = {
        "gpu": where.environment.get("gpu"),
        "environment": dict(where.environment),
        "rows": list(rows),
        "records": [json.loads(r.to_json()) for r in records],
        "failed": [{"kernel": r.kernel, "dims": r.dims, "status": str(r.status), "reason": r.reason} for r in failed],
        "reused": sweep.reused,
        "not_reached": sweep.left,
        "paths": [{"what": what, "path": str(path)} for what, path in paths],
    }

    def show() -> Iterator[Any]:
        if rows:
            yield render.table_of(rows, list(rows[0]), right=RIGHT)
        for r in failed:
            yield f"not measured: {_failed(r)}"
        yield from _lost(sweep)
        if records:
            e = records[0].environment
            known = ("gpu", "driver", "sm_clock_mhz", "power_limit_w", "cuda", "torch", "triton", "quack-kernels")
            yield ", ".join(f"{name} {e[name]}" for name in known if name in e)
            p = records[0].protocol
            yield f"protocol {p.get('name', 'default')}, {p['rounds']} rounds, cold L2; times are the peer's over the kernel's"

    if sweep.left or failed:
        missing = f"{len(failed)} not measured" + (f", {sweep.left} not reached in time" if sweep.left else "")
        failure = Failure("incomplete", missing, f"`--resume --out {shlex.quote(str(resume))}` goes on")
        return Answer(data, show, Exit.GOAL_NOT_MET, failure, paths=tuple(paths))
    return Answer(data, show, paths=tuple(paths))


def _failed(result: Result) -> str:
    return f"{result.kernel} at {short(result.dims)}: {result.status} {result.reason}".rstrip()


def _lost(sweep: Sweep) -> Iterator[str]:
    """Peers that should have been measured and were not."""
    for r in sweep.results:
        for peer, why in r.absent.items():
            if not why.startswith(("not applicable", "not asked for", "not installed")):
                yield f"{r.kernel} at {short(r.dims)}: {peer}: {why}"
    gone = dict.fromkeys(
        (p, why) for r in sweep.results for p, why in r.absent.items() if why.startswith("not installed")
    )
    yield from (f"{peer}: {why}" for peer, why in gone)
