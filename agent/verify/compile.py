"""Gate `compile`: does it become a kernel for the target, and what does that kernel use?

    gate    every fused backend in a worker of its own, with its own time limit, all at the same time
    target  the architecture that it compiles for
    work    the worker's entry: every program of the candidate, compiled ahead of time for the architecture

Needs no GPU. Problems are those of the task's first smoke and first benchmark shape in bf16 (made on meta tensors, so that a
plan's inner shapes are right). It passes when every program compiles on at least one backend; a backend that cannot express
a program says why, and that is evidence too. Registers, spills and shared memory are recorded per backend and shape.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from coda.backends import registry
from coda.errors import BackendUnavailable, BadSchedule, CodaError, CompileError, Unsupported
from coda.problem import Schedule
from coda.program import EpilogueProgram

from ..records import GateRecord, Status
from ..task import Dims, Task
from .inputs import blank
from .runner import own, problems, schedule_of, valid
from .subject import Subject, load_task
from .worker import call_all

if TYPE_CHECKING:
    from .judge import Run as Judgement

DTYPE = "bfloat16"
DEFAULT_ARCH = "sm_90"
"""Where no architecture was asked for and there is no GPU."""
SCHEDULE_AT_FAULT = "the schedule is not valid; the kernel is not at fault"
"""How a refusal of an author's schedule begins."""


def gate(run: Judgement) -> GateRecord:
    """One worker per backend; the record has what each of them said."""
    from .judge import from_worker

    names = run.options.backends or fused()
    run.arch = target(run)
    outcomes = call_all(
        run.call,
        "agent.verify.compile:work",
        [run.payload("compile", backend=name, arch=run.arch) for name in names],
        timeout_s=run.limits.compile_s,
        env={"TRITON_INTERPRET": None},  # the interpreter and compiling exclude each other
        memory_mb=run.limits.memory_mb,
    )
    said = {name: from_worker("compile", outcome) for name, outcome in zip(names, outcomes, strict=True)}
    return _together(said, run.arch)


def fused() -> tuple[str, ...]:
    """The backends that compile."""
    return tuple(n for n in registry.MODULES if n != "reference")


def target(run: Judgement) -> str:
    """The architecture that was asked for, else that of the GPU on which the later gates run, else the default one."""
    from .judge import gpu

    if run.options.arch is not None:
        return run.options.arch
    health = gpu(run)
    return (health.arch if health is not None else None) or DEFAULT_ARCH


def _together(said: Mapping[str, GateRecord], arch: str) -> GateRecord:
    """Every program must compile somewhere, and a schedule where it is meant for; else the first failure is the gate's."""
    evidence: dict[str, JsonValue] = {"arch": arch, "dtype": DTYPE}
    backends: dict[str, JsonValue] = {}
    compiled: set[str] = set()
    wanted: set[str] = set()
    for name, record in said.items():
        backends[name] = {"status": str(record.status), "reason": record.reason, **record.evidence}
        programs = record.evidence.get("programs")
        if isinstance(programs, dict):
            wanted |= set(programs)
            compiled |= {digest for digest, ok in programs.items() if ok}
    evidence["backends"] = backends
    ran = [r for r in said.values() if r.status is not Status.NOT_RUN]
    if not ran:
        reasons = "; ".join(f"{n}: {r.reason}" for n, r in said.items()) or "there is no fused backend"
        return GateRecord.not_run("compile", reasons)
    blamed = next((r for r in ran if r.evidence.get("fault") == "schedule"), None)
    if blamed is not None:  # another backend may compile the kernel: without the schedule that was asked for
        return GateRecord(name="compile", status=blamed.status, reason=blamed.reason, evidence=evidence)
    if wanted and wanted == compiled:
        return GateRecord(name="compile", status=Status.PASS, evidence=evidence)
    failed = next((r for r in ran if r.status.refuses), ran[0])
    status = failed.status if failed.status.refuses else Status.COMPILE_ERROR
    return GateRecord(
        name="compile", status=status, reason=failed.reason or "no backend compiles every program", evidence=evidence
    )


def shapes(task: Task) -> dict[str, Dims]:
    """What is compiled for: small, where tiles are cut, and full size."""
    found = {}
    for family in ("smoke", "benchmark"):
        of = task.shapes_of(family)
        if of:
            found[family] = of[0].dims
    return found


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "backend", "arch", "schedule"} -> status, reason and evidence."""
    task = load_task(payload["task"])
    subject = Subject.read(payload["program"], task)
    try:
        backend = registry.get(payload["backend"])
    except (BackendUnavailable, CodaError) as error:
        return {"status": "NOT_RUN", "reason": f"{error.what}: {error.got or ''}", "evidence": {}}
    schedule = schedule_of(payload)
    built: list[dict[str, Any]] = []
    *_, made_for = shapes(task)  # an author's schedule: there it must be valid
    for where, dims in shapes(task).items():
        for part, problem in problems(subject, blank(task, dims, DTYPE), payload["arch"]):
            mine = own(schedule, backend.name, part) if where == made_for else valid(schedule, backend, part, problem)
            built.append({"shape": where, **_build(backend, part, problem, mine, payload["arch"])})
    refused = next((b for b in built if b.get("fault") == "schedule"), None)
    if refused is not None:
        about = {"built": built, "fault": "schedule"}
        return {"status": "COMPILE_ERROR", "reason": refused["reason"], "evidence": about}
    programs = {b["program"]: all(x["status"] == "PASS" for x in built if x["program"] == b["program"]) for b in built}
    bad = next((b for b in built if b["status"] != "PASS"), None)
    evidence = {"built": built, "programs": programs}
    if bad is not None:
        return {
            "status": bad["status"],
            "reason": f"{backend.name}, {bad['shape']} sizes: {bad['reason']}",
            "evidence": evidence,
        }
    return {"status": "PASS", "reason": "", "evidence": evidence}


def _build(
    backend: registry.Backend, part: EpilogueProgram, problem: Any, schedule: Schedule | None, arch: str
) -> dict[str, Any]:
    started = time.monotonic()
    about: dict[str, Any] = {"program": part.digest, "name": part.name}
    support = backend.supports(part, problem)
    if not support.ok:
        return {**about, "status": "COMPILE_ERROR", "reason": f"not supported: {support.reason}", "supported": False}
    try:
        chosen = schedule or backend.default_schedule(part, problem)
        artifact = backend.compile(part, problem, chosen, arch)
    except BadSchedule as error:
        if schedule is None:
            return {**about, "status": "COMPILE_ERROR", "reason": str(error)[:2000]}
        reason = f"{SCHEDULE_AT_FAULT}: {backend.name}, M={problem.m} N={problem.n} K={problem.k}: {error}"
        return {**about, "status": "COMPILE_ERROR", "reason": reason[:2000], "fault": "schedule"}
    except (CompileError, Unsupported) as error:
        return {**about, "status": "COMPILE_ERROR", "reason": str(error)[:2000]}
    resources = {"registers": artifact.registers, "spills": artifact.spills, "shared_memory": artifact.shared_memory}
    size = len(artifact.cubin) if artifact.cubin is not None else None
    seconds = round(time.monotonic() - started, 3)
    return {
        **about,
        "status": "PASS",
        **resources,
        "cubin_bytes": size,
        "schedule": chosen.to_dict(),
        "seconds": seconds,
    }
