"""The judge: one candidate, one task, gates in order, one verdict.

    verdict = judge(source, task)              # static, trace, algebra, compile, numerics, bench
    Limits      seconds of every gate
    Options     which gates, target architecture, backends, an author's schedule, what is raced
    Progress    what `on_progress` hears: a gate starts, a gate has ended with its record

The first gate that refuses ends it; later ones are NOT_RUN and say which gate stopped them. `judge` never raises for anything a
candidate does. It knows neither who wrote the candidate nor how, so a person's kernel is judged by the same code. Everything
that runs a candidate's code or program runs in a process of its own with a deadline: `static` reads, `trace` runs the source
once (`tracer.py`), the other gates run our code on the traced program in workers (`worker.py`).
"""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, JsonValue

from coda.errors import BadSchedule, CodaError, near
from coda.problem import Schedule

from ..records import GATES, Environment, GateName, GateRecord, Record, Status, Verdict, overall
from ..task import Task
from . import static, tracer
from .compile import SCHEDULE_AT_FAULT, fused
from .inputs import run_seed
from .plain import cleaned
from .subject import Subject, interface, task_ref
from .worker import GpuHealth, WorkerOutcome, gpu_health, run_worker


class Limits(Record):
    """Seconds that each gate may take, enforced from outside its process."""

    trace_s: float = Field(default=10.0, gt=0)
    algebra_s: float = Field(default=120.0, gt=0)
    compile_s: float = Field(default=180.0, gt=0)
    """Per backend."""
    numerics_s: float = Field(default=300.0, gt=0)
    bench_s: float = Field(default=600.0, gt=0)
    tune_s: float = Field(default=600.0, gt=0)
    """Of tuning before it, where that was asked for: nothing is started later."""
    wait_s: float = Field(default=150.0, ge=0)
    """Of waiting until no other process of ours uses the GPU; comes on top of what a gate may take."""
    health_s: float = Field(default=60.0, gt=0)
    """Of the probe that decides whether a GPU can be used."""
    memory_mb: int | None = None
    """Of each worker."""


class Options(Record):
    """What is asked of the judge."""

    gates: tuple[GateName, ...] = GATES  # type: ignore[assignment]
    """The others are NOT_RUN with the reason "not asked for"."""
    arch: str | None = None
    """What `compile` compiles for; None: the GPU that the later gates run on, sm_90 where there is none."""
    backends: tuple[str, ...] = ()
    """Fused backends to try; empty: all that there are."""
    schedule: dict[str, JsonValue] | None = None
    """Submitted by the author with the source."""
    bench_shapes: tuple[dict[str, int], ...] = ()
    """Empty: the task's benchmark shapes."""
    bench_peers: tuple[str, ...] = ()
    """Competing peers to time; empty: every one that applies. The plain GEMM is always timed."""
    bench_rounds: int = Field(default=25, ge=3)
    tune: bool = False
    """Whether the kernel's schedules are tuned before the benchmark, the author's among the candidates."""
    device: bool = True
    """Whether a GPU may be used."""


class Progress(Record):
    """What `on_progress` hears."""

    gate: GateName
    state: str
    """started or finished."""
    record: GateRecord | None = None


Call = Callable[..., WorkerOutcome]
"""`run_worker`, or something with its parameters: the self-test runs many small judgements without a process for each."""


@dataclass
class Run:
    """One judgement under way: what gates share."""

    source: str
    task: Task
    options: Options
    limits: Limits
    seeds: dict[str, int]
    gpu: str | None = None
    """Name of the one that gates have used."""
    arch: str | None = None
    """What `compile` has compiled for."""
    health: GpuHealth | None = None
    """Of the GPU before anything has run on it."""
    program_json: str | None = None
    subject: Subject | None = None
    schedule: Schedule | None = None
    call: Call = run_worker

    def payload(self, gate: str, **more: Any) -> dict[str, Any]:
        """What every worker gets."""
        schedule = self.schedule.to_dict() if self.schedule else None
        common = {
            "program": self.program_json,
            "task": task_ref(self.task),
            "seed": self.seeds[gate],
            "schedule": schedule,
        }
        return {**common, **more}


Gate = Callable[[Run], GateRecord]


def judge(
    source: str | bytes,
    task: Task,
    *,
    options: Options | None = None,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    call: Call = run_worker,
) -> Verdict:
    """Judge the text of a kernel file. See the module's docstring."""
    options, limits = options or Options(), limits or Limits()
    text = source if isinstance(source, str) else source.decode("utf-8", "surrogateescape")
    run = Run(text, task, options, limits, {gate: run_seed() for gate in GATES}, call=call)
    tell = on_progress or (lambda progress: None)
    records: list[GateRecord] = []
    sha, stopped = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), ""
    for name, gate in _gates().items():
        if stopped or name not in options.gates:
            records.append(GateRecord.not_run(name, stopped or "not asked for"))
            continue
        tell(Progress(gate=name, state="started"))
        record = _timed(name, gate, run)
        tell(Progress(gate=name, state="finished", record=record))
        records.append(record)
        if record.status.refuses:
            stopped = f"{name} ended with {record.status}"
        elif record.status is Status.NOT_RUN and name in ("static", "trace"):
            stopped = f"{name} did not run"
    return _verdict(run, sha, records)


def _gates() -> dict[GateName, Gate]:
    from .bench import gate as bench
    from .compile import gate as compile_
    from .numerics import gate as numerics

    return {
        "static": _static,
        "trace": _trace,
        "algebra": _algebra,
        "compile": compile_,
        "numerics": numerics,
        "bench": bench,
    }


def _timed(name: GateName, gate: Gate, run: Run) -> GateRecord:
    if name not in ("static", "trace") and run.subject is None:
        return GateRecord.not_run(name, "there is no traced program")
    started = time.monotonic()
    try:
        record = gate(run)
    except Exception as error:
        message = f"the judge failed: {type(error).__name__}: {error}"[:1000]
        record = GateRecord(name=name, status=Status.INFRA_ERROR, reason=message, evidence={"error": message})
    record = cleaned(record)
    if record.status is Status.NOT_RUN:
        return record
    return record.model_copy(update={"seconds": round(time.monotonic() - started, 3)})


def _verdict(run: Run, sha: str, records: Sequence[GateRecord]) -> Verdict:
    gates = tuple(records)
    failed = next((g.name for g in gates if g.status.refuses), None)
    ran = {g.name for g in gates if g.status is not Status.NOT_RUN}
    traced = run.subject is not None
    return Verdict(
        task=run.task.id,
        task_digest=run.task.digest,
        source_sha256=sha,
        program_digest=run.subject.program.digest if run.subject else None,
        program_json=run.program_json if traced else None,
        kind=run.subject.kind if run.subject else None,
        gates=gates,
        status=overall(gates),
        first_failure=failed,
        seeds={name: seed for name, seed in run.seeds.items() if name in ran},
        schedule=run.options.schedule if run.schedule else None,
        environment=Environment.here(gpu=run.gpu, arch=run.arch),
        created=datetime.datetime.now(datetime.UTC),
    )


# gates that need no worker of their own ---------------------------------------------------------------------------------


def _static(run: Run) -> GateRecord:
    report = static.check(run.source)
    findings = [f.model_dump() for f in report.findings]
    lines = report.source.count("\n") + 1
    evidence: dict[str, JsonValue] = {"sha256": report.sha256, "lines": lines, "findings": findings}  # type: ignore[dict-item]
    if report.ok:
        run.source = report.source
        return GateRecord(name="static", status=Status.PASS, evidence=evidence)
    first = report.findings[0]
    reason = f"line {first.line}: {first.message} [{first.rule}]"
    return GateRecord(name="static", status=Status(report.status), reason=reason, evidence=evidence)


def _trace(run: Run) -> GateRecord:
    """Run the source once, then compare the program's interface with the task's."""
    limits = tracer.TraceLimits(wall_s=run.limits.trace_s)
    outcome = tracer.trace(run.source, operand_dtypes=run.task.operand_dtypes(), limits=limits)
    ending = outcome.evidence.ending
    used = {
        "seconds": ending.seconds,
        "cpu_s": ending.cpu_s,
        "max_rss_mb": ending.max_rss_mb,
        "leftovers": ending.leftovers,
    }
    evidence: dict[str, JsonValue] = {"process": used, "layers": list(outcome.evidence.layers)}  # type: ignore[dict-item]
    if not outcome.ok or outcome.program_json is None:
        error = outcome.error
        assert error is not None
        where = f"line {error.line}: " if error.line else ""
        hint = f" Hint: {error.hint}" if error.hint else ""
        return GateRecord(
            name="trace",
            status=Status(outcome.status),
            reason=f"{where}{error.message}{hint}",
            evidence={**evidence, "error": error.model_dump()},
        )
    subject = Subject.read(outcome.program_json, run.task)
    wrong = interface(subject)
    evidence |= {"program_digest": subject.program.digest, "kind": subject.kind, "gemms": subject.gemms}
    status, reason = Status.PASS, ""
    if wrong:
        status, reason = wrong[0].status, "; ".join(w.message for w in wrong)
        evidence["interface"] = [{"name": w.name, "status": str(w.status), "message": w.message} for w in wrong]
    else:
        status, reason = _schedule(run)
    if status is Status.PASS:
        run.subject, run.program_json = subject, outcome.program_json
    return GateRecord(name="trace", status=status, reason=reason, evidence=evidence)


def _schedule(run: Run) -> tuple[Status, str]:
    """An author's schedule is data too; one that no kernel can have is refused here, one that this kernel cannot by `compile`."""
    if run.options.schedule is None:
        return Status.PASS, ""
    try:
        schedule = Schedule.from_dict(run.options.schedule)
        known = fused()
        if schedule.backend not in known:
            hint = near(str(schedule.backend), known)
            raise BadSchedule("Schedule.backend", got=repr(schedule.backend), expected=", ".join(known), hint=hint)
    except (CodaError, TypeError) as error:
        return Status.COMPILE_ERROR, f"{SCHEDULE_AT_FAULT}: {error}"
    run.schedule = schedule
    return Status.PASS, ""


def _algebra(run: Run) -> GateRecord:
    seconds = run.limits.algebra_s
    payload = run.payload("algebra", seconds=seconds * 0.8)
    outcome = run.call("agent.verify.algebra:work", payload, timeout_s=seconds, memory_mb=run.limits.memory_mb)
    return from_worker("algebra", outcome)


_NO_GPU: list[GpuHealth] = []
"""The probe's answer where there is no GPU: that does not change while a process lives."""


def gpu(run: Run) -> GpuHealth | None:
    """Whether a GPU may and can be used, probed once per judgement; None where it may not."""
    if not run.options.device:
        return None
    if run.health is None:
        run.health = _NO_GPU[0] if _NO_GPU else gpu_health(run.limits.health_s)
        if run.health.state == "no GPU" and not _NO_GPU:
            _NO_GPU.append(run.health)
    return run.health


def probed(run: Run, record: GateRecord, outcome: WorkerOutcome) -> GateRecord:
    """After a crash or hang on a GPU: is the GPU still usable? A wedged one is named, so that nobody judges on it."""
    if outcome.ok or outcome.status == "RUNTIME_ERROR":
        return record
    health = gpu_health(run.limits.health_s)
    evidence: dict[str, JsonValue] = {**record.evidence, "gpu_afterwards": health.model_dump()}
    reason = (
        record.reason
        if health.state == "healthy"
        else f"{record.reason}; afterwards the GPU is {health.state}: {health.reason}"
    )
    return record.model_copy(update={"evidence": evidence, "reason": reason})


def from_worker(name: GateName, outcome: WorkerOutcome) -> GateRecord:
    """A worker's {"status", "reason", "evidence"} as a record; its crash or hang is the gate's word."""
    used: dict[str, JsonValue] = {"seconds": round(outcome.seconds, 3)}
    if outcome.ending is not None:
        used |= {"max_rss_mb": outcome.ending.max_rss_mb, "cpu_s": outcome.ending.cpu_s}
    if outcome.result is not None:
        result = outcome.result
        status = Status(result["status"])
        if status is Status.NOT_RUN:
            return GateRecord.not_run(name, result["reason"])
        return GateRecord(
            name=name, status=status, reason=result["reason"], evidence={**result["evidence"], "process": used}
        )
    error = outcome.error
    assert error is not None
    evidence: dict[str, JsonValue] = {"process": used, "error": {"code": error.code, "message": error.message[:2000]}}
    if outcome.stderr_tail:
        evidence["log_tail"] = outcome.stderr_tail[-2000:]
    reason = f"{error.message[:500]} [{error.code}]"
    return GateRecord(name=name, status=Status(outcome.status), reason=reason, evidence=evidence)
