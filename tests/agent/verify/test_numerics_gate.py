"""The numerics gate on kernels that behave and on every way of not behaving."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import authored_kernels
from agent.records import Status
from agent.task import Task, load
from agent.verify import bench, exploits, hidden_branches, numerics, runner
from agent.verify import inputs as draws
from agent.verify.inputs import run_seed
from agent.verify.judge import Limits, Options, Run
from agent.verify.numerics import Case, Report, cases, check, expected
from agent.verify.runner import Buffers, Runner
from agent.verify.subject import Subject, task_ref
from agent.verify.worker import GpuHealth, WorkerError, WorkerOutcome
from coda import env
from coda.backends import registry
from coda.backends.reference import Reference
from coda.bench.timing import gpu_lock
from coda.problem import Schedule

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


def subject(source: str = exploits.HONEST) -> Subject:
    space: dict[str, Any] = {}
    exec(compile(source, "kernel.py", "exec"), space)
    return Subject(space["kernel"].program, SWIGLU)


def honest(source: str = exploits.HONEST) -> Runner:
    return Runner(subject(source), registry.get("reference"))


def todo(task: Task = SWIGLU) -> Iterator[Case]:
    return cases(task, run_seed(), device="cpu")


def test_an_honest_kernel_passes_with_the_error_of_every_output() -> None:
    report = check(SWIGLU, honest(), todo(), device="cpu", seconds=60)
    assert (report.status, report.failures) == (Status.PASS, [])
    assert report.worst.keys() == {f"{d}/{o}" for d in ("float32", "float16") for o in ("dz", "h", "zdz")}
    assert all(w["ratio"] <= 1 and w["trusted_max"] is not None for w in report.worst.values())
    assert report.cases >= 12


def test_cases_cover_dtypes_distributions_strides_and_ragged_sizes() -> None:
    found = list(todo())
    assert {c.dtype for c in found} == {"float32", "float16"}
    assert {c.distribution for c in found} == {*SWIGLU.distributions, "huge"}
    assert any(c.strided for c in found)
    assert any(c.dims["N"] % 2 for c in found)
    assert {c.dtype for c in cases(SWIGLU, 1, device="cuda")} == {"bfloat16", "float16"}
    assert any(c.where == "benchmark-like" and c.dims["M"] >= 1024 for c in cases(SWIGLU, 1, device="cuda"))


@pytest.mark.parametrize(("id_", "kind", "words"), [(i, k, w) for i, _, k, w in exploits.RUNNERS])
def test_every_misbehaviour_has_its_word(id_: str, kind: type[exploits.Wrapped], words: tuple[str, ...]) -> None:
    report = check(SWIGLU, kind(honest()), todo(), device="cpu", seconds=60)
    assert str(report.status) in words, (id_, report.reason)
    assert report.failures


def test_what_is_not_written_is_called_that() -> None:
    for kind in (exploits.NeverWrites, exploits.LeavesTail):
        report = check(SWIGLU, kind(honest()), todo(), device="cpu", seconds=60)
        assert report.failures[0]["pattern"] == "not written"


def test_rounding_inside_a_program_is_seen_here() -> None:
    source = next(s.text for s in exploits.SOURCES if s.id == "X47")
    report = check(SWIGLU, honest(source), todo(), device="cpu", seconds=60)
    assert report.status is Status.WRONG_VALUES


def test_inputs_of_the_next_case_lie_at_the_same_addresses() -> None:
    seen: dict[tuple[int, ...], set[int]] = {}
    count: dict[tuple[int, ...], int] = {}
    run = honest()

    def spy(inputs: Any, allocate: Any) -> dict[str, torch.Tensor]:
        key = tuple(inputs["z"].shape)
        seen.setdefault(key, set()).add(inputs["z"].data_ptr())
        count[key] = count.get(key, 0) + 1
        return run(inputs, allocate)

    first = list(itertools.islice(todo(), 4))
    assert len({tuple(c.dims.items()) for c in first}) == 1
    assert check(SWIGLU, spy, iter(first), device="cpu", seconds=60).status is Status.PASS
    (key,) = seen
    assert count[key] == 8
    assert len(seen[key]) < 8  # the same tensor is rewritten; the second run of each case has another one


def test_a_baseline_of_another_dtype_is_the_tasks_fault() -> None:
    def wide(**inputs: Any) -> dict[str, torch.Tensor]:
        return {n: x.double() for n, x in SWIGLU.baseline(**inputs).items()}

    task = dataclasses.replace(SWIGLU, baseline=wide)
    assert check(task, honest(), todo(), device="cpu", seconds=60).status is Status.INVALID_SPEC


@pytest.mark.parametrize("part", ["reference", "baseline"])
@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ValueError("no"), Status.INVALID_SPEC),
        (AttributeError("no"), Status.INVALID_SPEC),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.INFRA_ERROR),
    ],
)
def test_what_our_own_part_raises_is_never_the_kernels(part: Any, error: Exception, word: Status) -> None:
    def fails(**_: Any) -> dict[str, torch.Tensor]:
        raise error

    report = check(dataclasses.replace(SWIGLU, **{part: fails}), honest(), todo(), device="cpu", seconds=60)
    assert report.status is word
    assert f"the {part} of swiglu_backward fails" in report.reason
    assert report.failures


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), Status.INFRA_ERROR),
        (RuntimeError("CUDA error: an illegal memory access"), Status.RUNTIME_ERROR),
    ],
)
def test_a_full_memory_is_not_the_kernels_fault_but_an_error_of_its_own_is(error: Exception, word: Status) -> None:
    def run(inputs: Any, allocate: Any) -> dict[str, torch.Tensor]:
        raise error

    assert check(SWIGLU, run, todo(), device="cpu", seconds=60).status is word


def test_the_reference_runs_once_per_case_and_twice_with_its_response() -> None:
    calls = 0

    def counted(**inputs: Any) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        return {**SWIGLU.reference(**inputs), "not an output": torch.zeros(1)}

    task = dataclasses.replace(SWIGLU, reference=counted)
    case = next(todo())
    expected(task, case, draws.draw(task, case.dims, seed=1, dtype=case.dtype))
    assert calls == 2  # whatever the number of outputs


def test_a_gpu_is_used_by_one_gate_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(env, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(runner, "current_gpu", lambda: "the-gpu")
    monkeypatch.setattr(registry, "available", dict)
    with gpu_lock("the-gpu", timeout_s=1):
        busy = numerics.work(payload(device="cuda", wait_s=0.05))
        assert (busy["status"], busy["evidence"]) == ("INFRA_ERROR", {"waited_s": 0.05})
        assert numerics.work(payload(device="cpu"))["status"] == "NOT_RUN"  # the interpreter waits for nobody
    assert numerics.work(payload(device="cuda", wait_s=0.05))["status"] == "NOT_RUN"


@pytest.mark.parametrize(("state", "waits"), [("healthy", 7.0), ("no GPU", 0.0)])
def test_waiting_for_the_gpu_takes_nothing_from_the_time_of_the_gate(state: Any, waits: float) -> None:
    asked: list[dict[str, Any]] = []

    def call(function: str, payload: dict[str, Any], **limits: Any) -> WorkerOutcome:
        if not function.endswith(":build"):
            asked.append({**limits, "wait_s": payload["wait_s"]})
        result = {"status": "PASS", "reason": "", "evidence": {"cases": 1}}
        return WorkerOutcome(status="PASS", result=result, seconds=1.0)

    health = GpuHealth(state=state, reason="told", device="X", seconds=0.1)
    limits = Limits(numerics_s=100, bench_s=200, wait_s=7)
    run = Run(exploits.HONEST, SWIGLU, Options(), limits, {"numerics": 1, "bench": 2}, health=health, call=call)
    run.subject = subject()
    assert numerics.gate(run).status is Status.PASS
    assert (asked[0]["timeout_s"], asked[0]["wait_s"]) == (100 + waits, waits)
    if state == "healthy":
        assert bench.gate(run).status is Status.PASS
        assert (asked[1]["timeout_s"], asked[1]["wait_s"]) == (207, 7)


def gpu_run(call: Any, **more: Any) -> Run:
    health = GpuHealth(state="healthy", reason="told", device="X", seconds=0.1, arch="sm_90")
    run = Run(exploits.HONEST, SWIGLU, Options(), Limits(), {"numerics": 5}, health=health, call=call, **more)
    run.subject, run.schedule = subject(), Schedule("triton", tile_m=128)
    run.program_json = run.subject.program.to_json()
    return run


def test_on_a_gpu_every_kernel_of_the_cases_is_built_before_the_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    called: list[str] = []

    def call(function: str, payload: dict[str, Any], **limits: Any) -> WorkerOutcome:
        called.append(function)
        assert limits["env"]["TRITON_INTERPRET"] is None
        if function.endswith(":build"):
            return WorkerOutcome(status="PASS", result=numerics.build(payload), seconds=1.0)
        return WorkerOutcome(status="PASS", result={"status": "PASS", "reason": "", "evidence": {}}, seconds=1.0)

    def build_ahead(jobs: list[Any], **options: Any) -> int:
        built.extend(jobs)
        return len(jobs)

    monkeypatch.setattr(numerics, "build_ahead", build_ahead)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    run = gpu_run(call)
    record = numerics.gate(run)
    assert called == ["agent.verify.numerics:build", "agent.verify.numerics:work"]
    found = {(j.problem.m, j.problem.dtype, dict(j.problem.tensors)["b"].layout) for j in built}
    wanted = {(c.dims["M"], c.dtype, "col" if c.strided else "row") for c in cases(SWIGLU, 5, device="cuda")}
    assert found == wanted
    assert record.evidence["built_ahead"] == {"kernels": len(set(built)), "seconds": 1.0}
    assert all(j.problem.arch == "sm_90" and j.extra == (run.schedule,) for j in built)


def test_what_cannot_be_built_ahead_is_for_the_worker_to_say() -> None:
    def call(function: str, payload: dict[str, Any], **limits: Any) -> WorkerOutcome:
        if function.endswith(":build"):
            error = WorkerError(code="shape-mismatch", message="no such pairs")
            return WorkerOutcome(status="RUNTIME_ERROR", error=error, seconds=1.0)
        result = {"status": "WRONG_SHAPE", "reason": "the worker's", "evidence": {}}
        return WorkerOutcome(status="PASS", result=result, seconds=1.0)

    record = numerics.gate(gpu_run(call))
    assert (record.status, record.reason) == (Status.WRONG_SHAPE, "the worker's")
    assert record.evidence["built_ahead"] == {"reason": "no such pairs", "seconds": 1.0}


@pytest.mark.parametrize(
    "task_id", ["swiglu_backward", "rms_backward", "cross_entropy_smoothing", "residual_mlp_block"]
)
def test_what_is_built_ahead_is_what_the_worker_runs(task_id: str) -> None:
    """The same problems to the last alignment, else each would be compiled again."""
    task, ran = load(task_id), set()

    class Noted(Reference):
        def compile(self, program: Any, problem: Any, schedule: Any, arch: Any) -> Any:
            ran.add((program.digest, problem))
            return super().compile(program, problem, schedule, arch)

    own = authored_kernels.load(f"{task_id}/claude").program
    runner = Runner(Subject(own, task), Noted())
    assert check(task, runner, cases(task, 7, device="cpu"), device="cpu", seconds=60).status is Status.PASS
    ahead = numerics.kernels(task, runner.subject, 7, None, None, device="cpu")
    assert {(j.program.digest, j.problem) for j in ahead} == ran


LOSS = load("cross_entropy_smoothing")


def losses(lse: str) -> Report:
    (source,) = (s for s in hidden_branches.BRANCHES if s.id == "X98w")
    space: dict[str, Any] = {}
    exec(source.text.replace("40 + log(row_sum(exp(acc - 40)))", lse), space)
    runner = Runner(Subject(space["kernel"].program, LOSS), registry.get("reference"))
    return check(LOSS, runner, (c for c in todo(LOSS) if c.distribution == "huge"), device="cpu", seconds=60)


def test_huge_values_overflow_where_an_exponential_is_not_kept_in_bounds() -> None:
    honest_ = losses("row_logsumexp(acc)")
    assert (honest_.status, honest_.cases) == (Status.PASS, 2)
    for shift in (0, 40, 120):
        assert losses(f"{shift} + log(row_sum(exp(acc - {shift})))").status is Status.NONFINITE


def test_huge_values_do_not_count_where_they_cannot_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_computable", lambda right, today: False)
    assert losses("log(row_sum(exp(acc)))").status is Status.PASS
    right = {"y": torch.tensor([1e5], dtype=torch.float64)}
    monkeypatch.undo()
    assert numerics._computable(right, {"y": torch.tensor([1e5])})
    assert not numerics._computable(right, {"y": torch.tensor([60000.0], dtype=torch.float16)})
    assert not numerics._computable(right, {"y": torch.tensor([math.inf])})
    assert numerics._computable({"y": torch.ones(1)}, {"y": torch.ones(1).to(torch.float8_e4m3fn)})


def test_time_is_bounded() -> None:
    assert check(SWIGLU, honest(), todo(), device="cpu", seconds=0).status is Status.TIMEOUT


def test_buffers_are_poisoned_and_guarded() -> None:
    plain, filled = Buffers(), Buffers(fill=3.0)
    x, y = (b((2, 3), torch.float16, torch.device("cpu")) for b in (plain, filled))
    assert bool(torch.isnan(x).all())
    assert bool((y == 3).all())
    assert plain.intact()
    x.as_strided((1,), (1,), x.storage_offset() - 1).zero_()
    assert not plain.intact()
    assert filled.intact()


def payload(**changes: Any) -> dict[str, Any]:
    known = {"program": subject().program.to_json(), "task": task_ref(SWIGLU), "seed": 5, "schedule": None, "device": "cpu",
             "backends": [], "seconds": 60}  # fmt: skip
    return {**known, **changes}


def test_no_backend_is_not_run_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    unready = {"triton": registry.Support(False, "not this machine")}
    monkeypatch.setattr(registry, "available", lambda: unready)
    answer = numerics.work(payload())
    assert answer["status"] == "NOT_RUN"
    assert "triton: not this machine" in answer["reason"]


def test_evidence_says_that_it_was_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "available", lambda: {"triton": registry.Support(True)})
    monkeypatch.setattr(registry, "get", lambda name, real=registry.get: real("reference"))
    answer = numerics.work(payload())
    assert (answer["status"], answer["evidence"]["device"]) == ("PASS", "interpreter")
    assert answer["evidence"]["backends"]["triton"]["cases"] >= 12


@pytest.mark.parametrize("task_id", ["lm_head_loss", "cross_entropy_smoothing", "gemm_cross_entropy"])
def test_honest_losses_pass_the_smallest_sizes_for_every_seed(task_id: str) -> None:
    """One row, a vocabulary of two: where changes of the inputs cancel, and one judgement in twenty was refused."""
    task = load(task_id)
    path = pathlib.Path(__file__).parents[3] / "authored_kernels" / task_id / "claude" / "program.json"
    run = Runner(Subject.read(path.read_text("utf-8"), task), registry.get("reference"))
    small = min((s.dims for s in task.shapes), key=lambda dims: math.prod(dims.values()))
    few = [
        Case("ragged", small, dtype, distribution, seed)
        for seed in range(60)
        for dtype in ("float32", "bfloat16")
        for distribution in ("normal", "large")
    ]
    refused = [r.reason for case in few if (r := check(task, run, iter([case]), device="cpu", seconds=60)).failures]
    assert refused == []


def test_a_probability_near_one_is_as_uncertain_as_its_logarithm() -> None:
    """Its gradient p - 1 is small, and wrong by what rounding the log-sum-exp makes of p: eager gets no more of it right."""
    task = load("cross_entropy_loss_and_gradient")
    path = pathlib.Path(__file__).parents[3] / "authored_kernels" / task.id / "claude" / "program.json"
    run = Runner(Subject.read(path.read_text("utf-8"), task), registry.get("reference"))
    shape = next(s.dims for s in task.shapes_of("ragged") if s.dims["M"] > 20)
    few = [Case("ragged", shape, "float32", "large", seed) for seed in range(25)]
    refused = [r.reason for case in few if (r := check(task, run, iter([case]), device="cpu", seconds=60)).failures]
    assert refused == []
