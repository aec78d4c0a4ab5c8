"""The compile gate with backends of the test's own, and races on a fake clock."""

from __future__ import annotations

import builtins
import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from agent.records import GateRecord, Status
from agent.task import load
from agent.verify import bench, compile, entrants, exploits, racing, selftest
from agent.verify.blame import Blamed
from agent.verify.compile import _together, example_inputs, shapes
from agent.verify.inputs import draw
from agent.verify.judge import Limits, Options, Run
from agent.verify.runner import own, problems
from agent.verify.subject import Subject, task_ref
from agent.verify.worker import GpuHealth, WorkerOutcome
from coda.backends import registry
from coda.backends.registry import Artifact, Support
from coda.bench import peers
from coda.bench.record import BenchRecord
from coda.bench.timing import Sample
from coda.errors import BadSchedule, CompileError
from coda.kernel import from_json
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
    """As the triton backend does, before anything is generated."""

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        if schedule.tile_m == 7:
            raise BadSchedule("triton: Schedule.tile_m", got=7, expected="a power of two")
        return super().compile(program, problem, schedule, arch)


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
        Subject(kernel.program, task), example_inputs(task, {"M": 8, "N": 16, "K": 4, "P": 32}, "bfloat16"), "sm_90"
    )
    assert [(p.m, p.n, p.k) for part, p in found if part.kind == "epilogue"] == [(8, 16, 4), (8, 32, 16)]
    assert set(shapes(task)) == {"smoke", "benchmark"}


# bench ------------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, seed: int = 0) -> None:
        self.rng, self.takes = random.Random(seed), 1.0

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(self.takes * (1 + self.rng.gauss(0, 0.005)), 1e-5)

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]:
        return [self.time(lambda at=at: call(at)) for at in range(runs)]  # type: ignore[misc]


Answer = tuple[Status, str, BenchRecord | None]


def raced(
    kernels: Mapping[str, float],
    others: Mapping[str, float],
    *,
    wrong_at: int | None = None,
    ceiling: float | None = 5e-4,
    peer: str = "",
    protocol: racing.Protocol = "default",
) -> Answer:
    clock = Clock()
    sets = [{"x": torch.full((4,), float(i + 1))} for i in range(3)]
    calls = 0

    def variant(seconds: float, *, kernel: bool = False) -> racing.Variant:
        def call(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            nonlocal calls
            calls += kernel
            clock.takes = seconds
            return {"y": inputs["x"] * (3 if kernel and wrong_at is not None and calls >= wrong_at else 2)}

        return call

    contest = racing.Race(
        task="t", program_digest="d", dims={"M": 4}, kernels={n: variant(s, kernel=True) for n, s in kernels.items()},
        others={n: variant(s) for n, s in others.items()}, ceiling=variant(ceiling) if ceiling else None, flops=10**9,
        traffic=10**6, bandwidth=4e12, absent={"liger": "not installed"},
        environment={"gpu": "a GPU", "driver": "1"}, peer_of=dict.fromkeys(others, peer) if peer else {},
    )  # fmt: skip
    check: racing.Check = lambda at, out: None if torch.equal(out["y"], sets[at]["x"] * 2) else "wrong"  # noqa: E731
    return racing.race(contest, sets, check, clock, rounds=25, seed=1, protocol=protocol)


@pytest.mark.parametrize(
    ("kernel", "peers", "word"),
    [
        (0.8e-3, {"eager": 2e-3, "compile": 1e-3}, Status.PASS),
        (1e-3, {"eager": 1.5e-3, "compile": 1e-3}, Status.NO_DIFFERENCE),
        (1.2e-3, {"eager": 2e-3, "compile": 1e-3}, Status.SLOWER),  # twice as fast as eager does not help
        (0.4e-3, {"eager": 0.7e-3}, Status.SUSPECT),  # below the GEMM alone
        (0.9e-3, {"eager": 2e-3}, Status.SUSPECT),  # more than twice the best known
    ],
)
def test_the_word_is_about_the_best_peer(kernel: float, peers: dict[str, float], word: Status) -> None:
    status, reason, record = raced({"triton": kernel}, peers)
    assert status is word, reason
    assert record is not None
    assert record.best_peer is not None
    assert record.best_peer.peer == min(peers, key=lambda n: peers[n])
    assert BenchRecord.from_json(record.to_json()) == record
    assert record.absent == {"liger": "not installed"}
    assert {m.author for m in record.measured} == {"candidate", "tool"}


def test_the_fastest_candidate_stands_for_its_peer() -> None:
    _, reason, record = raced({"triton": 1e-3}, {"quack[a]": 1.4e-3, "quack[b]": 1.1e-3}, peer="quack")
    assert record is not None
    (only,) = record.compared
    assert (only.peer, only.variant) == ("quack", "quack[b]")
    assert only.ratio == pytest.approx(1 / 1.1, rel=0.02)
    assert "against quack[b]" in reason
    assert {m.name: m.peer for m in record.measured if m.peer} == {"quack[a]": "quack", "quack[b]": "quack"}
    assert {m.author for m in record.measured if m.peer} == {"human"}


def test_the_published_protocol_gives_means_of_thirty_runs() -> None:
    status, _, record = raced({"triton": 0.9e-3}, {"compile": 1e-3}, protocol="paper")
    assert status is Status.PASS
    assert record is not None
    assert record.protocol["name"] == "paper"
    assert not record.protocol["interleaved"]
    assert {len(m.samples) for m in record.measured} == {30}
    kernel = record.of("triton")
    assert kernel.mean == pytest.approx(0.9e-3, rel=0.01)
    assert 0 < kernel.deviation < 0.02 * kernel.mean
    assert BenchRecord.from_json(record.to_json()) == record


def test_the_best_backend_counts() -> None:
    _, _, record = raced({"triton": 1.2e-3, "cutedsl": 0.9e-3}, {"compile": 1e-3})
    assert record is not None
    assert record.kernel == "cutedsl"


@pytest.mark.parametrize("at", [4, 10, 20])
def test_timed_outputs_are_audited(at: int) -> None:
    caught = [raced({"triton": 0.9e-3}, {"compile": 1e-3}, wrong_at=at)[0] for _ in range(3)]
    assert set(caught) == {Status.WRONG_VALUES}


def test_the_environment_of_the_numbers_is_in_the_record() -> None:
    _, _, record = raced({"triton": 0.9e-3}, {"compile": 1e-3})
    assert record is not None
    assert record.environment == {"gpu": "a GPU", "driver": "1"}


def candidates(**runs: Callable[[Mapping[str, Any]], Any]) -> dict[str, peers.Candidate]:
    return {name: peers.Candidate(run) for name, run in runs.items()}


def entered(
    monkeypatch: pytest.MonkeyPatch, built: Mapping[str, Mapping[str, peers.Candidate]], **payload: Any
) -> entrants.Entrants:
    """Peers of the test's own on a task whose output is twice its input."""
    monkeypatch.setattr(peers, "build", lambda name, setting: built[name])
    monkeypatch.setattr(peers, "lineup", lambda *_, **__: [peers.Entry(peers.PEERS[n], "ready") for n in built])
    x = torch.ones(4)
    check: racing.Check = lambda at, out: None if torch.equal(out["y"], x * 2) else "output 'y'"  # noqa: E731
    found = entrants.Entrants(absent=dict(payload.get("excluded", {})))
    entrants._peers(
        found, SWIGLU, peers.Setting("t", lambda **_: {}, {"x": x}), [{"x": x}], check, payload.get("peers", ())
    )
    return found


def double(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"y": inputs["x"] * 2}


def fails(inputs: Mapping[str, Any]) -> Any:
    raise RuntimeError("no kernel image")


def test_a_peer_whose_output_is_wrong_does_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = candidates(liger=lambda inputs: {"y": inputs["x"] * 3})
    ceiling = candidates(cublas=lambda inputs: {"product": inputs["x"]})
    found = entered(monkeypatch, {"eager": candidates(eager=double), "liger": wrong, "cublas": ceiling})
    assert list(found.others) == ["eager"]
    assert found.absent == {"liger": "wrong: output 'y'"}
    assert found.ceiling is not None  # it computes less than the task


def test_a_configuration_that_fails_loses_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {"quack": candidates(**{"quack[a]": fails, "quack[b]": double}), "liger": candidates(liger=fails)}
    found = entered(monkeypatch, built)
    assert found.peer_of == {"quack[b]": "quack"}
    assert found.absent == {
        "quack[a]": "failed: RuntimeError: no kernel image",
        "liger": "failed: RuntimeError: no kernel image",
    }
    found = entered(monkeypatch, {"quack": candidates(**{"quack[a]": fails, "quack[b]": fails})})
    assert found.absent["quack"].startswith("none of its 2 configurations ran; the first: failed: RuntimeError")


def test_memory_that_is_full_has_a_word_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(inputs: Mapping[str, Any]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    found = entered(monkeypatch, {"liger": candidates(liger=full)})
    assert found.absent["liger"].startswith("out of memory: OutOfMemoryError: CUDA out of memory")


def test_what_killed_a_process_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = entered(monkeypatch, {"liger": candidates(liger=double)}, excluded={"liger": "CRASH: SIGSEGV"})
    assert (found.others, found.absent) == ({}, {"liger": "CRASH: SIGSEGV"})


def test_compile_is_asked_for_in_both_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {n: candidates(**{n: double}) for n in ("eager", "compile", "compile-halves", "liger")}
    found = entered(monkeypatch, built, peers=("compile",))
    assert list(found.others) == ["compile", "compile-halves"]
    assert found.absent == {"eager": "not asked for", "liger": "not asked for"}


def test_a_peer_gets_its_own_layout_outside_the_timed_region(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def prepare(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        prepared.append(inputs)
        return {"halves": inputs["x"]}

    both = {
        name: peers.Candidate(
            lambda inputs: inputs["halves"] * 2, prepare=prepare, finish=lambda raw: {"y": raw}, note="in halves"
        )
        for name in ("quack[a]", "quack[b]")
    }
    found = entered(monkeypatch, {"quack": both})
    assert len(prepared) == 1  # candidates of one layout share their sets
    assert found.prepared["quack[a]"] is found.prepared["quack[b]"]
    assert found.notes == dict.fromkeys(both, "in halves")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Blamed(Status.INVALID_SPEC, "the reference of t fails"), Status.INVALID_SPEC),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.INFRA_ERROR),
    ],
)
def test_what_is_not_the_kernels_fault_is_the_word_of_its_shape(error: Exception, word: Status) -> None:
    def shape() -> racing.Answer:
        raise error

    assert bench.blamed(shape)[0] is word
    with pytest.raises(ZeroDivisionError):
        bench.blamed(lambda: 1 / 0)  # type: ignore[arg-type,return-value]


def test_the_references_failure_while_checking_timed_outputs_is_the_tasks() -> None:
    def broken(**_: Any) -> dict[str, torch.Tensor]:
        raise ValueError("no")

    dims = {"M": 5, "N": 6, "K": 4}
    inputs = draw(SWIGLU, dims, seed=1, dtype="bfloat16")
    for part in ("reference", "baseline"):
        check = entrants.checker(dataclasses.replace(SWIGLU, **{part: broken}), dims, [inputs], seed=3)
        with pytest.raises(Blamed, match=f"the {part} of") as caught:
            check(0, {})
        assert caught.value.status is Status.INVALID_SPEC


def test_an_authors_schedule_applies_to_gemms_of_its_backend() -> None:
    schedule = Schedule(tile_m=64)
    gemm = subject().program
    assert isinstance(gemm, EpilogueProgram)
    assert own(schedule, "triton", gemm) is schedule
    assert own(schedule, "cutedsl", gemm) is None
    assert own(None, "triton", gemm) is None
    assert own(schedule, "triton", dataclasses.replace(gemm, kind="pointwise")) is None


def test_without_a_peer_nothing_is_claimed() -> None:
    status, reason, record = raced({"triton": 1e-3}, {}, ceiling=None)
    assert status is Status.NO_DIFFERENCE
    assert "no peer" in reason
    assert record is not None
    assert record.gemm_flops is None


def test_one_word_for_all_shapes() -> None:
    assert racing.together([Status.PASS, Status.NO_DIFFERENCE]) is Status.PASS
    assert racing.together([Status.PASS, Status.SLOWER]) is Status.SLOWER
    assert racing.together([Status.NO_DIFFERENCE]) is Status.NO_DIFFERENCE
    assert racing.together([Status.NOT_RUN, Status.PASS]) is Status.NOT_RUN
    assert racing.together([Status.PASS, Status.SUSPECT, Status.WRONG_VALUES]) is Status.SUSPECT


def test_without_a_gpu_it_does_not_run() -> None:
    run = Run(exploits.HONEST, SWIGLU, Options(), Limits(), {})
    assert bench.gate(run) == GateRecord.not_run("bench", "no GPU")


def test_traffic_counts_declared_tensors_once() -> None:
    m, n, k = 8, 16, 4
    assert (
        entrants.traffic(SWIGLU, {"M": m, "N": n, "K": k})
        == 2 * (m * k + k * n + 2 * m * n + 2 * m * n + m * n) + 4 * m
    )


# self-test --------------------------------------------------------------------------------------------------------------


def test_a_judge_that_accepts_everything_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_judged", lambda text, task, quick: None)
    rows = [selftest._source_row(s, SWIGLU, True) for s in exploits.SOURCES if "numerics" not in s.gates]
    assert all(r.ok == (r.expected == "accepted") for r in rows)
    report = selftest.SelfTest(
        exploits=tuple(r for r in rows if r.expected != "accepted"), controls=(), absent={}, quick=True, seconds=0
    )
    assert len(report.missed) == len(report.exploits)
    assert not report.ok


def test_a_judge_that_refuses_everything_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = GateRecord(name="trace", status=Status.CRASH, reason="always", evidence={"x": 1})
    monkeypatch.setattr(selftest, "_judged", lambda text, task, quick: refused)
    control = selftest._source_row(next(s for s in exploits.SOURCES if not s.gates), SWIGLU, True)
    wrong_gate = selftest._source_row(next(s for s in exploits.SOURCES if s.gates == ("static",)), SWIGLU, True)
    report = selftest.SelfTest(exploits=(wrong_gate,), controls=(control,), absent={}, quick=True, seconds=0)
    assert report.false_rejections == (control,)
    assert report.missed == (wrong_gate,)
    assert "accepted 0 of 1" in report.summary()


def test_races_and_the_second_wall() -> None:
    rows = [make() for make in selftest.RACES] + [selftest._unsafe_row(s) for s in exploits.UNSAFE]
    assert [r.id for r in rows if not r.ok] == []


def test_the_published_set_is_covered_or_explained() -> None:
    """The ids that the exploit matrix asks of a self-test."""
    wanted = [
        "X01",
        "X02",
        "X03",
        "X09",
        "X12",
        "X16",
        "X17",
        "X19",
        "X23",
        "X27",
        "X28",
        "X29",
        "X35",
        "X44",
        "X45",
        "X47",
        "X49",
        "X50",
        "X51",
        "X52",
        "X55",
        "X59",
        "X60",
        "X63",
        "X64",
        "X69",
        "X70",
        "X71",
        "X76",
        "X81",
        "X83",
        "X85",
    ]
    have = (
        {s.id for s in exploits.SOURCES}
        | {s.id for s in exploits.UNSAFE}
        | {r[0] for r in exploits.RUNNERS}
        | set(exploits.ABSENT)
    )
    have |= {"X35", "X55", "X07", "X69", "X71", "X39", "X58"}  # races and workers
    have |= {"X49"}  # tests/coda/test_numerics.py: honest kernels pass for every seed
    assert [id_ for id_ in wanted if not any(h.startswith(id_) for h in have)] == []
    assert len(selftest.example_ids()) >= 10


def test_a_kernel_is_timed_as_a_user_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(SWIGLU, {"M": 5, "N": 6, "K": 4}, seed=1, dtype="bfloat16")
    call = entrants.caller(from_json(subject().program.to_json()), subject(), "reference", None)
    out = call(inputs)
    assert set(out) == {"dz", "h", "zdz"}
    check = entrants.checker(SWIGLU, {"M": 5, "N": 6, "K": 4}, [inputs], seed=3)
    assert check(0, out) is None
    assert "'h'" in str(check(0, {**out, "h": out["h"] * 1.02}))
