"""One race: who takes part, what became of each, and who won.

    contestants   the candidates of every backend, the submitted schedules, and the known best of backends not asked for
    Contest       what is found out about them, one by one
    Contest.entry the record for the cache

A contestant wins only where it is faster beyond the noise of the race: of two that do not differ, the one that an untuned call
runs is kept, then the one that comes first.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coda.backends.registry import Backend
from coda.bench.timing import Sample, Timings
from coda.errors import BackendError
from coda.problem import Schedule
from coda.schedules import Candidate, Entry, Key, Origin
from coda.tuning.jobs import Job

OF_ERRORS = ("schedule", "unsupported", "compile", "backend-unavailable", "backend")
"""Codes of exceptions that say: no kernel can have this schedule here."""


def contestants(job: Job, backends: Iterable[Backend], known: Entry | None, most: int | None = None) -> list[Candidate]:
    """Who takes part, each backend's heuristic's choice first. Nobody has a time yet.

    `most`: so many of each backend, in its order. A submitted schedule that its backend refuses is among them, with the reason.
    """
    found: dict[Schedule, Candidate] = {}
    names = []
    for backend in backends:
        names.append(backend.name)
        default = backend.default_schedule(job.program, job.problem)
        offered = dict.fromkeys((default, *backend.candidates(job.program, job.problem)))
        for schedule in tuple(offered)[:most]:
            origin: Origin = "default" if schedule == default else "candidate"
            found.setdefault(schedule, Candidate(schedule, origin, "failed", "not tried"))
        for schedule in job.extra:
            if schedule.backend == backend.name:
                found.setdefault(schedule, _submitted(job, backend, schedule))
    for name in known.best if known is not None else ():
        best = known.schedule(name) if known is not None else None
        if name not in names and best is not None:
            found.setdefault(best, Candidate(best, "candidate", "failed", "not tried"))
    return list(found.values())


def _submitted(job: Job, backend: Backend, schedule: Schedule) -> Candidate:
    try:
        backend.check(job.program, job.problem, schedule)
    except BackendError as error:
        return Candidate(schedule, "author", "refused", " ".join(str(error).split())[:500])
    return Candidate(schedule, "author", "failed", "not tried")


@dataclass
class Contest:
    """One race under way. Contestants go by their position."""

    job: Job
    key: Key
    backends: tuple[str, ...]
    """All that take part."""
    all: list[Candidate]
    untuned: Schedule | None = None
    """What a call runs for which nothing was measured."""
    floor: float = 0.0

    @property
    def default(self) -> int | None:
        """Position of what an untuned call runs, if it takes part: it does not where its backend was not asked for."""
        return next((i for i, c in enumerate(self.all) if c.schedule == self.untuned), None)

    @property
    def open(self) -> list[int]:
        """Who may still be timed."""
        return [i for i, c in enumerate(self.all) if c.status == "failed" and c.reason == "not tried"]

    @property
    def tried(self) -> list[int]:
        """Who was found right."""
        return [i for i, c in enumerate(self.all) if c.status == "timed"]

    def out(self, at: int, status: Any, reason: str) -> None:
        """A contestant cannot be timed."""
        self.all[at] = dataclasses.replace(
            self.all[at], status=status, reason=reason[:1000], samples=(), host=None, finalist=False
        )

    def built(self, at: int, seconds: float) -> None:
        """A contestant's kernel was compiled."""
        self.all[at] = dataclasses.replace(self.all[at], build_s=round(seconds, 3))

    def right(self, at: int) -> None:
        """A contestant's outputs are right."""
        self.all[at] = dataclasses.replace(self.all[at], status="timed", reason="")

    def timed(self, samples: Mapping[str, Sequence[Sequence[float]]], floor: float, *, final: bool) -> None:
        """Times of a race, by position as text."""
        self.floor = floor
        for at in self.tried:
            if str(at) in samples:
                device = tuple(float(f"{d:.4g}") for d, _ in samples[str(at)])
                host = float(f"{statistics.median(h for _, h in samples[str(at)]):.4g}")
                self.all[at] = dataclasses.replace(self.all[at], samples=device, host=host, finalist=final)

    def finalists(self, margin: float, most: int) -> list[int]:
        """The fastest ones within a margin, the fastest of each backend, and what an untuned call runs."""
        ranked = sorted((i for i in self.tried if self.all[i].samples), key=lambda i: self.all[i].median)
        if not ranked:
            return []
        near = [i for i in ranked if self.all[i].median <= margin * self.all[ranked[0]].median][:most]
        for backend in self.backends:
            near += [i for i in ranked if self.all[i].schedule.backend == backend][:1]
        return sorted({*near, *(i for i in ranked if self.all[i].origin == "default")})

    # the result -------------------------------------------------------------------------------------------------------
    def best(self, among: Sequence[int]) -> int | None:
        """The fastest, or the first in order that does not differ from it."""
        racing = [i for i in among if self.all[i].finalist]
        if not racing:
            return None
        fastest = min(racing, key=lambda i: self.all[i].median)
        same = [i for i in racing if i == fastest or not self._slower(i, fastest)]
        return min(same, key=lambda i: (i != self.default, self.all[i].origin != "default", self.all[i].median))

    def _slower(self, at: int, fastest: int) -> bool:
        samples = {str(i): tuple(Sample(s, 0.0) for s in self.all[i].samples) for i in (at, fastest)}
        return Timings(samples, self.floor).compare(str(at), str(fastest)).word == "slower"

    def entry(self, *, seconds: float, protocol: Mapping[str, Any], environment: Mapping[str, str]) -> Entry | None:
        """The record; None where nobody was timed."""
        per = {b: self.best([i for i, c in enumerate(self.all) if c.schedule.backend == b]) for b in self.backends}
        best = {b: at for b, at in per.items() if at is not None}
        winner = self.best(list(best.values()))
        if winner is None:
            return None
        return Entry(
            key=self.key,
            name=self.job.program.name,
            backends=self.backends,
            candidates=tuple(self.all),
            best=best,
            winner=winner,
            default=self.default,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 2),
            protocol={**protocol, "noise_floor": self.floor},
            environment=dict(environment),
        )
