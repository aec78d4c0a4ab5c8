"""Authoring runs as committed records: taken from real run folders, failures with their class, one run of a task per campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import authoring_support as authoring
import pytest

from agent.authoring import prepare
from agent.authoring.budget import Limits
from agent.errors import CampaignConflict, CampaignDamaged, RunUnfinished
from agent.keeping import campaigns
from agent.keeping.campaigns import code_lines, collect, of_run, read_all

pytestmark = pytest.mark.null


def run(tmp_path: Path, *words: str, name: str = "one") -> Path:
    """A run whose replies get these verdicts; `sorry` is a reply without a kernel."""
    script: list[Any] = [w if w == "sorry" else authoring.reply(w) for w in words]
    return authoring.author(tmp_path / name, script, limits=Limits(rounds=len(words))).run.folder


def test_a_run_becomes_rounds_with_the_gate_and_class_of_each_failure(tmp_path: Path) -> None:
    folder = run(tmp_path, "trace COMPILE_ERROR", "static POLICY", "algebra WRONG_VALUES", "PASS")
    found = of_run(folder, "trial")
    assert [(r.round, r.gate, r.status, r.failure) for r in found.rounds] == [
        (1, "trace", "COMPILE_ERROR", "width"),
        (2, "static", "POLICY", "S101"),
        (3, "algebra", "WRONG_VALUES", "z: sign"),
        (4, None, "PASS", ""),
    ]
    assert (found.passed, found.first_time, found.rounds_used, len(found.failures)) == (True, False, 4, 3)
    assert (found.campaign, found.task, found.provider, found.rounds_allowed) == ("trial", "demo_scale", "scripted", 4)
    assert found.digest == authoring.PROGRAMS["first"].digest
    assert found.kept == "demo_scale/scripted"
    assert found.examples == ("other",)
    assert found.lines == 4


def test_a_first_reply_that_passes_is_told_from_a_repair(tmp_path: Path) -> None:
    found = of_run(run(tmp_path, "PASS"))
    assert (found.first_time, found.rounds_used, found.failures) == (True, 1, ())
    assert found.campaign == f"{found.created:%Y-%m-%d}-scripted"


def test_a_failed_run_is_a_record_too(tmp_path: Path) -> None:
    found = of_run(run(tmp_path, "sorry", *["algebra WRONG_VALUES"] * 3))
    assert (found.passed, found.kept) == (False, None)
    assert found.stop == "stuck"  # the same candidate came again and again
    assert [(r.gate, r.status) for r in found.rounds] == [
        ("reply", "no_code"),
        ("algebra", "WRONG_VALUES"),
        ("reply", "repeated"),
        ("reply", "repeated"),
    ]
    assert found.rounds[0].told == "reply no_code"
    assert found.rounds[1].told == "algebra WRONG_VALUES (z: sign)"


def test_a_run_that_goes_on_is_no_record(tmp_path: Path) -> None:
    prompt = prepare.prepare(authoring.TASK, model="scripted", examples=authoring.examples())
    made = prepare.new_run(tmp_path / "runs", prompt, llm="scripted", limits=Limits())
    made.close()
    with pytest.raises(RunUnfinished) as error:
        of_run(made.folder)
    assert f"--resume {made.folder.name}" in error.value.hint


def test_collected_records_read_back_and_collecting_again_changes_nothing(tmp_path: Path) -> None:
    folder, into = run(tmp_path, "trace COMPILE_ERROR", "PASS"), tmp_path / "campaigns"
    ((record, path),) = collect([folder], into, campaign="trial")
    assert path == into / "trial" / "demo_scale.json"
    before = path.read_bytes()
    collect([folder], into, campaign="trial")
    assert path.read_bytes() == before
    assert read_all(into) == (record,)
    assert str(tmp_path) not in path.read_text()  # no path of whoever ran it


def test_a_campaign_has_one_run_of_a_task_whatever_came_of_it(tmp_path: Path) -> None:
    """Else the best of several could be taken for the only one."""
    into = tmp_path / "campaigns"
    first, second = run(tmp_path, "algebra NONFINITE", name="one"), run(tmp_path, "PASS", name="two")
    collect([first], into, campaign="trial")
    with pytest.raises(CampaignConflict, match="has a run of 'demo_scale' already"):
        collect([second], into, campaign="trial")
    with pytest.raises(CampaignConflict):
        collect([first, second], into, campaign="other")
    assert not (into / "other").exists()
    collect([second], into, campaign="after")
    assert [(a.campaign, a.passed) for a in read_all(into)] == [("after", True), ("trial", False)]


@pytest.mark.parametrize("name", ["../up", "Upper", ".hidden", "a/b", "x" * 81])
def test_a_campaigns_name_is_a_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(CampaignConflict):
        collect([run(tmp_path, "PASS")], tmp_path / "campaigns", campaign=name)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    ((_, path),) = collect([run(tmp_path, "PASS")], tmp_path / "campaigns", campaign="trial")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "rounds": "many"}))
    with pytest.raises(CampaignDamaged, match=r"demo_scale\.json"):
        read_all(tmp_path / "campaigns")


def test_lines_of_code_leave_out_what_is_no_code() -> None:
    source = (
        '"""Words\nand words."""\n\n# a comment\nimport coda\n\n\ndef f(x):\n    """What."""\n    # why\n    return x\n'
    )
    assert code_lines(source) == 3
    assert code_lines("def f(:") is None
    assert campaigns.code_lines("") == 0
