"""The bundled recordings: honest about who answered, and every gate really runs when they are played."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from typer.testing import CliRunner

import cli
from agent.llm.replay import BUNDLED, RecordingInfo
from agent.prompting import prompt as prompting

pytestmark = [pytest.mark.interp, pytest.mark.usefixtures("the_same_seeds")]


FOLDERS = sorted(p for p in BUNDLED.iterdir() if p.is_dir())


def played(task: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("CODA_AGENT_HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(
        cli.app, ["author", task, "--llm", "replay", "--no-gpu", "--into", str(tmp_path / "kept"), "--json"]
    )
    document: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == 0, document
    assert document["ok"]
    return document


def words(run: str) -> list[list[str]]:
    """Status of every gate, of every attempt of a run."""
    verdicts = sorted(pathlib.Path(run).glob("attempts/*/verdict.json"))
    return [[g["status"] for g in json.loads(p.read_text(encoding="utf-8"))["gates"]] for p in verdicts]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_a_recording_says_who_answered_and_how(folder: pathlib.Path) -> None:
    info = RecordingInfo.model_validate_json((folder / "recording.json").read_text(encoding="utf-8"))
    assert info.model
    assert info.model != "unknown"
    assert info.provider in ("anthropic", "folder")
    assert info.note


def test_swiglu_backward_is_authored_from_its_recording(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = played("swiglu backward", tmp_path, monkeypatch)
    recorded = json.loads((BUNDLED / "swiglu_backward" / "recording.json").read_text(encoding="utf-8"))
    drift = [w for w in document["warnings"] if "drift" in w]
    older = recorded["prompt_version"] != prompting.version()  # whose first prompt may be the same
    assert older or not drift, "record it again, or say what it answered"
    gates = {g["name"]: g for g in document["data"]["gates"]}
    assert [name for name, g in gates.items() if g["status"] != "PASS"] == ["bench"]
    assert gates["bench"]["reason"]
    assert all(g["evidence"] for name, g in gates.items() if name != "bench")
    assert pathlib.Path(document["data"]["kernel"], "program.json").is_file()
    assert words(document["data"]["run"]) == [["PASS"] * 5 + ["NOT_RUN"]]


def test_a_round_that_failed_and_was_repaired(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = played("residual_mlp_block", tmp_path, monkeypatch)
    first, second = words(document["data"]["run"])
    assert first == ["PASS", "COMPILE_ERROR", *["NOT_RUN"] * 4]
    assert second == ["PASS"] * 5 + ["NOT_RUN"]
