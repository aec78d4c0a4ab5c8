"""The compile gate, with backends of the test's own."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest

from agent.records import GateRecord, Status
from agent.task import load
from agent.verify import compile, exploits
from agent.verify.compile import _together, shapes
from agent.verify.inputs import blank
from agent.verify.judge import Limits, Options, Run
from agent.verify.runner import problems
from agent.verify.subject import Subject, task_ref
from agent.verify.worker import GpuHealth, WorkerOutcome
from coda.backends import registry
from coda.backends.registry import Artifact, Support
from coda.errors import BadSchedule, CompileError
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


def subject(source: str = exploits.HONEST) -> Subject:
    space: dict[str, Any] = {}
    exec(builtins.compile(source, "kernel.py", "exec"), space)
    return Subject(space["kernel"].program, SWIGLU)


class Fake:
    """A backend that compiles nothing."""

    name = "triton"

    def __init__(self, *, supported: bool = True, fails: bool = False) -> None:
        self.supported, self.fails = supported, fails
        self.seen: list[tuple[Problem, Schedule, str | None]] = []

    def available(self) -> Support:
        return Support(True)

    def supports(self, program: EpilogueProgram, problem: Problem) -> Support:
        return Support(self.supported, "" if self.supported else "too wide")

    def default_schedule(self, program: EpilogueProgram, problem: Problem) -> Schedule:
        return Schedule()

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        """Everything will do."""

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        if self.fails:
            raise CompileError("out of registers", got=300)
        self.seen.append((problem, schedule, arch))
        return Artifact("triton", program, problem, schedule, "source", b"cubin", 168, 0, 200_000)


def payload(**changes: Any) -> dict[str, Any]:
    known = {
        "program": subject().program.to_json(),
        "task": task_ref(SWIGLU),
        "seed": 1,
        "backend": "triton",
        "arch": "sm_90",
        "schedule": None,
    }
    return {**known, **changes}


def worked(monkeypatch: pytest.MonkeyPatch, fake: Fake, **changes: Any) -> dict[str, Any]:
    monkeypatch.setattr(registry, "get", lambda name: fake)
    answer: dict[str, Any] = json.loads(json.dumps(compile.work(payload(**changes))))
    return answer


def test_resources_are_recorded_for_small_and_full_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    answer = worked(monkeypatch, fake)
    assert answer["status"] == "PASS"
    built = answer["evidence"]["built"]
    assert [(b["shape"], b["registers"], b["spills"], b["shared_memory"], b["cubin_bytes"]) for b in built] == [
        ("smoke", 168, 0, 200_000, 5),
        ("benchmark", 168, 0, 200_000, 5),
    ]
    assert [(p.m, p.dtype, p.arch, arch) for p, _, arch in fake.seen] == [
        (32, "bfloat16", "sm_90", "sm_90"),
        (4096, "bfloat16", "sm_90", "sm_90"),
    ]
    assert all(p.spec("out.zdz").dtype == "float32" for p, _, _ in fake.seen)


def test_an_authors_schedule_is_the_one_that_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    worked(monkeypatch, fake, schedule=Schedule(tile_m=64).to_dict())
    assert {s.tile_m for _, s, _ in fake.seen} == {64}
    other = Fake()
    worked(monkeypatch, other, schedule=Schedule(backend="cutedsl", tile_m=64).to_dict())
    assert {s.tile_m for _, s, _ in other.seen} == {128}


class Refuses(Fake):
    """As the triton backend does, before anything is generated; 9 is no row of a small tile."""

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        if schedule.tile_m == 7 or (schedule.tile_m == 9 and problem.m < 4096):
            raise BadSchedule("triton: Schedule.tile_m", got=schedule.tile_m, expected="a power of two")

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        self.check(program, problem, schedule)
        return super().compile(program, problem, schedule, arch)


def test_a_schedule_need_not_be_one_for_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Refuses()
    assert worked(monkeypatch, fake, schedule=Schedule(tile_m=9).to_dict())["status"] == "PASS"
    assert [(p.m, s.tile_m) for p, s, _ in fake.seen] == [(32, 128), (4096, 9)]


def test_a_schedule_that_its_backend_refuses_is_at_fault_and_not_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = worked(monkeypatch, Refuses(), schedule=Schedule(tile_m=7).to_dict())
    assert answer["reason"].startswith("the schedule is not valid; the kernel is not at fault: triton, ")
    assert answer["reason"].endswith("triton: Schedule.tile_m: got 7, expected a power of two")
    said = {
        "triton": GateRecord(
            name="compile", status=answer["status"], reason=answer["reason"], evidence=answer["evidence"]
        ),
        "other": GateRecord(name="compile", status=Status.PASS, evidence={"programs": {"p": True}}),
    }
    record = compile._together(said, "sm_90")
    assert (record.status, record.reason) == (Status.COMPILE_ERROR, answer["reason"])  # although another one compiles
    assert worked(monkeypatch, Refuses())["status"] == "PASS"


def test_the_real_backend_refuses_such_schedules_as_the_schedules_fault() -> None:
    for wrong in ({"tile_m": 7}, {"tile_m": 8}, {"split_k": 2}, {"stages": 64}, {"tile_m": 1024, "tile_n": 1024}):
        answer = compile.work(payload(schedule=Schedule(**wrong).to_dict()))
        assert answer["status"] == "COMPILE_ERROR"
        assert answer["reason"].startswith("the schedule is not valid; the kernel is not at fault: triton, "), answer


def test_what_cannot_be_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = worked(monkeypatch, Fake(fails=True))
    assert failed["status"] == "COMPILE_ERROR"
    assert "out of registers" in failed["reason"]
    unsupported = worked(monkeypatch, Fake(supported=False))
    assert "not supported: too wide" in unsupported["reason"]
    monkeypatch.undo()
    absent = compile.work(payload(backend="nothing"))
    assert absent["status"] == "NOT_RUN"


@pytest.mark.parametrize(
    ("asked", "health", "arch"),
    [
        (None, GpuHealth(state="healthy", reason="", arch="sm_100", seconds=0), "sm_100"),
        ("sm_90", GpuHealth(state="healthy", reason="", arch="sm_100", seconds=0), "sm_90"),
        (None, GpuHealth(state="no GPU", reason="none", seconds=0), "sm_90"),
    ],
)
def test_it_compiles_for_the_gpu_unless_another_was_asked_for(asked: str | None, health: GpuHealth, arch: str) -> None:
    targets = []

    def call(function: str, payload: dict[str, Any], **_: Any) -> WorkerOutcome:
        targets.append(payload["arch"])
        result = {"status": "PASS", "reason": "", "evidence": {"programs": {"p": True}}}
        return WorkerOutcome(status="PASS", result=result, seconds=1.0)

    run = Run(exploits.HONEST, SWIGLU, Options(arch=asked), Limits(), {"compile": 1}, health=health, call=call)
    record = compile.gate(run)
    assert set(targets) == {arch}
    assert (record.evidence["arch"], run.arch) == (arch, arch)


def said(status: Status, **programs: bool) -> GateRecord:
    reason = "" if status is Status.PASS else "it broke"
    return GateRecord(name="compile", status=status, reason=reason, evidence={"programs": dict(programs)})


def test_every_program_must_compile_on_some_backend() -> None:
    good, bad = said(Status.PASS, one=True, two=True), said(Status.COMPILE_ERROR, one=False, two=True)
    absent = GateRecord.not_run("compile", "not installed")
    assert _together({"a": bad, "b": good}, "sm_90").status is Status.PASS
    assert _together({"a": said(Status.COMPILE_ERROR, one=True, two=False), "b": bad}, "sm_90").status is Status.PASS
    assert _together({"a": absent, "b": bad}, "sm_90").status is Status.COMPILE_ERROR
    assert _together({"a": absent}, "sm_90").status is Status.NOT_RUN
    crash = GateRecord(name="compile", status=Status.CRASH, reason="SIGSEGV", evidence={"error": "x"})
    assert _together({"a": crash, "b": good}, "sm_90").status is Status.PASS
    assert _together({"a": crash, "b": absent}, "sm_90").status is Status.CRASH


def test_inner_shapes_of_a_plan_are_known_without_computing() -> None:
    import importlib

    kernel = importlib.import_module("examples_curated.residual_rms_linear").kernel
    task = load("residual_rms_linear")
    found = problems(
        Subject(kernel.program, task), blank(task, {"M": 8, "N": 16, "K": 4, "P": 32}, "bfloat16"), "sm_90"
    )
    assert [(p.m, p.n, p.k) for part, p in found if part.kind == "epilogue"] == [(8, 16, 4), (8, 32, 16)]
    assert set(shapes(task)) == {"smoke", "benchmark"}
