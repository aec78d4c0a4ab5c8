"""`verify --all`: the real judge on real kernels, kept by the real code; what is wrong with one is told and hides no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import board_support as board
import pytest

import examples_curated
from agent import task as tasks
from agent.keeping import reverify
from agent.keeping.reverify import PROOF, Crew, Outcome, Report, prove, sample, targets
from agent.verify.judge import Options
from agent.verify.worker import WorkerError, WorkerOutcome

CPU = Options(gates=PROOF, device=False)


def target(identity: str, folder: Path) -> reverify.Target:
    return next(t for t in targets([folder]) if t.id == identity)


# what there is --------------------------------------------------------------------------------------------------------


@pytest.mark.null
def test_every_curated_and_every_kept_kernel_is_a_target(tmp_path: Path) -> None:
    board.keep_as(tmp_path, "rms_scale")
    found = targets([tmp_path])
    assert [t.id for t in found[:-1]] == [f"examples_curated/{i}" for i in examples_curated.catalog()]
    assert (found[-1].id, found[-1].author, found[-1].task) == ("rms_scale/model-x", "kept", "rms_scale")
    assert {t.task for t in found if t.author == "project"} - {""} == set(examples_curated.catalog()) & set(
        tasks.cards()
    )


@pytest.mark.null
def test_a_sample_holds_both_kinds_and_can_be_drawn_again(tmp_path: Path) -> None:
    for task_id in ("rms_scale", "gemm_rope", "gemm_swiglu"):
        board.keep_as(tmp_path, task_id)
    found = targets([tmp_path])
    chosen = sample(found, 4, seed=3)
    assert {t.author for t in chosen} == {"project", "kept"}
    assert chosen == sample(found, 4, seed=3)
    assert chosen == tuple(t for t in found if t in chosen)
    assert any(sample(found, 4, seed=s) != chosen for s in range(5))
    assert sample(found, 999, seed=3) == found
    assert all(t.task for s in range(9) for t in sample(found, 2, seed=s))  # else nothing is proved


# proving --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heard() -> list[Outcome]:
    """What `on_outcome` was told."""
    return []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, heard: list[Outcome]) -> Report:
    """As `coda-agent verify --all --sample N` does: two curated kernels, a kept one, and three kept ones with something wrong."""
    shelf = tmp_path_factory.mktemp("shelf")
    board.keep_as(shelf, "gemm_rope")
    wrong = board.keep_as(shelf, "rms_scale")
    (wrong.folder / "kernel.py").write_text(wrong.source.replace("acc * rstd", "acc * rstd * 2.0"))
    swapped = board.keep_as(shelf, "gemm_swiglu")
    (swapped.folder / "program.json").write_text(examples_curated.load("gemm_rope").program.to_json())
    torn = board.keep_as(shelf, "rms_rope")
    (torn.folder / "provenance.json").write_text("{")
    found = targets([shelf])
    chosen = [t for t in found if t.author == "kept" or t.task in ("rms_scale", "residual_rms")]
    return reverify.reverify(chosen, of=len(found), seed=1, jobs=2, on_outcome=heard.append)


def outcome(report: Report, identity: str) -> Outcome:
    return next(o for o in report.outcomes if o.id == identity)


@pytest.mark.interp
def test_a_sample_of_the_bank_is_proved_by_every_gate(report: Report, heard: list[Outcome]) -> None:
    proved = [o for o in report.outcomes if o.word == "proved"]
    assert [o.id for o in proved] == [
        "examples_curated/rms_scale",
        "examples_curated/residual_rms",
        "gemm_rope/model-x",
    ]
    for one in proved:
        assert one.why == ()
        assert [(g.name, str(g.status)) for g in one.gates] == [(name, "PASS") for name in PROOF]
    assert sorted(o.id for o in heard) == sorted(o.id for o in report.outcomes)
    assert report.cpu_s > 0
    assert "3 proved, 3 refused; gates static, trace, algebra, compile, numerics (triton)" in report.summary


@pytest.mark.interp
def test_what_is_wrong_with_one_is_told_and_the_others_are_proved(report: Report) -> None:
    assert {o.id for o in report.refused} == {"rms_scale/model-x", "gemm_swiglu/model-x", "rms_rope/model-x"}
    said = {o.id: " ".join(o.why) for o in report.refused}
    assert "gate algebra: WRONG_VALUES: output 'z'" in said["rms_scale/model-x"]
    assert "kernel.py traces to" in said["rms_scale/model-x"]
    other = examples_curated.load("gemm_rope").program.digest[:12]
    assert f"program.json holds {other}" in said["gemm_swiglu/model-x"]
    assert all(str(g.status) == "PASS" for g in outcome(report, "gemm_swiglu/model-x").gates)  # its source is right
    assert "provenance.json" in said["rms_rope/model-x"]


@pytest.mark.null
def test_an_example_without_a_task_is_traced_and_is_not_called_proved(tmp_path: Path) -> None:
    loose = next(t for t in targets([tmp_path]) if not t.task)

    def never(*_: Any, **__: Any) -> WorkerOutcome:
        raise AssertionError("there is nothing to compare it with")

    found = prove(loose, CPU, never)
    assert (found.word, found.why) == ("traced", ())
    assert [g.name for g in found.gates] == ["static", "trace"]
    assert found.digest == examples_curated.load(loose.path.stem).program.digest


@pytest.mark.null
def test_a_machine_that_cannot_is_no_refusal(tmp_path: Path) -> None:
    def broken(*_: Any, **__: Any) -> WorkerOutcome:
        return WorkerOutcome(status="INFRA_ERROR", error=WorkerError(code="x", message="no memory"), seconds=0.1)

    found = prove(target("examples_curated/rms_scale", tmp_path), CPU, broken)
    assert found.word == "unproven"
    assert found.why == ("gate algebra: INFRA_ERROR: no memory [x]",)


@pytest.mark.null
def test_a_folder_about_two_programs_is_refused_even_where_the_machine_cannot(tmp_path: Path) -> None:
    """Whatever the gates would have said: the drift is there."""

    def broken(*_: Any, **__: Any) -> WorkerOutcome:
        return WorkerOutcome(status="INFRA_ERROR", error=WorkerError(code="x", message="no memory"), seconds=0.1)

    whole = board.keep_as(tmp_path, "gemm_rope")
    assert prove(target(whole.id, tmp_path), CPU, broken).word == "unproven"
    (whole.folder / "program.json").write_text(examples_curated.load("rms_rope").program.to_json())
    found = prove(target(whole.id, tmp_path), CPU, broken)
    assert found.word == "refused"
    assert any("program.json holds" in why for why in found.why)
    assert any("no memory" in why for why in found.why)


# workers --------------------------------------------------------------------------------------------------------------


@pytest.mark.null
def test_a_crew_keeps_its_processes_and_replaces_them_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Session:
        def __init__(self, function: str, *, env: Mapping[str, str | None], **_: Any) -> None:
            self.function, self.env, self.calls, self.closed = function, env, 0, False
            made.append(self)

        def call(self, payload: Mapping[str, Any], **_: Any) -> WorkerOutcome:
            assert not self.closed
            self.calls += 1
            return WorkerOutcome(status="PASS", result={}, seconds=0.0)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(reverify, "WorkerSession", Session)
    monkeypatch.setattr(reverify, "SERVES", 3)
    crew = Crew()
    for _ in range(4):
        crew("m:one", {}, timeout_s=1)
    crew("m:one", {}, timeout_s=1, env={"TRITON_INTERPRET": "1"})  # another environment is another process
    assert [(s.calls, s.closed) for s in made] == [(3, True), (1, False), (1, False)]
    assert made[2].env["TRITON_INTERPRET"] == "1"
    assert all(s.env["OMP_NUM_THREADS"] == "1" for s in made)
    crew.close()
    assert all(s.closed for s in made)
    stopped = threading.Event()
    stopped.set()
    assert Crew(stopped)("m:one", {}, timeout_s=1).status == "INFRA_ERROR"  # no gate starts after an interrupt
    assert len(made) == 3


@pytest.mark.null
def test_interrupted_it_ends_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Watched(Crew):
        def close(self) -> None:
            closed.append(1)

    def interrupt(outcome: Outcome) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reverify, "Crew", Watched)
    loose = [t for t in targets([tmp_path]) if not t.task][:4]
    with pytest.raises(KeyboardInterrupt):
        reverify.reverify(loose, jobs=2, options=CPU, on_outcome=interrupt)
    assert closed == [1, 1]


@pytest.mark.null
def test_a_report_is_json_and_adds_up() -> None:
    one = Outcome(id="a", author="kept", task="t", word="proved", why=(), digest="0", gates=(), seconds=1.0)
    two = one.model_copy(update={"id": "b", "word": "refused", "why": ("gate x",)})
    report = Report(
        outcomes=(one, two), gates=PROOF, backends=("triton",), of=9, seed=5, jobs=2, seconds=3.0, cpu_s=4.0
    )
    assert (report.count("proved"), report.refused) == (1, (two,))
    assert report.summary.startswith("2 of 9 kernels, seed 5: 1 proved, 1 refused; gates static")
    assert json.loads(report.model_dump_json())["outcomes"][1]["why"] == ["gate x"]
