"""From a task and a program to a record, on a CPU: everything but the clock is what runs on a GPU."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import examples_curated
from agent import task as tasks
from agent.records import Status
from agent.verify import bench, entrants
from agent.verify.racing import race
from agent.verify.subject import Subject
from coda.backends import registry
from coda.backends.registry import Support
from coda.bench import empty, peers
from coda.bench.record import BenchRecord
from coda.bench.timing import Sample
from coda.errors import BackendUnavailable, Unsupported
from coda.kernel import from_json
from coda.problem import Schedule

pytestmark = pytest.mark.interp

DIMS = {"M": 128, "N": 96, "K": 48}


class Clock:
    """Calls, and says that everything took about as long."""

    def __init__(self) -> None:
        self.rng = random.Random(4)

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(1e-3 * (1 + self.rng.gauss(0, 0.003)), 1e-5)


@pytest.fixture(autouse=True)
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def entered(task_id: str, payload: dict[str, Any], dims: dict[str, int] = DIMS) -> tuple[Any, ...]:
    task = tasks.load(task_id)
    program = examples_curated.load(task_id).program
    subject = Subject.read(program.to_json(), task)
    sets = entrants.sets_of(task, dims, seed=7, device="cpu")
    check = entrants.checker(task, dims, sets, 7)
    common = {"program": program.to_json(), "schedule": None, "backends": ["reference"]}
    found = entrants.enter(task, subject, sets, check, {**common, **payload}, alike=check.peer)
    return task, subject, sets, check, found


@pytest.mark.parametrize("task_id", ["rms_swiglu", "residual_rms_linear"])
def test_a_record_from_beginning_to_end(task_id: str) -> None:
    dims = DIMS if task_id == "rms_swiglu" else {**DIMS, "P": 64}
    task, subject, sets, check, found = entered(task_id, {"peers": ["eager"]}, dims)
    assert list(found.kernels) == ["reference"]
    assert list(found.others) == ["eager"]
    assert found.ceiling is not None
    assert found.absent["compile"] == "not asked for"
    contest = bench.contest_of(task, subject, dims, found, 4e12)
    assert contest.flops == task.gemms * 2 * 128 * 48 * 96 if task_id == "rms_swiglu" else contest.flops > 0
    status, reason, record = race(contest, sets, check, Clock(), rounds=7, seed=1)
    assert status in (Status.NO_DIFFERENCE, Status.SUSPECT), reason  # a fake clock knows no physics
    assert record is not None
    assert BenchRecord.from_json(record.to_json()) == record
    assert {m.name for m in record.measured} >= {"reference", "eager", "cublas"}
    assert record.environment["torch"] == str(torch.__version__)


def test_a_record_says_what_a_default_call_takes() -> None:
    task, subject, sets, check, found = entered("rms_scale", {"peers": ["eager"]})
    assert found.default == "reference"
    found.kernels["tuned"], found.configs["tuned"] = found.kernels["reference"], {"rms_scale": {}}
    contest = bench.contest_of(task, subject, DIMS, found, 4e12)
    *_, record = race(contest, sets, check, Clock(), rounds=7, seed=1)
    assert record is not None
    assert record.default == "reference"  # whichever of the two was faster
    assert BenchRecord.from_json(record.to_json()) == record
    old = json.loads(record.to_json())
    del old["default"]
    assert BenchRecord.from_json(json.dumps(old)).default == ""
    with pytest.raises(ValueError, match="was not measured"):
        dataclasses.replace(record, default="cutedsl")
    del found.kernels["reference"]  # wrong, and so left out
    assert bench.contest_of(task, subject, DIMS, found, 4e12).default == ""


@pytest.mark.parametrize(
    ("task_id", "measured", "origin"),
    [
        ("rms_scale", ["rms_scale"], "tuned"),
        ("rms_scale", [], "shipped"),
        ("residual_rms_linear", ["residual_rms", "scaled"], "tuned"),
        ("residual_rms_linear", ["scaled"], "partly tuned"),
    ],
)
def test_a_record_says_where_a_kernels_schedules_come_from(
    monkeypatch: pytest.MonkeyPatch, task_id: str, measured: list[str], origin: str
) -> None:
    asked: list[tuple[str, str]] = []

    def is_measured(program: Any, problem: Any, schedule: Any) -> bool:
        asked.append((program.name, problem.arch))
        return program.name in measured

    monkeypatch.setattr(entrants, "is_measured", is_measured)
    dims = {**DIMS, "P": 64} if task_id == "residual_rms_linear" else DIMS
    task, subject, sets, check, found = entered(task_id, {"peers": ["eager"]}, dims)
    assert {name for name, _ in asked} == {part.name for part in subject.parts}
    assert {arch for _, arch in asked} == {"sm_90"}
    contest = bench.contest_of(task, subject, dims, found, 4e12)
    *_, record = race(contest, sets, check, Clock(), rounds=7, seed=1)
    assert record is not None
    assert {m.name: m.origin for m in record.measured if m.origin} == {"reference": origin}
    assert BenchRecord.from_json(record.to_json()) == record
    old = json.loads(record.to_json())
    for variant in old["measured"]:
        variant.pop("origin", None)
    assert "origin" not in BenchRecord.from_json(json.dumps(old)).to_json()  # it is written as it was
    damaged = json.loads(record.to_json())
    damaged["measured"][0]["origin"] = 3
    with pytest.raises(ValueError, match="origin"):
        BenchRecord.from_json(json.dumps(damaged))


def test_an_authors_schedule_is_the_authors() -> None:
    submitted = {**Schedule(backend="reference").to_dict()}
    *_, found = entered("rms_scale", {"peers": ["eager"], "schedule": submitted})
    assert found.origins == {"reference": "shipped", "reference, author's schedule": "author"}


def test_a_default_call_on_several_backends_is_a_variant_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    real, chosen = entrants.caller, entrants._schedules

    def caller(kernel: Any, subject: Subject, backend: str, config: Any) -> Any:
        called.append(backend)
        return real(kernel, subject, "reference", None)

    def schedules(subject: Subject, inputs: Any, backend: str, config: Any) -> dict[str, Any]:
        if backend != "auto":
            return chosen(subject, inputs, "reference", config)
        return {"first": {"backend": "cutedsl"}, "second": {"backend": "triton"}}

    monkeypatch.setattr(entrants, "caller", caller)
    monkeypatch.setattr(entrants, "_schedules", schedules)
    monkeypatch.setattr(registry, "MODULES", {"triton": "x"})
    there, get = type("There", (), {"available": lambda self: Support(True)})(), registry.get
    monkeypatch.setattr(registry, "get", lambda name: there if name == "triton" else get(name))
    dims = {**DIMS, "P": 64}
    *_, found = entered("residual_rms_linear", {"peers": ["eager"], "backends": []}, dims)
    assert (list(found.kernels), found.default, called) == (["triton", "auto"], "auto", ["triton", "auto"])
    *_, found = entered("residual_rms_linear", {"peers": ["eager"], "backends": ["triton"]}, dims)
    assert (list(found.kernels), found.default) == (["triton"], "")  # backends that were named stay alone


def test_the_empty_epilogue_runs_in_the_kernels_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(empty, "product", lambda a, b, **options: seen.append((a.shape, b.shape, options)))
    *_, found = entered("rms_swiglu", {"peers": ["eager"]})
    (label,) = found.beside
    assert label == "reference, empty epilogue"
    assert found.configs[label] == next(iter(found.configs["reference"].values()))
    (a, b, options) = seen[0]
    assert (tuple(a), tuple(b)) == ((128, 48), (48, 96))
    assert options["backend"] == "reference"
    assert options["config"].to_dict() == found.configs[label]


def test_a_plan_has_no_empty_epilogue() -> None:
    *_, found = entered("residual_rms_linear", {"peers": ["eager"]}, {**DIMS, "P": 64})
    assert found.beside == {}


def test_a_wrong_kernel_does_not_race() -> None:
    task, subject, sets, _check, _ = entered("rms_scale", {"peers": ["eager"]})
    payload = {
        "program": examples_curated.load("rms_scale").program.to_json(),
        "schedule": None,
        "backends": ["reference"],
    }
    found = entrants.enter(task, subject, sets, lambda at, out: "output 'z' (all of it)", payload)
    assert found.wrong == "reference: output 'z' (all of it)"
    refused = bench.refusal(found)
    assert refused is not None
    assert refused[0] is Status.WRONG_VALUES
    assert found.others == {}


def test_one_of_two_backends_may_be_wrong_where_a_sweep_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge refuses the kernel; a benchmark of it goes on with the backend that is right, and says so."""
    task, subject, sets, check, _ = entered("rms_scale", {"peers": ["eager"]})
    program = examples_curated.load("rms_scale").program.to_json()

    def two(found: entrants.Entrants, *_: Any) -> None:
        right = entrants.caller(from_json(program), subject, "reference", None)
        found.kernels |= {"bad": lambda inputs: {"z": right(inputs)["z"] * 2}, "good": right}
        found.configs |= {"bad": {}, "good": {}}

    monkeypatch.setattr(entrants, "_kernels", two)
    payload = {"program": program, "schedule": None, "backends": [], "peers": ["eager"]}
    refused = entrants.enter(task, subject, sets, check, payload, alike=check.peer)
    assert refused.wrong.startswith("bad: output 'z'")
    found = entrants.enter(task, subject, sets, check, {**payload, "any_backend": True}, alike=check.peer)
    assert (list(found.kernels), list(found.others), found.wrong) == (["good"], ["eager"], "")
    assert found.absent["bad"].startswith("wrong: output 'z'")


def test_a_kernel_that_killed_its_process_is_not_tried_again() -> None:
    *_, found = entered("rms_scale", {"peers": ["eager"], "excluded": {"reference": "crashed: SIGSEGV"}})
    refused = bench.refusal(found)
    assert refused is not None
    assert refused[0] is Status.RUNTIME_ERROR
    assert refused[1] == "reference: crashed: SIGSEGV"  # and not why every peer is absent


def test_without_a_kernel_no_peer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(peers, "build", lambda name, setting: built.append(name) or {})  # type: ignore[func-returns-value]
    *_, found = entered("rms_scale", {"peers": ["eager"], "excluded": {"reference": "crashed: SIGSEGV"}})
    assert built == []
    assert found.others == {}


def test_a_backend_that_the_machine_lacks_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {"backends": ["triton", "cutedsl"]}
    lacking = type("Lacking", (), {"available": lambda self: Support(False, "no CUDA device")})()
    monkeypatch.setattr(registry, "get", lambda name: lacking)
    *_, found = entered("rms_scale", payload)
    refused = bench.refusal(found)
    assert refused == (Status.NOT_RUN, "triton: no CUDA device; cutedsl: no CUDA device", None)

    def missing(name: str) -> Any:
        if name == "cutedsl":
            raise BackendUnavailable("cutedsl: quack-kernels is not installed")
        raise Unsupported("too wide")

    monkeypatch.setattr(registry, "get", missing)
    *_, found = entered("rms_scale", payload)
    refused = bench.refusal(found)
    assert refused is not None
    assert refused[0] is Status.RUNTIME_ERROR  # one of them is there, and the kernel does not run on it


@pytest.mark.parametrize("task_id", sorted(tasks.cards()))
def test_inputs_can_be_drawn_on_the_device_for_every_task(task_id: str) -> None:
    task = tasks.load(task_id)
    dims = task.shapes_of("smoke")[0].dims
    sets = entrants.sets_of(task, dims, seed=3, device="cpu")
    assert len(sets) == entrants.SETS
    for i in task.inputs:
        first, second = sets[0][i.name], sets[1][i.name]
        if i.default is not None:
            assert first == i.default
            continue
        assert first.dtype in (torch.bfloat16, torch.float32, torch.int64)
        if i.draw in ("normal", "weight"):
            assert not torch.equal(first, second)
    again = entrants.sets_of(task, dims, seed=3, device="cpu")
    assert all(
        torch.equal(a[n], b[n]) for a, b in zip(sets, again, strict=True) for n in a if isinstance(a[n], torch.Tensor)
    )


def test_the_guard_is_around_everything_that_runs_for_the_first_time() -> None:
    import contextlib

    seen: list[str] = []

    @contextlib.contextmanager
    def guard(name: str) -> Any:
        seen.append(name)
        yield

    task = tasks.load("rms_swiglu")
    program = examples_curated.load("rms_swiglu").program
    subject = Subject.read(program.to_json(), task)
    sets = entrants.sets_of(task, DIMS, seed=7, device="cpu")
    payload = {"program": program.to_json(), "schedule": None, "backends": ["reference"], "peers": ["eager"]}
    found = entrants.enter(task, subject, sets, entrants.checker(task, DIMS, sets, 7), payload, guard)
    assert {"reference", "eager", "cublas"} <= set(seen)
    assert set(found.others) | set(found.kernels) | {"cublas"} | set(found.beside) <= set(seen)


def test_a_peer_may_round_where_its_package_rounds_but_not_compute_something_else() -> None:
    task, _, sets, check, _ = entered("rms_swiglu", {"peers": ["eager"]})
    today = task.baseline(**sets[0])
    assert check(0, today) is not None  # eager rounds three times: a kernel may not
    assert check.peer(0, today) is None
    half = {"z": today["z"], "h": torch.cat([today["h"][:, :40], torch.zeros_like(today["h"][:, 40:])], 1)}
    wrong = {
        "a dropped tile": half,
        "swapped halves": {"z": today["z"], "h": today["h"].roll(24, 1)},
        "no scale": {**today, "z": (sets[0]["q"] @ sets[0]["w"])},
        "a shape": {**today, "h": today["h"][:, :-1]},
        "a number that is none": {**today, "h": today["h"].clone().index_fill_(0, torch.tensor([3]), float("nan"))},
        "a twentieth": {**today, "h": today["h"] * 1.05},
    }
    for what, out in wrong.items():
        assert check.peer(0, out) is not None, what
