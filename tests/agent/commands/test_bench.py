"""The commands `bench` and `compare --run`: what is refused before anything is measured, and what comes out."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
from typing import Any

import pytest

import authored_kernels
from agent.commands import bank, comparing, tune
from agent.commands import bench as command
from agent.commands.terminal import Answer, Exit, Failure, Terminal
from agent.errors import FolderUnusable, KernelDamaged, PlotsUnavailable, UnknownSubject, UsageError
from agent.keeping import benchmarks, measured
from agent.verify import suite
from coda.bench.record import BenchRecord

pytestmark = [pytest.mark.interp, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DOUBLES = pathlib.Path(__file__).resolve().parents[1] / "verify"
ROOT = DOUBLES.parents[2]
ASKED = command.Asked(("rms_scale",), shapes="1x4096x4096,1x8192x4096", rounds=9, parallel=2)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A machine whose worker is the double, with folders of the test's own."""
    monkeypatch.setattr(suite, "WORKER", "bench_double:work")
    monkeypatch.setenv("CODA_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(benchmarks, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(authored_kernels, "FOLDER", tmp_path / "kept")
    usual = command._options
    path = os.pathsep.join((str(DOUBLES), str(ROOT)))
    monkeypatch.setattr(
        command, "_options", lambda asked: dataclasses.replace(usual(asked), env={"PYTHONPATH": path}, variant_s=3)
    )
    return tmp_path


def run(asked: command.Asked) -> Any:
    return command.bench(Terminal("bench"), asked)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subjects": ()}, "nothing to measure"),
        ({"everything": True}, "exclude each other"),
        ({"peers": ("nobody",)}, "no peer"),
        ({"protocol": "quick"}, "--protocol 'quick'"),
        ({"resume": True}, "--resume"),
        ({"rounds": 2}, "--rounds"),
        ({"tune": True, "cache_dir": pathlib.Path("x")}, "--cache-dir"),
        ({"shapes": "12"}, "--shapes '12'"),
        ({"keep": True, "peers": ("quack",)}, "--keep with --peers would put a partial record"),
        ({"keep": True, "backends": ("triton",)}, "--keep with --backend would put a partial record"),
    ],
)
def test_what_cannot_be_meant_is_refused_first(change: dict[str, Any], said: str, here: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(dataclasses.replace(ASKED, **change))
    assert not (here / "home" / "bench").exists()


def test_pictures_without_matplotlib_are_refused_before_anything_is_measured(
    here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a))
    with pytest.raises(PlotsUnavailable, match="matplotlib") as caught:
        run(dataclasses.replace(ASKED, plots=here / "p"))
    assert "coda-agent[plot]" in caught.value.hint


def test_unknown_names_have_near_ones(here: pathlib.Path) -> None:
    with pytest.raises(UnknownSubject):
        run(dataclasses.replace(ASKED, subjects=("rms_scal3",)))


def test_a_sweep_answers_with_rows_records_and_pictures(here: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run(dataclasses.replace(ASKED, out=here / "out", plots=here / "pictures"))
    assert answer.exit is Exit.OK
    assert [r["shape"] for r in answer.data["rows"]] == ["1×4096×4096", "1×8192×4096"]
    first = answer.data["rows"][0]
    assert (first["compile"], first["quack"]) == ("1.10", "1.05 (a)")
    assert float(first["÷ cuBLAS"]) == pytest.approx(1.111, abs=0.02)
    assert first["word"].startswith("faster")
    kept = measured.of_file(here / "out" / "records.json")
    assert [json.loads(r.to_json()) for r in kept if isinstance(r, BenchRecord)] == answer.data["records"]
    assert len((here / "out" / "results.jsonl").read_text().splitlines()) == 2
    pictures = {p.name for p in (here / "pictures").iterdir() if p.stat().st_size > 1000}
    assert pictures == {f"{n}.{k}" for n in ("times", "roofline", "overhead") for k in ("svg", "png")}
    shown = "\n".join(str(item) for item in answer.show())
    assert "flashinfer: not installed: pip install x" in shown
    again = run(dataclasses.replace(ASKED, out=here / "out", resume=True))
    assert again.data["reused"] == 2
    assert again.data["rows"] == answer.data["rows"]


@pytest.mark.parametrize("place", ["file/out", "taken", "folder.json"])
def test_where_results_cannot_go_is_said_before_anything_is_measured(
    place: str, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(command, "machine", never)
    (here / "file").write_text("")
    (here / "taken" / "results.jsonl").mkdir(parents=True)
    (here / "folder.json").mkdir()
    with pytest.raises(FolderUnusable) as caught:
        run(dataclasses.replace(ASKED, out=here / place))
    assert repr(str(here / place)) in caught.value.what
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("compared", [False, True])
def test_records_that_keeping_would_lose_are_said_before_anything_is_measured(
    compared: bool, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(benchmarks, "measure", never)
    (here / "records").mkdir()
    (here / "records" / "nvidia-test.json").write_text('{"records": [{"format": "coda.bench/2"}]}')
    kept = dataclasses.replace(ASKED, keep=True)
    with pytest.raises(KernelDamaged, match=r"nvidia-test\.json"):
        _ = command.fresh(Terminal("compare"), ("rms_scale",)) if compared else run(kept)


def test_what_was_not_measured_is_no_success(here: pathlib.Path) -> None:
    answer = run(dataclasses.replace(ASKED, shapes="6x4096x4096", out=here / "one.json"))
    assert (answer.exit, answer.failure.code) == (Exit.GOAL_NOT_MET, "incomplete")
    assert answer.data["failed"][0]["status"] == "WRONG_VALUES"
    assert (here / "one.jsonl").is_file()
    assert answer.failure.hint == f"`--resume --out {here / 'one.json'}` goes on"  # and not a folder with another log
    again = run(dataclasses.replace(ASKED, shapes="6x4096x4096", out=here / "one.json", resume=True))
    assert again.data["reused"] == 1
    assert not (here / "one.json").exists()


def test_the_published_protocol(here: pathlib.Path) -> None:
    answer = run(dataclasses.replace(ASKED, shapes="1x4096x4096", protocol="paper", out=here / "paper.json"))
    (record,) = (r for r in measured.of_file(here / "paper.json") if isinstance(r, BenchRecord))
    assert record.protocol["name"] == "paper"
    assert record.measured_at > "2026"
    assert len(record.of("triton").samples) == 30
    assert answer.exit is Exit.OK


def test_compare_run_measures_the_examples_too_and_keeps_the_records(
    here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_shapes", lambda asked: lambda task: [{"M": 1, "N": 4096, "K": 4096}])
    target = benchmarks.of_example("rms_scale")
    other = dataclasses.replace(target, id="rms_scale/other", digest="d", records=here / "kernel" / "bench")
    monkeypatch.setattr(benchmarks, "targets", lambda *_, **__: (other,))
    assert [t.id for t in benchmarks.with_examples([other])] == ["rms_scale/other", "examples_curated/rms_scale"]
    found = command.fresh(Terminal("compare"), ("rms_scale/other",))
    assert found.paths == (
        here / "kernel" / "bench" / "nvidia-test.json",
    )  # the double's records are of the program "d"
    assert len(measured.of_file(found.paths[0])) == 1
    assert (found.failed, found.left) == ((), 0)


def test_compare_run_says_what_is_not_fresh_and_is_no_success(
    here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example is wrong at M = 6: what is on record of it is older than this run."""
    monkeypatch.setattr(command, "_shapes", lambda asked: lambda task: [{"M": 6, "N": 4096, "K": 4096}])
    answer = comparing.compare(Terminal("compare"), ("rms_scale",), None, run=True)
    assert (answer.exit, answer.failure.code) == (Exit.GOAL_NOT_MET, "incomplete")
    (said,) = [w for w in answer.warnings if "examples_curated/rms_scale" in w]
    assert said.startswith("not measured now, so what is shown of it is older: ")
    assert "WRONG_VALUES" in said
    usual = benchmarks.measure

    def out_of_time(*args: Any, **more: Any) -> benchmarks.Sweep:
        return dataclasses.replace(usual(*args, **more), results=(), left=2)

    monkeypatch.setattr(benchmarks, "measure", out_of_time)
    answer = comparing.compare(Terminal("compare"), ("rms_scale",), None, run=True)
    assert answer.exit is Exit.GOAL_NOT_MET
    assert "2 measurement(s) not reached: what is shown of them is older" in answer.warnings


def test_what_compare_cannot_mean_is_refused_before_anything_is_measured(
    here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(command, "fresh", never)
    terminal = Terminal("compare")
    with pytest.raises(UsageError, match="--threshold"):
        comparing.compare(terminal, ("examples_curated/rms_scale",), 3.0, run=True)
    with pytest.raises(UsageError, match="--html"):
        comparing.compare(terminal, ("rms_scale",), None, page=here / "x.html", run=True)
    with pytest.raises(UnknownSubject):
        comparing.compare(terminal, ("rms_scal3",), None, run=True)
    with pytest.raises(UsageError, match="--threshold"):
        bank.leaderboard(terminal, (), 3.0, None, run=True)
    with pytest.raises(AssertionError, match="nothing may be measured"):
        comparing.compare(terminal, ("examples_curated/rms_scale",), None, run=True)


def test_what_was_not_tuned_is_said_and_is_no_success(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dataclasses.replace(ASKED, shapes="1x4096x4096", tune=True)
    failure = Failure("not-tuned", "1 of 2 not tuned", "the table says why")
    job = {"program": "p", "m": 1, "n": 2, "k": 3, "status": "failed", "reason": "it hangs"}
    jobs = [job, {**job, "status": "tuned", "reason": ""}]
    said = Answer({"jobs": jobs}, list, Exit.GOAL_NOT_MET, failure, warnings=("left out: x",))
    given: list[Any] = []
    monkeypatch.setattr(tune, "tune", lambda terminal, asked, found: given.append(found) or said)
    answer = run(asked)
    assert (answer.exit, answer.failure.code) == (Exit.GOAL_NOT_MET, "not-tuned")
    assert "left out: x" in answer.warnings
    assert any(w.startswith("--tune: 1 of 2 not tuned") for w in answer.warnings)
    assert [w for w in answer.warnings if w.startswith("p at")] == ["p at 1×2×3: it hangs"]
    assert "the table" not in answer.failure.hint  # it is not shown
    assert [target.id for target in given[0]] == ["examples_curated/rms_scale"]  # what is measured is what is tuned
    monkeypatch.setattr(tune, "tune", lambda terminal, asked, found: Answer({"jobs": [1]}, list))
    answer = run(asked)
    assert (answer.exit, answer.data["tuned"]) == (Exit.OK, {"jobs": [1]})


def test_all_is_every_task_with_a_kernel(here: pathlib.Path) -> None:
    import examples_curated
    from agent import task as tasks

    found = benchmarks.targets((), folders=(), runs=here, everything=True)
    assert {t.task for t in found} == set(tasks.cards()) & set(examples_curated.catalog())
    with pytest.raises(UnknownSubject, match="task"):
        benchmarks.of_example("symlog_codes")
