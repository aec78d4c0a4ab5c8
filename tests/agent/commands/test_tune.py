"""`tune`: what is tuned, what is refused, what is said; and the judge's `--tune`. Measuring itself is `coda.tuning`'s."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import tuning_support
from tuning_support import register
from typer.testing import CliRunner

import authored_kernels
import cli
import examples_curated
from agent.commands import tune as command
from agent.commands.judging import Judging
from agent.task import cards, load
from agent.verify import inputs as draws
from agent.verify import tracer, tuning
from agent.verify.judge import Limits, Options
from agent.verify.runner import problems
from agent.verify.subject import Subject
from coda import schedules
from coda.kernel import from_json
from coda.problem import Schedule
from coda.tuning import Built, Job, Outcome

pytestmark = pytest.mark.null

KERNEL = '''"""Doubled.
"""

import coda


@coda.epilogue
def doubled(acc):
    return {"y": acc * 2}


kernel = doubled
'''
PLAN = '''"""Twice.
"""

import coda


@coda.plan
def twice(a, b, c):
    return {"y": coda.matmul(coda.matmul(a, b), c)}


kernel = twice
'''


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Any:
    return CliRunner().invoke(cli.app, ["tune", *args])


def document(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["schema"] == "coda-agent/tune/1"
    return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_what_can_be_done() -> None:
    result = run("swiglu_backward", "--json")
    assert result.exit_code == 5
    error = document(result)["error"]
    assert error["code"] == "bench-unavailable"
    assert "no GPU" in error["message"]
    assert "--compile-only" in error["hint"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to tune was named"),
        (("swiglu_backward", "--all"), "exclude each other"),
        (("swiglu_backward", "--dtype", "int8"), "--dtype 'int8' is no dtype"),
        (("swiglu_backward", "--weights", "diagonal"), "--weights 'diagonal' is no layout"),
        (("swiglu_backward", "--dry-run", "--compile-only"), "exclude each other"),
        (("swiglu_backward", "--budget", "0"), "--budget 0 is not positive"),
        (("swiglu_backward", "--workers", "-1"), "--workers -1 is not positive"),
        (("swiglu_backward", "--backend", "reference"), "no fused backend"),
        (("swiglu_backward", "--arch", "sm_12"), "no architecture"),
        (("swiglu_bakward", "--dry-run"), "swiglu_bakward"),
        (("swiglu_backward", "--dry-run", "--shapes", "4096"), "no shape of swiglu_backward"),
        (("swiglu_backward", "--dry-run", "--shapes", ","), "--shapes ',' names nothing"),
        (("nothing.py", "--dry-run"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_usage(args: tuple[str, ...], said: str) -> None:
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "hint: " in result.stderr


def test_dry_run_tells_programs_of_one_name_apart_and_counts_what_most_leaves() -> None:
    rows = document(run("swiglu_backward", "--dry-run", "--most", "2", "--backend", "triton", "--json", *SMALL))[
        "data"
    ]["jobs"]
    assert {row["program"] for row in rows} == {"swiglu_backward"}
    assert len({row["digest"] for row in rows}) == len(rows) > 1
    submitted = {e.digest[:12] for e in authored_kernels.catalog() if (e.path / "schedule.json").is_file()}  # raced too
    assert all(row["candidates"] == {"triton": 2 + (row["digest"] in submitted)} for row in rows)


def test_dry_run_lists_the_programs_of_a_plan_and_both_layouts() -> None:
    name = "examples_curated/residual_rms_linear"
    found = document(run(name, "--dry-run", "--weights", "both", "--json", "--backend", "triton"))
    rows = found["data"]["jobs"]
    assert {row["program"] for row in rows} == {"residual_rms", "scaled"}
    assert {row["b"] for row in rows} == {"row", "col"}
    assert all(row["candidates"]["triton"] > 5 and not row["known"] for row in rows)
    assert len(rows) == len({json.dumps(row) for row in rows})


@pytest.fixture
def kept(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf with two kernels of `rms_scale`: one of its own, with a schedule, and one that is the curated program."""
    shelf = places / "shelf"
    monkeypatch.setattr(authored_kernels, "FOLDER", shelf)
    own = examples_curated.source("rms_scale").replace("acc * rstd", "acc * rstd * 1.5")
    for name, source, schedule in (
        ("own", own, {"backend": "triton", "tile_m": 64}),
        ("same", examples_curated.source("rms_scale"), None),
    ):
        folder = shelf / "rms_scale" / name
        folder.mkdir(parents=True)
        traced = tracer.trace(source)
        assert traced.program_json is not None, traced.error
        program = from_json(traced.program_json).program
        (folder / "kernel.py").write_text(source)
        (folder / "program.json").write_text(traced.program_json)
        (folder / "provenance.json").write_text(json.dumps({"task": "rms_scale", "program_digest": program.digest}))
        if schedule is not None:
            (folder / "schedule.json").write_text(json.dumps(schedule))
    return shelf


SMALL = ("--shapes", "256x256x256")


@pytest.mark.parametrize(
    ("named", "digests"),
    [
        (("rms_scale",), 2),  # the example, and the kernel that is not the same program
        (("examples_curated/rms_scale",), 1),
        (("rms_scale/same",), 1),
        (("rms_scale/own",), 1),
        (("rms_scale/same", "examples_curated/rms_scale", "rms_scale/own"), 2),
    ],
)
def test_kernels_are_named_as_for_bench_and_equal_programs_are_tuned_once(
    kept: Path, measured: list[dict[str, Any]], named: tuple[str, ...], digests: int
) -> None:
    result = run(*named, *SMALL)
    assert result.exit_code in (0, 3), result.output  # the double tunes the first alone
    (asked,) = measured
    jobs = asked["jobs"]
    assert len({job.program.digest for job in jobs}) == len(jobs) == digests
    curated = examples_curated.load("rms_scale").program.digest
    own = [job for job in jobs if job.program.digest != curated]
    assert [job.extra for job in own] == [(Schedule(tile_m=64),)] * len(own)
    assert bool(own) == ("rms_scale" in named or "rms_scale/own" in named)


def test_all_has_the_kept_kernels_too(kept: Path) -> None:
    rows = document(run("--all", "--dry-run", "--json", *SMALL))["data"]["jobs"]
    assert [row["program"] for row in rows].count("rms_scale") == 2


def test_an_example_without_a_task_is_tuned_at_the_sizes_that_are_said() -> None:
    name = next(i for i in examples_curated.catalog() if i not in cards())
    assert "no task to take sizes from" in run(name, "--dry-run").stderr
    rows = document(run(f"examples_curated/{name}", "--dry-run", "--json", *SMALL))["data"]["jobs"]
    assert rows


def test_a_name_that_nothing_has_brings_near_ones_of_every_kind(kept: Path) -> None:
    said = run("rms_scale/owner", "--dry-run").stderr
    assert "no task, example, kernel or run is called 'rms_scale/owner'" in said
    assert "rms_scale/own" in said
    assert "symlog_codes" in run("examples_curated/symlog_code", "--dry-run").stderr


def test_all_is_every_example_of_a_task_and_says_what_its_shapes_leave_out() -> None:
    found = document(run("--all", "--dry-run", "--json", "--shapes", "256x256x256"))
    programs = {row["program"] for row in found["data"]["jobs"]}
    assert {"swiglu_backward", "rms_scale"} <= programs
    assert found["warnings"]
    assert all("is no shape of" in warning for warning in found["warnings"])


def test_a_kernel_file_is_traced_and_takes_its_sizes_from_the_flag(places: Path) -> None:
    (places / "doubled.py").write_text(KERNEL)
    found = document(
        run("doubled.py", "--dry-run", "--json", "--shapes", "256x512x128,64x512x128", "--dtype", "float16")
    )
    assert [(row["program"], row["M×N×K"], row["dtype"]) for row in found["data"]["jobs"]] == [
        ("doubled", "256×512×128", "float16"),
        ("doubled", "64×512×128", "float16"),
    ]
    assert "say --shapes MxNxK" in run("doubled.py", "--dry-run").stderr
    assert "write it as MxNxK" in run("doubled.py", "--dry-run", "--shapes", "3x4").stderr
    (places / "twice.py").write_text(PLAN)
    assert "name the task with --task" in run("twice.py", "--dry-run", "--shapes", "8x8x8").stderr
    (places / "broken.py").write_text("import os\n")
    assert run("broken.py", "--dry-run", "--shapes", "8x8x8").exit_code == 2


def test_a_kernel_file_of_a_task_runs_at_the_tasks_sizes(places: Path) -> None:
    (places / "mine.py").write_text(examples_curated.source("residual_rms_linear"))
    result = run("mine.py", "--task", "residual_rms_linear", "--dry-run", "--json", "--shapes", "64x128x256x512")
    rows = document(result)["data"]["jobs"]
    assert len(rows) == 2


# what is said of a result ---------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU, and a tuner that answers at once: every second job is tuned, the others are as the test says."""
    register(monkeypatch)
    asked: list[dict[str, Any]] = []

    def tune(jobs: list[Job], **options: Any) -> list[Outcome]:
        asked.append({"jobs": jobs, **options})
        key = schedules.Key(jobs[0].program.digest, jobs[0].problem, "GPU", ())
        found = [Outcome(jobs[0], "tuned", tuning_support.entry(key), seconds=2.0, path=Path("x.json"))]
        return found + [Outcome(job, "skipped", reason="the budget was used up") for job in jobs[1:]]

    monkeypatch.setattr(command, "arch_of", lambda asked: "sm_90")
    monkeypatch.setattr("coda.tuning.tune", tune)
    return asked


def test_a_tuned_program_is_a_row_and_a_document(measured: list[dict[str, Any]]) -> None:
    result = run(
        "examples_curated/rms_scale",
        "--shapes",
        "256x256x256",
        "--force",
        "--budget",
        "30",
        "--workers",
        "3",
        "--backend",
        "triton",
    )
    assert result.exit_code == 0, result.output
    assert "2.000" in result.stdout  # untuned / tuned
    assert "2/3" in result.stdout
    assert "measured schedules: " in result.stderr
    (asked,) = measured
    assert (asked["force"], asked["budget_s"], asked["workers"], asked["backends"]) == (True, 30.0, 3, ("triton",))
    (row,) = document(run("examples_curated/rms_scale", "--shapes", "256x256x256", "--json"))["data"]["jobs"]
    assert row["status"] == "tuned"
    assert row["untuned"] == 2.0
    assert row["winner"]["backend"] == "fake"
    assert row["candidates"] == {"timed": 2, "wrong": 1}
    assert row["path"] == "x.json"
    loud = run("examples_curated/rms_scale", "--shapes", "256x256x256", "-v").stdout
    assert "wrong: output 'y'" in loud


def test_what_is_not_tuned_is_exit_3_with_the_reason(measured: list[dict[str, Any]]) -> None:
    result = run("examples_curated/rms_scale", "--shapes", "256x256x256,512x256x256")
    assert result.exit_code == 3
    assert "the budget was used up" in result.stdout
    assert "1 of 2 not tuned, 1 of them for want of time" in result.stderr


def test_compile_only_shows_what_each_candidate_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def compile_only(jobs: list[Job], arch: str, **options: Any) -> list[Built]:
        heard.append((arch, options["backends"], options["workers"]))
        good = Built(jobs[0], Schedule(), "built", registers=90, spills=8, shared_memory=1000, seconds=1.0)
        return [good, *(Built(job, Schedule(split=2), "refused", "does not fit") for job in jobs)]

    monkeypatch.setattr("coda.tuning.compile_only", compile_only)
    result = run(
        "examples_curated/rms_scale",
        "--shapes",
        "256x256x256",
        "--compile-only",
        "--arch",
        "sm_100",
        "--json",
        "--workers",
        "2",
    )
    assert result.exit_code == 0, result.output
    rows = document(result)["data"]["candidates"]
    assert [(r["status"], r["registers"], r["spills"]) for r in rows] == [("built", 90, 8), ("refused", None, None)]
    assert heard == [("sm_100", (), 2)]
    result = run("examples_curated/rms_scale", "--shapes", "256x256x256,512x256x256", "--compile-only", "-v")
    assert result.exit_code == 3
    assert "no candidate compiles: rms_scale 512×256×256 bfloat16" in result.stderr
    assert "does not fit" in result.stdout


# the judge ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", ["rms_cross_entropy", "residual_rms_linear", "swiglu_backward"])
def test_problems_without_values_are_those_of_real_inputs(task_id: str) -> None:
    """What is tuned is what a call with the task's own inputs looks up."""
    task = load(task_id)
    subject = Subject(examples_curated.load(task_id).program, task)
    dims = dict.fromkeys(task.shapes[0].dims, 64)
    real = draws.draw(task, dims, seed=1, dtype="bfloat16")
    jobs = tuning.jobs_at(subject, dims, arch="sm_90")
    assert [(j.program.digest, j.problem) for j in jobs] == list(
        dict.fromkeys((p.digest, q) for p, q in problems(subject, real, "sm_90"))
    )


def test_an_authors_schedule_goes_to_the_programs_it_is_meant_for() -> None:
    task = load("residual_rms_linear")
    subject = Subject(examples_curated.load(task.id).program, task)
    dims = dict.fromkeys(task.shapes[0].dims, 64)
    own = Schedule(tile_m=64)
    assert {job.extra for job in tuning.jobs_at(subject, dims, arch="sm_90", schedule=own)} == {(own,)}
    assert {job.extra for job in tuning.jobs_at(subject, dims, arch="sm_90")} == {()}


@pytest.mark.parametrize("who", ["author", "candidate"])
def test_the_judge_tunes_before_the_race_and_says_who_won(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    task = load("rms_scale")
    assert Judging(tune=True).options(task).tune
    assert not Judging().options(task).tune
    subject = Subject(examples_curated.load(task.id).program, task)
    asked: list[Job] = []

    def tune(jobs: list[Job], **options: Any) -> list[Outcome]:
        asked.extend(jobs)
        assert options == {"backends": ("triton",), "budget_s": 600.0}
        entry = tuning_support.entry(schedules.Key(jobs[0].program.digest, jobs[0].problem, "GPU", ()))
        if who == "author":
            won = dataclasses.replace(entry.candidates[1], schedule=jobs[0].extra[0], origin="author")
            entry = dataclasses.replace(entry, candidates=(entry.candidates[0], won), best={})
        return [Outcome(jobs[0], "tuned", entry, seconds=1.0)]

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    options = Options(tune=True, backends=("triton",), bench_shapes=({"M": 64, "N": 64, "K": 64},))
    judgement: Any = SimpleNamespace(
        options=options, limits=Limits(), subject=subject, task=task, schedule=Schedule(tile_m=64)
    )
    (said,) = tuning.tuned(judgement)
    assert said["origin"] == who
    assert said["untuned"] == 2.0
    assert asked[0].extra == (Schedule(tile_m=64),)
    judgement.options = Options()
    assert tuning.tuned(judgement) == []
