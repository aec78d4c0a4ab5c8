"""The commands over the whole bank: `compare --all`, `verify --all`, `collect`: exit codes, streams, documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import authoring_support as authoring
import board_support as board
import pytest
from typer.testing import CliRunner

import authored_kernels
import cli
from agent.keeping import measured, reverify
from agent.keeping.measured import Measurements
from agent.keeping.reverify import GateWord, Outcome, Target
from agent.records import Status

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def shelf(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All folders of the user below tmp_path, no variable of ours, the checkout's kernels in a folder of the test."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    folder = own_folders / "authored_kernels"
    folder.mkdir()
    monkeypatch.setattr(authored_kernels, "FOLDER", folder)
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    monkeypatch.chdir(own_folders)
    return folder


def run(*args: str) -> Any:
    return CliRunner().invoke(cli.app, list(args))


def document(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    assert set(found) == {"schema", "ok", "data", "warnings", "error"}
    return found


# compare --all --------------------------------------------------------------------------------------------------------


def test_the_leaderboard_as_text_document_and_page(shelf: Path, tmp_path: Path) -> None:
    board.populate(shelf)
    result = run("compare", "--all", "--html", "out.html")
    assert result.exit_code == 0
    assert "page: out.html" in result.stderr
    lines = result.stdout.splitlines()
    (sums,) = (words for line in lines if (words := line.split())[:4] == ["human", "÷", "llm", "4096"])
    assert sums[3:9] == ["4096", "×0.970", "3", "2", "1", "0"]
    assert any(line.startswith("rms_swiglu") and "×0.779 slower" in line for line in lines)
    same = "same program as the curated example, so a record of either is one of both: residual_rms/model-x"
    assert same in lines
    assert len(lines) - lines.index(same) < 25  # what follows the tables is a screenful
    (liger,) = (line for line in lines if line.startswith("not timed: liger: not installed: "))
    assert "gemm_swiglu" in liger
    assert any(line.startswith("not measured: ") and "bias_gelu" in line for line in lines)
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    data = document(run("compare", "--all", "--json"))["data"]
    assert set(data) == {"leaderboard"}
    assert set(data["leaderboard"]) == {
        "rows", "tallies", "kernels", "not_measured", "peers_not_timed", "peers_notes", "measured_on", "authoring",
    }  # fmt: skip


def test_times_are_shown_where_nobody_can_be_compared(shelf: Path) -> None:
    record = board.record("rms_scale", board.digest_of("gemm_rope"), {"triton": 123.4})
    board.keep_as(shelf, "rms_scale", program="gemm_rope", records=[record])
    result = run("compare", "--all")
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("rms_scale "))
    assert "123.4" in line
    assert "geometric means" not in result.stdout


def test_with_nothing_measured_it_is_still_an_answer() -> None:
    result = run("compare", "--all")
    assert result.exit_code == 0
    assert "not measured: no model's kernel: nobody has authored one yet" in result.stdout


def test_a_page_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    result = run("compare", "--all", "--html", "pages")
    assert result.exit_code == 5
    assert "'pages'" in result.stderr
    assert ".pages-" not in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["compare"], "nothing to compare"),
        (["compare", "rms_scale", "--html", "x.html"], "--html is the page of the whole bank"),
        (["compare", "rms_scale", "--all"], "'rms_scale' does not go with it"),
        (["compare", "--all", "--threshold", "3"], "--threshold does not go with it"),
        (["compare", "--run", "--all", "--threshold", "3"], "--threshold does not go with it"),
        (["compare", "rms_scale", "examples_curated/gemm_rope", "--threshold", "nan"], "--threshold nan is no"),
        (["compare", "rms_scale", "examples_curated/gemm_rope", "--threshold", "inf"], "--threshold inf is no"),
        (["compare", "--run", "rms_scal3"], "is called 'rms_scal3'"),
        (["compare", "--run", "rms_scale", "--html", "x.html"], "--html is the page of the whole bank"),
        (
            ["compare", "--run", "examples_curated/rms_scale", "--threshold", "3"],
            "--threshold compares kernels, and there is only one",
        ),
        (["verify"], "missing argument 'FILE'"),
        (["verify", "x.py"], "missing option '--task'"),
        (["verify", "x.py", "--all"], "FILE does not go with it"),
        (["verify", "x.py", "--task", "rms_scale", "--sample", "3"], "--sample goes with --all only"),
        (["verify", "--all", "--sample", "0"], "--sample 0 is less than 1"),
        (["verify", "--all", "--seed", "1"], "--seed chooses a sample"),
        (["verify", "--all", "--jobs", "0"], "--jobs 0 is less than 1"),
        (["verify", "--all", "--backend", "cudnn"], "is no fused backend"),
        (["verify", "--all", "--shapes", "64x64x64"], "--shapes does not go with it"),
        (["verify", "--all", "--peers", "quack"], "--peers does not go with it"),
        (["verify", "--all", "--tune"], "--tune does not go with it"),
        (["verify", "--all", "--no-gpu"], "--no-gpu does not go with it"),
        (["tune", "rms_scale", "--task", "rms_scale"], "'rms_scale' is none"),
        (["tune", "--all", "--task", "rms_scale"], "--all is none"),
        (["collect", "nothing"], "no run 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused_with_a_hint(args: list[str], said: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "hint: " in result.stderr


# verify --all ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Words by id; every other kernel is proved."""
    words: dict[str, str] = {}

    def prove(target: Target, options: Any, call: Any) -> Outcome:
        word = words.get(target.id, "proved" if target.task else "traced")
        why = {"refused": ("gate algebra: WRONG_VALUES: output 'z'",), "unproven": ("no memory",)}.get(word, ())
        gates = (GateWord(name="static", status=Status.PASS, seconds=0.1),)
        return Outcome(
            id=target.id,
            author=target.author,
            task=target.task,
            word=word,
            why=why,
            digest="d",
            gates=gates,
            seconds=0.1,
        )  # type: ignore[arg-type]

    monkeypatch.setattr(reverify, "prove", prove)
    return words


def test_a_bank_that_is_proved(proofs: dict[str, str], shelf: Path) -> None:
    board.keep_as(shelf, "rms_scale")
    result = run("verify", "--all")
    assert result.exit_code == 0
    summary = result.stdout.splitlines()[-1]
    assert "gates static, trace, algebra, compile, numerics (triton)" in summary
    assert "of processor time" in summary
    assert "no task to prove them against, so only read and traced: examples_curated/" in result.stdout
    found = document(run("verify", "--all", "--json", "--backend", "triton", "--backend", "cutedsl"))
    assert found["schema"] == "coda-agent/verify/1"
    assert found["data"]["backends"] == ["triton", "cutedsl"]
    assert found["data"]["outcomes"][-1]["id"] == "rms_scale/model-x"
    assert (found["data"]["refused"], found["data"]["of"]) == (0, len(found["data"]["outcomes"]))


def test_one_refusal_is_exit_4_and_says_which_gate(proofs: dict[str, str], shelf: Path) -> None:
    board.keep_as(shelf, "rms_scale")
    proofs |= {"rms_scale/model-x": "refused", "examples_curated/gemm_rope": "unproven"}
    result = run("verify", "--all")
    assert result.exit_code == 4
    assert "refused: rms_scale/model-x: gate algebra: WRONG_VALUES: output 'z'" in result.stdout
    assert "hint: `coda-agent review rms_scale/model-x` writes down why" in result.stderr
    assert document(run("verify", "--all", "--json"))["error"]["code"] == "refused"


def test_what_the_machine_could_not_do_is_exit_5(proofs: dict[str, str]) -> None:
    proofs["examples_curated/gemm_rope"] = "unproven"
    result = run("verify", "--all")
    assert result.exit_code == 5
    assert "not proven on this machine: examples_curated/gemm_rope: no memory" in result.stderr


def test_a_sample_tells_its_seed_and_can_be_drawn_again(proofs: dict[str, str]) -> None:
    first = document(run("verify", "--all", "--sample", "4", "--json"))["data"]
    assert (len(first["outcomes"]), first["of"] > 4) == (4, True)
    again = document(run("verify", "--all", "--sample", "4", "--seed", str(first["seed"]), "--json"))["data"]
    assert [o["id"] for o in again["outcomes"]] == [o["id"] for o in first["outcomes"]]


def test_progress_is_plain_lines_where_there_is_no_terminal(proofs: dict[str, str]) -> None:
    result = run("verify", "--all", "--sample", "4")
    assert "4 of 4 kernels" in result.stderr
    assert "\x1b" not in result.output
    assert run("verify", "--all", "--sample", "4", "-q").stderr == ""


# collect --------------------------------------------------------------------------------------------------------------


def test_runs_become_records_of_a_campaign_and_rows_of_the_board(shelf: Path, tmp_path: Path) -> None:
    done = authoring.author(tmp_path / "work", [authoring.reply("trace COMPILE_ERROR"), authoring.reply("PASS")])
    result = run("collect", str(done.run.folder), "--campaign", "trial")
    assert result.exit_code == 0
    assert "trace COMPILE_ERROR (width)" in result.stdout
    assert (shelf / "campaigns" / "trial" / "demo_scale.json").is_file()
    (one,) = document(run("compare", "--all", "--json"))["data"]["leaderboard"]["authoring"]
    assert (one["campaign"], one["rounds_used"], one["first_time"]) == ("trial", 2, False)
    other = authoring.author(tmp_path / "again", [authoring.reply("PASS")])
    again = run("collect", str(other.run.folder), "--campaign", "trial", "--json")
    assert (again.exit_code, document(again)["error"]["code"]) == (2, "campaign-conflict")
    assert run("collect", str(other.run.folder), "--into", str(tmp_path / "elsewhere")).exit_code == 0
    assert len(list((tmp_path / "elsewhere").glob("*/demo_scale.json"))) == 1
