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
it. A job that lacks memory beside the others of its wave is tried again alone. Neighbours: `bench_worker.py` is the process, `process.py` kills it with everything it started when this one dies.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

import coda
from coda import env
from coda.bench.peers import PEERS
from coda.bench.record import short
from coda.bench.timing import GpuBusy, gpu_lock

from ..errors import BenchUnavailable
from ..records import Record, Status
from ..task import Dims, lengths, load
from .blame import OUT_OF_MEMORY
from .identity import Tuned, judge_digest, tuned_digest
from .journal import BROKEN, last_at_work
from .worker import WorkerOutcome, WorkerSession, gpu_health, run_worker

if TYPE_CHECKING:
    from coda.problem import Problem
    from coda.program import EpilogueProgram

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
        """Whether measuring again would only repeat it. It is not where a peer is absent that another try may have: the
        strongest one may have lacked memory or time because of what ran beside it."""
        if self.record is None:
            return self.status in (Status.WRONG_VALUES, Status.INVALID_SPEC)
        return not any(_lost(name, why) for name, why in self.absent.items())


_FAILED = ("failed", "crashed", "broke")


def _lost(name: str, why: str) -> bool:
    """One configuration of a peer that fails is ordinary; the whole peer that fails is a loss."""
    first = why.rpartition("the first: ")[2]
    return first.startswith((OUT_OF_MEMORY, "hung")) or (name in PEERS and first.startswith(_FAILED))


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
    return machine_of(run_worker(WORKER, {"step": "device"}, timeout_s=120, env=_environment(options)))


def machine_of(outcome: WorkerOutcome) -> Machine:
    """What a worker answered to the step "device". Raises `BenchUnavailable` where it has no GPU."""
    found = outcome.result or {}
    if not found.get("gpu"):
        why = outcome.error.message if outcome.error else "torch finds no CUDA device"
        raise BenchUnavailable(f"no GPU to measure on: {why}", hint="`coda-agent doctor` says what is missing")
    return Machine(found["gpu"], int(found["memory"]), found["environment"])


_VOLATILE = ("sm_clock_mhz", "clocks", "platform")


def key_of(job: Job, options: Options, environment: Mapping[str, str]) -> str:
    """SHA-256 of everything that decides a result: the kernel, the task's file, the library, the judge, the schedules that a call
    finds measured, the machine, and how it is measured."""
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
        "judge": _judge(job.task["id"], job.task["folder"]),
        "schedules": tuned_digest(_tunable(job), environment.get("gpu", ""), _cache(options)),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _judge(task: str, folder: str) -> str:
    """Of the code that this process has loaded: the files are read once."""
    return judge_digest(load(task, pathlib.Path(folder)).digest)


def _tunable(job: Job) -> set[Tuned]:
    parts = _parts(job.program, job.task["id"], job.task["folder"], tuple(job.dims.items()))
    return {Tuned(part.digest, p.m, p.n, p.k, p.dtype) for part, p in parts}


def _cache(options: Options) -> pathlib.Path:
    """Where the workers find schedules."""
    return pathlib.Path(options.env.get("CODA_CACHE_DIR") or env.cache_dir())


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
            keys = iter([key_of(job, options, where.environment) for job in jobs])
            for wave in waves(jobs, options.jobs, where.memory):
                if options.stop_s is not None and time.monotonic() - started > options.stop_s:
                    break
                tell(f"{len(wave)} of {len(left)} benchmarks get ready")
                keyed = [(next(keys), job) for job in wave]
                with contextlib.closing(_Wave(keyed, where, options, pathlib.Path(scratch), tell).results()) as results:
                    for result in results:
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
    """Bytes of GPU memory while it gets ready, as a rule of thumb: of everything declared, and of what the products hold
    beyond the declared outputs, such as the logits of a loss."""
    from .floors import elements

    task = load(job.task["id"], pathlib.Path(job.task["folder"]))
    declared = sum(math.prod(lengths(o.shape, job.dims)) for o in task.outputs)
    parts = _parts(job.program, job.task["id"], job.task["folder"], tuple(job.dims.items()))
    products = sum(p.m * p.n for part, p in parts if part.kind == "epilogue")
    return BYTES_PER_ELEMENT * (elements(task, job.dims) + max(0, products - declared))


@functools.lru_cache(maxsize=1024)
def _parts(
    program: str, task: str, folder: str, dims: tuple[tuple[str, int], ...]
) -> tuple[tuple[EpilogueProgram, Problem], ...]:
    """What a job runs, and at which sizes; nothing where its program does not fit its task, which is the worker's to say."""
    from .inputs import blank
    from .runner import problems
    from .subject import Subject
    from .tuning import DTYPE

    spec = load(task, pathlib.Path(folder))
    try:
        found = problems(Subject.read(program, spec), blank(spec, dict(dims), DTYPE), None)
    except Exception:
        return ()
    return tuple(found)


# one wave ---------------------------------------------------------------------------------------------------------------


_Keyed = tuple[str, Job]


@dataclass
class _Started:
    key: str
    job: Job
    session: WorkerSession
    outcome: WorkerOutcome
    absent: dict[str, str]
    at_work: str
    """Who was, when the time for getting ready was up."""
    seconds: float


class _Wave:
    """Some jobs that get ready together."""

    def __init__(
        self, jobs: Sequence[_Keyed], where: Machine, options: Options, scratch: pathlib.Path, tell: Tell
    ) -> None:
        self.jobs, self.where, self.options, self.scratch, self.tell = jobs, where, options, scratch, tell
        self.env = _environment(options, together=len(jobs))

    def results(self) -> Generator[Result, None, None]:
        """Each as soon as it is there: the races in order when everything is ready, then those jobs again, alone, that lacked
        memory. A result that broke the GPU is given before `BenchUnavailable` is raised."""
        alone: list[_Keyed] = []
        sessions = [WorkerSession(WORKER, timeout_s=self.options.ready_s, env=self.env) for _ in self.jobs]
        pool = concurrent.futures.ThreadPoolExecutor(len(self.jobs))
        try:
            for one in list(pool.map(self._get_ready, self.jobs, sessions)):
                result, answered = self._finish(one)
                one.session.close()
                if result.status is Status.INFRA_ERROR and len(self.jobs) > 1:
                    alone.append((one.key, one.job))
                yield result
                if not answered:
                    self._still_usable()
        finally:  # an interrupt comes while threads wait for their processes: they end when these do
            for session in sessions:
                session.stop()
            pool.shutdown(cancel_futures=True)
            for session in sessions:
                session.close()
        for key, job in alone:
            self.tell(f"{job.kernel} {short(job.dims)}: again, with the GPU's memory to itself")
            yield from _Wave([(key, job)], self.where, self.options, self.scratch, self.tell).results()

    def _get_ready(self, keyed: _Keyed, session: WorkerSession) -> _Started:
        """Until everything that does not kill its process is ready."""
        began = time.monotonic()
        key, job = keyed
        excluded: dict[str, str] = {}
        while True:
            journal = self.scratch / f"{key}-{len(self.jobs)}-{len(excluded)}"
            outcome = session.call(self._payload(job, excluded, journal))
            lost = None if outcome.ok else self._lost(outcome, journal)
            if lost is None or lost[0] in excluded or len(excluded) == LOST:
                break
            self.tell(f"{job.kernel} {short(job.dims)}: {lost[0]} {lost[1]}")
            excluded[lost[0]] = lost[1]
        seconds = time.monotonic() - began
        self.tell(f"{job.kernel} {short(job.dims)}: {'ready' if outcome.ok else outcome.status} after {seconds:.0f} s")
        return _Started(key, job, session, outcome, excluded, (last_at_work(journal) or ("", False))[0], seconds)

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
        """Who was at work when the process ended, and what is said of it. Nobody in particular where the whole job's time was
        up: who happened to be at work then need not have taken it."""
        at_work = last_at_work(journal)
        if at_work is None or outcome.ending is None or (outcome.error and outcome.error.code == "closed"):
            return None
        name, late = at_work
        if late:
            return name, f"hung: did not finish within {self.options.variant_s:g} s"
        if outcome.status == "TIMEOUT":
            return None
        if outcome.ending.exit_code == BROKEN:
            return name, "broke the device: nothing ran on it afterwards"
        return name, f"crashed: {outcome.error.message if outcome.error else outcome.status}"[:300]

    def _finish(self, one: _Started) -> tuple[Result, bool]:
        """Race it, where it is ready; and whether its process has answered."""
        began, absent, answer = time.monotonic(), dict(one.absent), one.outcome
        answered = answer.result is not None
        late = f"not ready within {self.options.ready_s:g} s" + (f"; at work: {one.at_work}" if one.at_work else "")
        status, reason, record = _said(answer, late)
        if answer.result is not None and status is Status.PASS:
            absent |= answer.result["absent"]
            short = [f"{name}: {why}" for name, why in absent.items() if why.startswith(OUT_OF_MEMORY)]
            if short and len(self.jobs) > 1:
                status, reason = Status.INFRA_ERROR, f"not enough memory beside the others of its wave: {short[0]}"
            else:
                race = {"step": "race", "rounds": self.options.rounds, "protocol": self.options.protocol}
                answer = one.session.call(race, timeout_s=self.options.race_s)
                answered = answer.result is not None and not answer.fresh  # a fresh process: the ready one has died
                status, reason, record = _said(answer, f"the race did not end within {self.options.race_s:g} s")
        result = Result(
            key=one.key,
            kernel=one.job.kernel,
            task=one.job.task["id"],
            dims=dict(one.job.dims),
            status=status,
            reason=reason,
            record=record,
            absent=absent,
            seconds=round(one.seconds + time.monotonic() - began, 1),
        )
        return result, answered

    def _still_usable(self) -> None:
        health = gpu_health(env=self.env)
        if health.state != "healthy":
            raise BenchUnavailable(f"the GPU is {health.state} after a crash: {health.reason}", hint="reset it")


def _said(answer: WorkerOutcome, late: str) -> tuple[Status, str, dict[str, JsonValue] | None]:
    """A step's word, why, and the record where there is one; `late` is why where its time was up."""
    if answer.result is not None:
        return Status(answer.result["status"]), answer.result["reason"], answer.result.get("record")
    assert answer.error is not None
    if answer.status == "TIMEOUT":
        return Status.TIMEOUT, late, None
    return Status(answer.status), f"{answer.error.message[:500]} [{answer.error.code}]", None


def _environment(options: Options, *, together: int = 1) -> dict[str, str | None]:
    """No interpreter, and no more compiler processes than there are processors."""
    threads = max(1, (os.cpu_count() or 1) // together)
    return {"TRITON_INTERPRET": None, "TORCHINDUCTOR_COMPILE_THREADS": str(threads), **options.env}
