"""Many kernels on many shapes: compiled side by side, timed one after another, each result told as soon as it is there.

    Job      one kernel on one shape, against some peers
    Result   its word, its record, and who was absent
    Options  rounds, protocol, how many compile at once, limits
    Machine  the GPU and what numbers on it depend on
    key_of   what a result is a result of: the same key need not be measured again
    run      all jobs, in waves

A wave is as many jobs as the processors and the GPU's memory take. Its jobs get ready in parallel, in a process each; then
nothing else runs on the GPU and they race in order. The right to measure on the GPU is held from the first wave to the last.
What a peer does to its process, crash, hang or broken device, costs that peer and a restart: the others are measured without
it. Neighbours: `bench_worker.py` is the process, `process.py` kills it with everything it started when this one dies.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

import coda
from coda.bench.timing import GpuBusy, gpu_lock

from ..errors import BenchUnavailable
from ..records import Record, Status
from ..task import Dims, load
from .journal import BROKEN, last_at_work
from .worker import WorkerOutcome, WorkerSession, gpu_health, run_worker

WORKER = "agent.verify.bench_worker:work"
LOST = 4
"""So many variants may kill a job's process before the job itself is given up."""
BYTES_PER_ELEMENT = 40
"""Of GPU memory while a job gets ready: the fp64 reference and its temporaries, three input sets, outputs."""
SHARE = 0.8
"""Of the GPU's memory that a wave may need."""


@dataclass(frozen=True)
class Job:
    """One kernel on one shape."""

    kernel: str
    """Its id: `examples_curated/rms_scale`, `rms_scale/fable`."""
    task: Mapping[str, str]
    """`subject.task_ref`."""
    program: str
    """JSON."""
    digest: str
    dims: Dims
    peers: tuple[str, ...] = ()
    """Competing peers; empty: all that apply."""
    schedule: Mapping[str, Any] | None = None
    """The author's."""

    @property
    def shape(self) -> str:
        """4096×4096×4096, in the order of the task's dims."""
        return "×".join(str(n) for n in self.dims.values())


class Result(Record):
    """What a job gave."""

    key: str
    kernel: str
    task: str
    dims: dict[str, int]
    status: Status
    reason: str = ""
    record: dict[str, JsonValue] | None = None
    absent: dict[str, str] = {}
    seconds: float = 0.0
    """Of getting ready and racing, without waiting."""

    @property
    def settled(self) -> bool:
        """Whether measuring again would only repeat it."""
        return self.record is not None or self.status in (Status.WRONG_VALUES, Status.INVALID_SPEC)


@dataclass(frozen=True)
class Options:
    """How to run them."""

    rounds: int = 25
    protocol: str = "default"
    backends: tuple[str, ...] = ()
    parallel: int = 0
    """Jobs that get ready at once; 0: as many as the processors take."""
    variant_s: float = 240.0
    """For one variant to compile, run and be checked."""
    ready_s: float = 900.0
    race_s: float = 300.0
    wait_s: float = 150.0
    """Of waiting for the GPU."""
    stop_s: float | None = None
    """No wave starts later than so long after the start."""
    env: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def jobs(self) -> int:
        """How many get ready at once."""
        return self.parallel or max(1, (os.cpu_count() or 2) - 2)


@dataclass(frozen=True)
class Machine:
    """Where it runs."""

    gpu: str
    memory: int
    environment: Mapping[str, str]


def machine(options: Options | None = None) -> Machine:
    """Ask a worker, so that this process never touches the GPU. Raises `BenchUnavailable` without one."""
    options = options or Options()
    outcome = run_worker(WORKER, {"step": "device"}, timeout_s=120, env=_environment(options))
    found = outcome.result or {}
    if not found.get("gpu"):
        why = outcome.error.message if outcome.error else "torch finds no CUDA device"
        raise BenchUnavailable(f"no GPU to measure on: {why}", hint="`coda-agent doctor` says what is missing")
    return Machine(found["gpu"], int(found["memory"]), found["environment"])


_VOLATILE = ("sm_clock_mhz", "clocks", "platform")


def key_of(job: Job, options: Options, environment: Mapping[str, str]) -> str:
    """SHA-256 of everything that decides a result."""
    parts = {
        "task": dict(job.task)["id"],
        "kernel": job.kernel,
        "digest": job.digest,
        "dims": dict(job.dims),
        "peers": sorted(job.peers),
        "schedule": dict(job.schedule) if job.schedule else None,
        "backends": sorted(options.backends),
        "protocol": options.protocol,
        "rounds": options.rounds,
        "environment": {k: v for k, v in environment.items() if k not in _VOLATILE},
        "coda": coda.__version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


Tell = Callable[[str], None]


def run(
    jobs: Sequence[Job],
    where: Machine,
    options: Options,
    done: Callable[[Result], None],
    tell: Tell = lambda text: None,
) -> int:
    """Every job in order; `done` hears each result. Returns how many were not reached before the time was up.

    Raises `BenchUnavailable` where the GPU cannot be had, or is unusable after a crash.
    """
    started, left = time.monotonic(), list(jobs)
    try:
        with gpu_lock(where.gpu, timeout_s=options.wait_s), tempfile.TemporaryDirectory() as scratch:
            for wave in waves(jobs, options.jobs, where.memory):
                if options.stop_s is not None and time.monotonic() - started > options.stop_s:
                    break
                tell(f"{len(wave)} of {len(left)} benchmarks get ready")
                for result in _Wave(wave, where, options, pathlib.Path(scratch), tell).results():
                    done(result)
                left = left[len(wave) :]
    except GpuBusy as error:
        raise BenchUnavailable(str(error), hint="another benchmark or judgement is running: wait for it") from error
    return len(left)


def waves(jobs: Sequence[Job], most: int, memory: int) -> Iterator[list[Job]]:
    """The jobs in order, in groups that fit into the processors and the GPU's memory together."""
    wave: list[Job] = []
    used = 0.0
    for job in jobs:
        need = needed(job)
        if wave and (len(wave) == most or used + need > SHARE * memory):
            yield wave
            wave, used = [], 0.0
        wave.append(job)
        used += need
    if wave:
        yield wave


def needed(job: Job) -> int:
    """Bytes of GPU memory while it gets ready, as a rule of thumb."""
    from .entrants import elements

    return BYTES_PER_ELEMENT * elements(load(job.task["id"], pathlib.Path(job.task["folder"])), job.dims)


# one wave ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Started:
    job: Job
    session: WorkerSession
    outcome: WorkerOutcome
    absent: dict[str, str]
    seconds: float


class _Wave:
    """Some jobs that get ready together."""

    def __init__(
        self, jobs: Sequence[Job], where: Machine, options: Options, scratch: pathlib.Path, tell: Tell
    ) -> None:
        self.jobs, self.where, self.options, self.scratch, self.tell = jobs, where, options, scratch, tell
        self.env = _environment(options, together=len(jobs))

    def results(self) -> Iterator[Result]:
        """Each as soon as it is there: refusals when everything is ready, then the races in order."""
        with concurrent.futures.ThreadPoolExecutor(len(self.jobs)) as pool:
            started = list(pool.map(self._get_ready, self.jobs))
        try:
            for one in started:
                yield self._finish(one)
        finally:
            for one in started:
                one.session.close()

    def _get_ready(self, job: Job) -> _Started:
        """Until everything that does not kill its process is ready."""
        began = time.monotonic()
        session = WorkerSession(WORKER, timeout_s=self.options.ready_s, env=self.env)
        excluded: dict[str, str] = {}
        while True:
            journal = self.scratch / f"{key_of(job, self.options, self.where.environment)}-{len(excluded)}"
            outcome = session.call(self._payload(job, excluded, journal))
            lost = None if outcome.ok else self._lost(outcome, journal)
            if lost is None or lost[0] in excluded or len(excluded) == LOST:
                break
            self.tell(f"{job.kernel} {job.shape}: {lost[0]} {lost[1]}")
            excluded[lost[0]] = lost[1]
        self.tell(f"{job.kernel} {job.shape}: ready after {time.monotonic() - began:.0f} s")
        return _Started(job, session, outcome, excluded, time.monotonic() - began)

    def _payload(self, job: Job, excluded: Mapping[str, str], journal: pathlib.Path) -> dict[str, Any]:
        return {
            "step": "ready",
            "program": job.program,
            "task": dict(job.task),
            "seed": int(journal.name[:8], 16),  # of the key: repeating a benchmark repeats its inputs
            "schedule": dict(job.schedule) if job.schedule else None,
            "backends": list(self.options.backends),
            "dims": dict(job.dims),
            "peers": list(job.peers),
            "excluded": dict(excluded),
            "any_backend": True,
            "journal": str(journal),
            "turn": str(self.scratch / "references.lock"),
            "seconds": self.options.variant_s,
        }

    def _lost(self, outcome: WorkerOutcome, journal: pathlib.Path) -> tuple[str, str] | None:
        """Who was at work when the process ended, and what is said of it."""
        at_work = last_at_work(journal)
        if at_work is None or outcome.ending is None:
            return None
        name, late = at_work
        if late or outcome.status == "TIMEOUT":
            return name, f"hung: did not finish within {self.options.variant_s:g} s"
        if outcome.ending.exit_code == BROKEN:
            return name, "broke the device: nothing ran on it afterwards"
        return name, f"crashed: {outcome.error.message if outcome.error else outcome.status}"[:300]

    def _finish(self, one: _Started) -> Result:
        """Race it, where it is ready."""
        status, reason, record, absent = Status.PASS, "", None, dict(one.absent)
        answer, began = one.outcome, time.monotonic()
        if answer.result is not None and Status(answer.result["status"]) is Status.PASS:
            absent |= answer.result["absent"]
            race = {"step": "race", "rounds": self.options.rounds, "protocol": self.options.protocol}
            answer = one.session.call(race, timeout_s=self.options.race_s)
            record = answer.result["record"] if answer.result is not None else None
        if answer.result is not None:
            status, reason = Status(answer.result["status"]), answer.result["reason"]
        else:
            assert answer.error is not None
            status, reason = Status(answer.status), f"{answer.error.message[:500]} [{answer.error.code}]"
            self._still_usable()
        one.session.close()
        return Result(
            key=key_of(one.job, self.options, self.where.environment),
            kernel=one.job.kernel,
            task=one.job.task["id"],
            dims=dict(one.job.dims),
            status=status,
            reason=reason,
            record=record,
            absent=absent,
            seconds=round(one.seconds + time.monotonic() - began, 1),
        )

    def _still_usable(self) -> None:
        health = gpu_health(env=self.env)
        if health.state != "healthy":
            raise BenchUnavailable(f"the GPU is {health.state} after a crash: {health.reason}", hint="reset it")


def _environment(options: Options, *, together: int = 1) -> dict[str, str | None]:
    """No interpreter, and no more compiler processes than there are processors."""
    threads = max(1, (os.cpu_count() or 1) // together)
    return {"TRITON_INTERPRET": None, "TORCHINDUCTOR_COMPILE_THREADS": str(threads), **options.env}
