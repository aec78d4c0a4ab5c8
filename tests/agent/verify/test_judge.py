"""Gates in order, stopping at the first refusal, with evidence for each."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from agent.records import GATES, GateRecord, Status
from agent.task import load
from agent.verify import exploits
from agent.verify import judge as judge_module
from agent.verify.feedback import digest
from agent.verify.judge import Limits, Options, Progress, Run, from_worker, judge
from agent.verify.selftest import in_process
from agent.verify.worker import GpuHealth, WorkerError, WorkerOutcome

SWIGLU = load("swiglu_backward")
FORMULA = Options(gates=("static", "trace", "algebra"))


def passing(name: Any) -> Any:
    return lambda run: GateRecord(name=name, status=Status.PASS, evidence={"by": "a test"})


@pytest.fixture
def late_gates(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Real static, trace and algebra gates; the others are the test's."""
    real = judge_module._gates()
    gates = {**real, **{n: passing(n) for n in ("compile", "numerics")}}
    gates["bench"] = lambda run: GateRecord.not_run("bench", "no GPU")
    monkeypatch.setattr(judge_module, "_gates", lambda: gates)
    return gates


@pytest.mark.interp
def test_a_right_kernel_passes_every_gate_that_can_run(late_gates: dict[str, Any]) -> None:
    heard: list[Progress] = []
    found = judge(exploits.HONEST, SWIGLU, on_progress=heard.append, call=in_process)
    assert (found.status, found.first_failure, found.kind) == (Status.PASS, None, "epilogue")
    assert [g.name for g in found.gates] == list(GATES)
    assert [(p.gate, p.state) for p in heard] == [(g, s) for g in GATES for s in ("started", "finished")]
    assert found.task_digest == SWIGLU.digest
    assert found.program_digest
    assert set(found.seeds) == set(GATES) - {"bench"}
    assert found.gate("algebra").evidence["cases"]
    again = judge(exploits.HONEST, SWIGLU, call=in_process)
    assert again.program_digest == found.program_digest
    assert not set(again.seeds.values()) & set(found.seeds.values())  # fresh per run


@pytest.mark.interp
@pytest.mark.parametrize(
    ("id_", "gate", "status"),
    [
        ("X12", "static", Status.POLICY),
        ("X51a", "trace", Status.WRONG_SHAPE),
        ("X52", "trace", Status.WRONG_DTYPE),
        ("X59c", "trace", Status.POLICY),
        ("X79", "trace", Status.CRASH),
        ("X90", "algebra", Status.WRONG_VALUES),
    ],
)
def test_the_first_refusal_stops_the_rest(id_: str, gate: str, status: Status) -> None:
    text = next(s.text for s in exploits.SOURCES if s.id == id_)
    found = judge(text, SWIGLU, call=in_process)
    assert (found.first_failure, found.status) == (gate, status)
    later = found.gates[GATES.index(gate) + 1 :]
    assert all(g.reason == f"{gate} ended with {status}" and g.status is Status.NOT_RUN for g in later)
    assert (found.program_digest is None) == (gate != "algebra")


@pytest.mark.null
def test_broken_text_is_a_verdict_not_an_error() -> None:
    for text in ("", "def f(:", b"\xff\xfe\x00", "\udc9d", "kernel = 1\n", "x" * 100_000):
        found = judge(text, SWIGLU)
        assert found.first_failure == "static"
        assert found.gate("static").reason.startswith("line ")


@pytest.mark.interp
def test_a_schedule_is_validated_before_it_is_used() -> None:
    found = judge(exploits.HONEST, SWIGLU, options=Options(gates=FORMULA.gates, schedule={"tile_q": 3}))
    assert (found.first_failure, found.status) == ("trace", Status.COMPILE_ERROR)
    assert "tile_q" in found.gate("trace").reason
    good = {"backend": "triton", "tile_m": 64}
    kept = judge(exploits.HONEST, SWIGLU, options=Options(gates=("static", "trace"), schedule=good))
    assert kept.schedule == good


@pytest.mark.interp
def test_gates_that_were_not_asked_for_are_not_run_and_no_pass() -> None:
    found = judge(exploits.HONEST, SWIGLU, options=FORMULA, call=in_process)
    assert found.status is Status.NOT_RUN
    assert not found.passed
    assert {g.reason for g in found.not_run} == {"not asked for"}
    late = judge(exploits.HONEST, SWIGLU, options=Options(gates=("numerics",)))
    assert late.gate("numerics").reason == "there is no traced program"


@pytest.mark.interp
def test_a_bug_of_the_judge_is_nobodys_pass(late_gates: dict[str, Any]) -> None:
    def broken(run: Run) -> GateRecord:
        raise ZeroDivisionError("ours")

    late_gates["compile"] = broken
    found = judge(exploits.HONEST, SWIGLU, call=in_process)
    assert (found.status, found.first_failure) == (Status.INFRA_ERROR, "compile")
    assert "ZeroDivisionError" in found.gate("compile").reason


@pytest.mark.interp
def test_a_hanging_trace_ends_at_its_limit() -> None:
    text = next(s.text for s in exploits.SOURCES if s.id == "X70")
    found = judge(text, SWIGLU, limits=Limits(trace_s=1.5))
    assert (found.first_failure, found.status) == ("trace", Status.TIMEOUT)
    assert found.gate("trace").seconds < 6


@pytest.mark.null
@pytest.mark.parametrize("word", ["CRASH", "TIMEOUT", "RUNTIME_ERROR", "INFRA_ERROR", "TAMPERED"])
def test_what_happens_to_a_worker_is_the_gates_word(word: Any) -> None:
    outcome = WorkerOutcome(status=word, error=WorkerError(code="c", message="m"), seconds=1.0, stderr_tail="log")
    record = from_worker("numerics", outcome)
    assert (record.status, record.reason, record.evidence["log_tail"]) == (Status(word), "m [c]", "log")


@pytest.mark.null
def test_a_worker_may_say_that_it_could_not_run() -> None:
    outcome = WorkerOutcome(
        status="PASS", result={"status": "NOT_RUN", "reason": "no backend", "evidence": {}}, seconds=1.0
    )
    assert from_worker("compile", outcome) == GateRecord.not_run("compile", "no backend")


@pytest.mark.null
def test_integers_are_named_for_tracing() -> None:
    task = load("gemm_cross_entropy")
    assert task.operand_dtypes()["target"] == "int"
    plan = dataclasses.replace(task, inputs=tuple(dataclasses.replace(i, role="input") for i in task.inputs))
    assert set(plan.operand_dtypes()) == {i.name for i in task.inputs}
    assert "eps" not in load("residual_layernorm").operand_dtypes()  # a scalar with a default is a number, not a tensor


@pytest.mark.null
def test_the_judge_knows_nothing_of_authors() -> None:
    code = (
        "import sys, agent.verify.judge, agent.verify.lint, agent.verify.selftest, agent.verify.feedback, agent.verify.bench\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('anthropic', 'jinja2', 'typer', 'rich')\n"
        "       or m.startswith(('agent.llm', 'agent.prompting', 'agent.loop'))]\n"
        "print(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.null
@pytest.mark.parametrize(("state", "told"), [("healthy", False), ("unusable", True)])
def test_after_a_crash_on_a_gpu_the_gpu_is_probed(monkeypatch: pytest.MonkeyPatch, state: Any, told: bool) -> None:
    health = GpuHealth(state=state, reason="the probe's words", seconds=0.1)
    monkeypatch.setattr(judge_module, "gpu_health", lambda deadline: health)
    outcome = WorkerOutcome(status="CRASH", error=WorkerError(code="SIGSEGV", message="m"), seconds=1.0)
    run = Run(exploits.HONEST, SWIGLU, Options(), Limits(), {})
    record = judge_module.probed(run, from_worker("numerics", outcome), outcome)
    assert record.status is Status.CRASH
    assert record.evidence["gpu_afterwards"] == health.model_dump()
    assert ("the probe's words" in record.reason) is told
    fine = WorkerOutcome(status="PASS", result={"status": "PASS", "reason": "", "evidence": {"x": 1}}, seconds=1.0)
    assert "gpu_afterwards" not in judge_module.probed(run, from_worker("numerics", fine), fine).evidence


@pytest.mark.null
def test_the_absence_of_a_gpu_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[float] = []

    def probe(deadline: float) -> GpuHealth:
        probes.append(deadline)
        return GpuHealth(state="no GPU", reason="none", seconds=0.1)

    monkeypatch.setattr(judge_module, "gpu_health", probe)
    monkeypatch.setattr(judge_module, "_NO_GPU", [])
    run = Run(exploits.HONEST, SWIGLU, Options(), Limits(), {})
    assert [judge_module.gpu(run) for _ in range(3)] == [judge_module._NO_GPU[0]] * 3
    assert len(probes) == 1
    assert judge_module.gpu(Run("", SWIGLU, Options(device=False), Limits(), {})) is None


@pytest.mark.null
def test_a_schedule_of_no_backend_is_the_schedules_fault() -> None:
    gates: Any = ("static", "trace")
    for wrong, said in (({"backend": "tritno"}, "did you mean 'triton'?"), ({"tile_m": 0}, "Schedule.tile_m: got 0")):
        found = judge(exploits.HONEST, SWIGLU, options=Options(gates=gates, schedule=wrong))
        assert found.first_failure == "trace"
        reason = found.gate("trace").reason
        assert reason.startswith("the schedule is not valid; the kernel is not at fault: ")
        assert said in reason


@pytest.mark.null
@pytest.mark.parametrize("said", [r"\ud800", r"\x1b]0;t\x07\x1b[2J\rPASS", r"\n\nPASS", r"\u202e"])
def test_whatever_a_candidate_says_the_verdict_can_be_written_and_shown(said: str) -> None:
    text = exploits.HONEST.replace("    s = sigmoid(g)\n", f'    assert False, "{said}"\n    s = sigmoid(g)\n')
    found = judge(text, SWIGLU, options=FORMULA)
    assert (found.first_failure, found.status) == ("trace", Status.RUNTIME_ERROR)
    assert type(found).model_validate_json(found.model_dump_json(by_alias=True)) == found
    assert found.gate("trace").reason.isprintable()
    assert digest(found).text.replace("\n", "").isprintable()


@pytest.mark.null
def test_every_gates_record_is_made_harmless(late_gates: dict[str, Any]) -> None:
    def odd(run: Run) -> GateRecord:
        return GateRecord(name="static", status=Status.POLICY, reason="a\x1b[2Jb\ud800", evidence={"log": "\x07\nend"})

    late_gates["static"] = odd
    record = judge(exploits.HONEST, SWIGLU).gate("static")
    assert (record.reason, record.evidence) == (r"a\x1b[2Jb\ud800", {"log": "\\x07\nend"})
