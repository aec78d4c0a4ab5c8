"""Tune: jobs in, outcomes out.

    tune       every job: build its candidates ahead, try each, race those that are right, keep the result
    Limits     seconds of every step
    Protocol   how a race is run
    Progress   what `on_progress` hears
    Outcome    what became of a job

While one job is raced, the builders compile the candidates of the next ones: compiling needs the processor, racing the GPU. A
candidate that raises, hangs, crashes or is wrong is out, with the reason; where it took the racing process with it, the others
go on in a new one. A job that is known already is not tuned again; one that another process is tuning is waited for.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from coda import call, schedules
from coda.backends import registry
from coda.backends.registry import Backend
from coda.bench.record import environment
from coda.bench.timing import GpuBusy, current_gpu, gpu_lock
from coda.schedules import Entry, Key
from coda.tune import standings, usable
from coda.tuning import steps, tensors
from coda.tuning.contest import OF_ERRORS, Contest, contestants
from coda.tuning.crew import Answer, Crew
from coda.tuning.jobs import Job


@dataclass(frozen=True)
class Limits:
    """Seconds, counted from outside the process that works."""

    build: float = 150.0
    setup: float = 180.0
    trial: float = 60.0
    """Compiling from what the builders left on disk, one launch, the comparison."""
    race: float = 120.0
    wait: float = 900.0
    """Of waiting for another process that measures on the GPU, or tunes the same key."""
    restarts: int = 6
    """How many candidates of one job may take the racing process with them; after that the rest is not tried."""


@dataclass(frozen=True)
class Protocol:
    """How a race is run: all once, then those that were nearly as fast again."""

    first: int = 5
    """Rounds in which everybody runs."""
    rounds: int = 21
    """Rounds of the finalists."""
    margin: float = 1.10
    """Who may be so much slower than the first and still be a finalist."""
    finalists: int = 8
    most: int | None = None
    """Candidates of each backend, in its order; None: all that it offers."""


@dataclass(frozen=True)
class Progress:
    """Something happened."""

    job: Job
    number: int
    jobs: int
    stage: Literal["build", "try", "race", "done"]
    done: int
    total: int


@dataclass(frozen=True)
class Outcome:
    """What became of a job: `tuned` now, `known` from before, `failed`, or `skipped` because the budget was used up."""

    job: Job
    status: Literal["tuned", "known", "failed", "skipped"]
    entry: Entry | None = None
    reason: str = ""
    seconds: float = 0.0
    path: pathlib.Path | None = None


def tune(
    jobs: Sequence[Job],
    *,
    backends: Sequence[str] = (),
    force: bool = False,
    budget_s: float | None = None,
    workers: int | None = None,
    limits: Limits | None = None,
    protocol: Protocol | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:
    """Measure each job's candidates and keep what won, for the calls of this and every later process.

    `backends`: those to race, instead of all that can run here; the known best of the others then races too, so that the
    record stays one that decides between them. `force`: also what is known. `budget_s`: no job is started later. `workers`:
    processes that build. Never raises for what a candidate does.
    """
    how = _How(
        tuple(backends), force, limits or Limits(), protocol or Protocol(), on_progress or (lambda progress: None)
    )
    until = None if budget_s is None else time.monotonic() + budget_s
    with Crew(workers if workers is not None else builders(jobs)) as crew:
        runs = [_Run(job, at, len(jobs), how, crew) for at, job in enumerate(jobs)]
        for run in runs:
            run.submit_builds()
        outcomes = []
        for run in runs:
            outcomes.append(run.outcome(until))
        return outcomes


def builders(jobs: Sequence[Job]) -> int:
    """One process per processor, and fewer where their tensors together would fill a GPU: a build allocates what it is for."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    on_gpu = [job for job in jobs if job.problem.arch is not None]
    if on_gpu:
        import torch

        if torch.cuda.is_available():
            free, _ = torch.cuda.mem_get_info()
            largest = max(tensors.size(job.program, job.problem) for job in on_gpu) + (1 << 30)  # and a context
            count = min(count, max(1, free // 2 // largest))
    return count


def request_of(job: Job, step: str) -> dict[str, Any]:
    """What a child must know to do a step for a job; which schedule is not in it."""
    request = {"step": step, "modules": dict(registry.MODULES), "device": _device(job)}
    about = steps.request_of(job.program, job.problem) if step in ("build", "setup") else {}
    return {**request, **about}


@dataclass(frozen=True)
class _How:
    backends: tuple[str, ...]
    force: bool
    limits: Limits
    protocol: Protocol
    tell: Callable[[Progress], None]


@dataclass
class _Run:
    """One job under way."""

    job: Job
    number: int
    jobs: int
    how: _How
    crew: Crew
    contest: Contest | None = None
    ended: Outcome | None = None
    pending: int = 0
    restarts: int = 0
    broken: str = ""
    """Why the racing process could not be made ready again: the machine's failure, and no candidate's."""
    ready: set[int] = field(default_factory=set)
    """Who can be raced in the present racing process."""
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage, for the record."""

    # before -----------------------------------------------------------------------------------------------------------
    def submit_builds(self) -> None:
        """Decide who takes part, and have the builders start."""
        asked = list(standings(self.job.program, self.job.problem, self.how.backends))
        found = [s.backend for s in asked if s.backend is not None]
        if not found:
            refused = "; ".join(f"{s.name}: {s.reason}" for s in asked)
            self.ended = Outcome(self.job, "failed", reason=f"no backend can run it here: {refused}"[:1000])
            return
        key = schedules.key_of(self.job.program, self.job.problem)
        if key is None:
            self.ended = Outcome(self.job, "failed", reason=f"there is no GPU of {self.job.problem.arch} here")
            return
        known = schedules.read(key)
        if known is not None and not self.how.force and self._covers(known, found):
            self.ended = Outcome(self.job, "known", known, path=schedules.path_of(key))
            return
        taking = contestants(self.job, found, known, self.how.protocol.most)
        names = [b.name for b in found] + [n for n in (known.best if known else ()) if n not in {b.name for b in found}]
        first = next(usable(self.job.program, self.job.problem), None)
        untuned = None if first is None else first.default_schedule(self.job.program, self.job.problem)
        self.contest = Contest(self.job, key, tuple(names), taking, untuned)
        for at in self.contest.open:
            self.pending += 1
            self.crew.submit(self._request("build", at), self.how.limits.build, lambda a, at=at: self._built(at, a))  # type: ignore[misc]

    def _covers(self, known: Entry, found: Sequence[Backend]) -> bool:
        raced = {c.schedule for c in known.candidates}
        names = {b.name for b in found}
        submitted = [s for s in self.job.extra if s.backend in names]
        return names <= set(known.backends) and all(s in raced for s in submitted)

    def _request(self, step: str, at: int | None = None) -> dict[str, Any]:
        request = request_of(self.job, step)
        if at is not None:
            assert self.contest is not None
            request |= {"name": str(at), "schedule": self.contest.all[at].schedule.to_dict()}
        return request

    def _built(self, at: int, answer: Answer) -> None:
        assert self.contest is not None
        self.pending -= 1
        if answer.kind == "value":
            self.contest.built(at, answer.value["seconds"])
        elif answer.kind == "error":
            if answer.code in OF_ERRORS and answer.code != "compile":  # the builder's, maybe: the trial decides
                self.contest.out(at, "refused", answer.reason)
        else:
            self.contest.out(at, answer.kind, f"while it was built: {answer.reason}")
        self._tell("build", len(self.contest.all) - self.pending, len(self.contest.all))

    def _tell(self, stage: Literal["build", "try", "race", "done"], done: int, total: int) -> None:
        self.how.tell(Progress(self.job, self.number, self.jobs, stage, done, total))

    # the job ----------------------------------------------------------------------------------------------------------
    def outcome(self, until: float | None) -> Outcome:
        """Wait for the builds, then race. Nothing is started after `until`."""
        started = time.monotonic()
        if self.ended is None:
            while self.pending and not _over(until):
                self.crew.pump(0.5 if until is None else max(0.0, min(0.5, until - time.monotonic())))
            self.took["waited_for_builds_s"] = round(time.monotonic() - started, 2)
            if self.pending or _over(until):
                self.crew.drop()
                self.ended = Outcome(self.job, "skipped", reason="the budget was used up before it was raced")
            else:
                self.ended = self._in_turn(started)
        self._tell("done", 1, 1)
        return self.ended

    def _in_turn(self, started: float) -> Outcome:
        """While nobody else tunes this key or measures on this GPU."""
        assert self.contest is not None
        key, wait = self.contest.key, self.how.limits.wait
        with schedules.turn_to_tune(key, timeout_s=wait) as mine, contextlib.ExitStack() as held:
            if not mine:
                return Outcome(self.job, "failed", reason=f"another process has been tuning it for {wait:g} s")
            known = self._meanwhile(key)
            if known is not None:
                return Outcome(
                    self.job, "known", known, "another process tuned it meanwhile", path=schedules.path_of(key)
                )
            try:
                held.enter_context(_gpu(self.job, wait))
            except GpuBusy as error:
                return Outcome(self.job, "failed", reason=" ".join(str(error).split()))
            reason = self._compete()
            return self._kept(reason, started)

    def _meanwhile(self, key: Key) -> Entry | None:
        """What another process has found since this one decided to tune."""
        now = None if self.how.force else schedules.read(key)
        assert self.contest is not None
        backends = [registry.get(n) for n in self.contest.backends]
        return now if now is not None and self._covers(now, backends) else None

    def _compete(self) -> str:
        """Try everybody, race who is right. The reason why there is no result, or nothing."""
        assert self.contest is not None
        started = time.monotonic()
        reason = self._setup()
        if reason:
            return reason
        self.took["setup_s"] = round(time.monotonic() - started, 2)
        waiting = self.contest.open
        for done, at in enumerate(waiting):
            self._tell("try", done, len(waiting))
            self._try(at)
            if self.broken:
                return self.broken
        tried = time.monotonic()
        self.took["trials_s"] = round(tried - started - self.took["setup_s"], 2)
        self._race(self.contest.tried, self.how.protocol.first, final=False)
        if self.broken:
            return self.broken
        finalists = self.contest.finalists(self.how.protocol.margin, self.how.protocol.finalists)
        if finalists:
            self._race(finalists, self.how.protocol.rounds, final=True)
        self.took["races_s"] = round(time.monotonic() - tried, 2)
        return self.broken

    def _setup(self) -> str:
        self.ready.clear()
        request = {**self._request("setup"), "seed": random.SystemRandom().randrange(2**31)}
        answer = self.crew.ask(request, self.how.limits.setup)
        return "" if answer.kind == "value" else f"its inputs and reference: {answer.reason}"

    def _try(self, at: int) -> None:
        """Find out whether a contestant is right. After one that took the racer with it, a new racer is made ready."""
        assert self.contest is not None
        if self.restarts > self.how.limits.restarts:
            self.contest.out(at, "failed", "not tried: too many candidates before it ended the racing process")
            return
        answer = self.crew.ask(self._request("trial", at), self.how.limits.trial)
        if answer.kind == "value" and answer.value["wrong"] is None:
            self.contest.right(at)
            self.ready.add(at)
        elif answer.kind == "value":
            self.contest.out(at, "wrong", answer.value["wrong"])
        elif answer.kind == "error":
            self.contest.out(at, "refused" if answer.code in OF_ERRORS else "failed", answer.reason)
        else:
            self.contest.out(at, answer.kind, answer.reason)
        if answer.lost:
            self._restart()

    def _restart(self) -> None:
        self.restarts += 1
        reason = self._setup()
        if reason:
            self.broken = f"the racing process could not be made ready again: {reason}"

    def _race(self, names: Sequence[int], rounds: int, *, final: bool) -> None:
        """Race together; where that ends badly, each alone, to find who it was, and the others together again: all of them
        where everybody is fine alone."""
        assert self.contest is not None
        self._tell("race", 0, rounds)
        if self._raced(names, rounds, final=final) is None:
            return
        guilty = []
        for at in names:
            answer = self._raced([at], 3, final=False)
            if self.broken:
                return
            if answer is not None:
                kind = "failed" if answer.kind in ("value", "error") else answer.kind
                self.contest.out(at, kind, f"while it was timed: {answer.reason}")
                guilty.append(at)
        rest = [at for at in names if at not in guilty]
        if not rest or self._raced(rest, rounds, final=final) is None or self.broken:
            return
        for at in rest:
            self.contest.out(at, "failed", "the race did not end")

    def _raced(self, names: Sequence[int], rounds: int, *, final: bool) -> Answer | None:
        """None where the race came to its end, and its times are noted."""
        assert self.contest is not None
        while missing := [at for at in names if at not in self.ready and self.contest.all[at].status == "timed"]:
            if self.broken:
                return Answer("error", 0.0, reason=self.broken)
            self._try(missing[0])  # ready again, or out
        here = [at for at in names if at in self.ready]
        if not here:
            return None if not names else Answer("error", 0.0, reason="it could not be run again")
        seed = random.SystemRandom().randrange(2**31)
        request = {**self._request("race"), "names": [str(at) for at in here], "rounds": rounds, "seed": seed}
        answer = self.crew.ask(request, self.how.limits.race)
        if answer.kind != "value":
            if answer.lost:
                self._restart()
            return answer
        self.contest.timed(answer.value["samples"], answer.value["floor"], final=final)
        return None

    def _kept(self, reason: str, started: float) -> Outcome:
        """Write the record, and have this process's calls choose anew. Where the machine failed, for this `reason`, there is
        none: what was not measured would count as refused."""
        assert self.contest is not None
        seconds = time.monotonic() - started
        if reason:
            return Outcome(self.job, "failed", reason=reason[:1000], seconds=seconds)
        for at in self.contest.tried:
            if not self.contest.all[at].samples:
                self.contest.out(at, "failed", "the race did not end")
        protocol = {**asdict(self.how.protocol), **self.took, "cache": "cold" if self.job.problem.arch else "as it is"}
        entry = self.contest.entry(seconds=seconds, protocol=protocol, environment=environment())
        if entry is None:
            why = "; ".join(dict.fromkeys(f"{c.status}: {c.reason}" for c in self.contest.all)) or "no candidate"
            return Outcome(self.job, "failed", reason=why[:1000], seconds=seconds)
        try:
            path = schedules.write(entry)
        except OSError as error:
            return Outcome(self.job, "failed", entry, f"the cache cannot be written: {error}", seconds)
        schedules.forget()
        call.forget()
        return Outcome(self.job, "tuned", entry, seconds=seconds, path=path)


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _device(job: Job) -> int:
    if job.problem.arch is None:
        return 0
    import torch

    return int(torch.cuda.current_device())


@contextlib.contextmanager
def _gpu(job: Job, wait: float) -> Iterator[None]:
    """The right to measure; on a CPU nobody asks for it."""
    with contextlib.nullcontext() if job.problem.arch is None else gpu_lock(current_gpu(), timeout_s=wait):
        yield
