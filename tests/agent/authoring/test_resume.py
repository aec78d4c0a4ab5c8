"""Runs that were killed with kill -9 or interrupted go on and reuse what was paid for; what a run leaves: a recording, decisions
that follow from the evidence, provenance, and no secret."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
from typing import Any

import authoring_support as support
import pytest
from pydantic import SecretStr

import authored_kernels
from agent.authoring import loop, prepare
from agent.authoring.budget import Limits
from agent.authoring.decisions import STATEMENT, replay_decisions
from agent.errors import (
    JudgeUnavailable,
    LLMUnavailable,
    RunLocked,
    RunMismatch,
)
from agent.llm.protocol import Problem, Reply
from agent.llm.replay import Recording, ReplayLLM
from agent.llm.scripted import ScriptedLLM, ScriptedReply
from agent.records import Status
from agent.runs import store
from agent.settings import Settings

pytestmark = pytest.mark.null

SUPPORT = pathlib.Path(__file__).with_name("authoring_support.py")


reply, source = support.reply, support.source
author, the_run, Billed, billed = support.author, support.the_run, support.Billed, support.billed


# resume ---------------------------------------------------------------------------------------------------------------


def killed(tmp_path: pathlib.Path, mode: str) -> pathlib.Path:
    """The folder of a run whose process was killed with SIGKILL."""
    command = [sys.executable, str(SUPPORT), str(tmp_path / "runs"), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return pathlib.Path(json.loads(done.stdout)["run"])


@pytest.mark.parametrize(
    ("mode", "asked_again", "judged_again"), [("in-call", [2, 3], 2), ("in-judge", [3], 2), ("after-reply", [3], 2)]
)
def test_a_run_killed_with_kill_9_goes_on_and_reuses_what_was_paid_for(
    tmp_path: pathlib.Path, mode: str, asked_again: list[int], judged_again: int
) -> None:
    folder = killed(tmp_path, mode)
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "jud')  # what a kill in the middle of a write leaves
    script: list[Any] = [reply("algebra WRONG_VALUES"), reply("PASS")]
    done = author(tmp_path, script[2 - len(asked_again) :], run=store.resume(folder))
    assert done.summary.passed
    assert done.summary.rounds == 3
    assert [r.round for r in done.llm.history] == asked_again
    assert len(done.judge.asked) == judged_again
    lines = (folder / "events.jsonl").read_text().split("\n")[:-1]
    assert lines
    assert all(json.loads(line)["kind"] for line in lines)  # the torn line is gone
    assert [e.call for e in done.of("replied") if e.reused] == [c for c in (1, 2, 3) if c not in asked_again]
    recorded = [e for e in store.open_run(folder).events if e.kind == "judged"]
    assert [e.call for e in recorded] == [1, 2, 3]  # each once, however often the run was begun
    assert replay_decisions(folder).consistent


def test_a_lost_paid_call_is_accounted_for(tmp_path: pathlib.Path) -> None:
    class Lost(Billed):
        def complete(self, request: Any, on_text: Any = None) -> Reply:
            raise KeyboardInterrupt

    limits = Limits(max_cost=10)
    done = author(tmp_path, [], llm=Lost(), model="claude-opus-5-5", limits=limits)
    reserved = done.of("asked")[0].reserved_usd
    assert done.summary.at_risk_usd == pytest.approx(reserved)
    tight = Limits(max_cost=1.5 * reserved)
    again = author(
        tmp_path,
        [],
        run=store.resume(done.run.folder),
        llm=Billed([billed("PASS")]),
        model="claude-opus-5-5",
        limits=tight,
    )
    assert again.summary.stop == "cost"  # what may have been billed already leaves no room for another call


def test_a_finished_run_can_be_given_more_rounds(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR")], limits=Limits(rounds=1))
    assert done.summary.exit_code == 3
    again = author(tmp_path, [reply("PASS")], run=store.resume(done.run.folder), limits=Limits(rounds=2))
    assert again.summary.exit_code == 0
    assert again.summary.calls == 2


def test_a_resumed_run_that_had_met_its_goal_asks_and_judges_nothing(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")])
    again = author(tmp_path, [], run=store.resume(done.run.folder))
    assert again.summary.exit_code == 0
    assert not again.llm.history
    assert not again.judge.asked
    assert again.summary.kept is not None
    assert again.summary.kept.same_program


def test_a_machine_that_could_not_judge_is_given_another_chance_on_resume(tmp_path: pathlib.Path) -> None:
    with pytest.raises(JudgeUnavailable):
        author(tmp_path, [reply("PASS")], judge=support.FakeJudge(flaky=2))
    again = author(tmp_path, [], run=store.resume(the_run(tmp_path)))
    assert again.summary.passed


def test_a_verdict_on_disk_is_reused_for_its_own_source_and_task_only(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")])
    text = source("PASS")
    run = store.open_run(done.run.folder)
    assert run.verdict_for(1, store.source_sha256(text)) == run.verdict(1)
    assert run.verdict_for(1, store.source_sha256(text + "\n")) is None
    run.info = run.info.model_copy(update={"task_digest": "0" * 64})
    assert run.verdict_for(1, store.source_sha256(text)) is None


def test_a_candidate_on_disk_that_is_not_the_replys_is_judged_anew(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("algebra WRONG_VALUES"), reply("PASS")])
    stale = support.verdict_of(source("PASS"))
    (done.run.attempt_folder(1) / "verdict.json").write_text(stale.to_json())
    again = author(tmp_path, [], run=store.resume(done.run.folder))
    assert len(again.judge.asked) == 1
    assert again.of("judged")[0].status is Status.WRONG_VALUES


def test_a_run_is_worked_on_by_one_process_at_a_time(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")])
    with store.resume(done.run.folder), pytest.raises(RunLocked):
        store.resume(done.run.folder)


def test_a_run_of_a_task_that_has_changed_is_not_resumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR")], limits=Limits(rounds=1))
    monkeypatch.setattr(type(support.TASK), "digest", property(lambda self: "0" * 64))
    with pytest.raises(RunMismatch, match="has changed"):
        author(tmp_path, [reply("PASS")], run=store.resume(done.run.folder))


def test_a_resumed_run_keeps_its_goal(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS 0.5")], goal=0.9, limits=Limits(rounds=1))
    assert done.summary.exit_code == 3
    again = author(
        tmp_path, [reply("PASS 0.95", program="second")], run=store.resume(done.run.folder), limits=Limits(rounds=2)
    )
    assert [r.round for r in again.llm.history] == [2]
    assert again.summary.exit_code == 0
    with pytest.raises(RunMismatch, match="goal"):
        author(tmp_path, [], run=store.resume(done.run.folder), goal=0.5)


def test_another_model_on_resume_is_a_warning(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR")], limits=Limits(rounds=1))
    again = author(tmp_path, [reply("PASS")], run=store.resume(done.run.folder), model="newer")
    assert any("goes on with 'newer'" in w for w in again.summary.warnings)


def test_a_changed_prompt_is_a_warning_on_resume(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR")], limits=Limits(rounds=1))
    monkeypatch.setattr(support, "examples", lambda: ())
    again = author(tmp_path, [reply("PASS")], run=store.resume(done.run.folder))
    assert again.summary.passed
    assert any("changed since the run began" in w for w in again.summary.warnings)


# records --------------------------------------------------------------------------------------------------------------


def test_a_run_folder_is_a_recording(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR"), reply("PASS")])
    replayed = ReplayLLM(Recording(done.run.folder), task_id=support.TASK.id)
    again = author(tmp_path / "again", [], llm=replayed)  # type: ignore[arg-type]
    assert again.summary.passed
    assert replayed.drift == []
    assert len(again.judge.asked) == 2  # every gate runs again
    assert again.run.reply(2) is not None
    assert again.run.reply(2).provider == "replay"  # type: ignore[union-attr]


def test_decisions_are_derived_again(tmp_path: pathlib.Path) -> None:
    wrong = reply("algebra WRONG_VALUES")
    done = author(tmp_path, ["sorry", wrong, wrong, reply("PASS 0.5"), reply("PASS 0.9")], goal=0.8)
    found = replay_decisions(done.run.folder)
    assert found.statement == STATEMENT
    assert [(s.call, s.round, s.outcome) for s in found.steps] == [
        (1, 1, "reply: no_code"),
        (2, 1, "WRONG_VALUES"),
        (3, 2, "repeated"),
        (4, 3, "PASS"),
        (5, 4, "PASS"),
    ]
    assert [s.derived.action for s in found.steps if s.derived] == ["retry", "repair", "repair", "optimise", "stop"]
    assert found.consistent
    assert found.goal_met
    assert found.best_call == 5
    assert found.stopped is not None
    assert found.stopped.startswith("goal")


def test_a_decision_that_does_not_follow_from_the_evidence_is_found(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("algebra WRONG_VALUES"), reply("PASS")])
    path = done.run.folder / "events.jsonl"
    path.write_text(path.read_text().replace('"action":"repair"', '"action":"optimise"'))
    found = replay_decisions(done.run.folder)
    assert not found.consistent
    assert [s.call for s in found.steps if not s.agrees] == [1]


def test_replay_writes_nothing(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")])
    before = {p: p.read_bytes() for p in done.run.folder.rglob("*") if p.is_file()}
    replay_decisions(done.run.folder)
    assert {p: p.read_bytes() for p in done.run.folder.rglob("*") if p.is_file()} == before


def test_secrets_are_never_written(tmp_path: pathlib.Path) -> None:
    key = "sk-ant-REAL-SECRET-0123456789"
    settings = Settings(ANTHROPIC_API_KEY=SecretStr(key))  # type: ignore[call-arg]
    prompt = prepare.prepare(support.TASK, model="scripted", examples=support.examples())
    run = prepare.new_run(tmp_path / "runs", prompt, llm="scripted", limits=Limits(), settings=settings)
    wrong = ScriptedReply(
        source=source("trace COMPILE_ERROR", note=key), text=f"the key is {key}", schedule={"k": key}
    ).reply()
    said = Reply(text=key, problem=Problem(kind="no_code", message=f"no code beside {key}"), provider="scripted")
    script = [said, wrong.model_copy(update={"notes": (f"header {key}",)}), LLMUnavailable(f"refused {key}")]
    with run, pytest.raises(LLMUnavailable):
        loop.author(prompt, ScriptedLLM(script), support.FakeJudge(), run, limits=Limits(), into=tmp_path / "kept")
    assert (run.attempt_folder(2) / "verdict.json").is_file()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 10
    for path in files:
        assert key not in path.read_text("utf-8"), path
    assert json.loads((run.folder / "run.json").read_text())["settings"]["anthropic_api_key"]["value"] == "set"


def test_provenance_says_who_from_what_and_at_which_cost(tmp_path: pathlib.Path) -> None:
    llm = Billed([billed("trace COMPILE_ERROR"), billed("PASS")])
    done = author(tmp_path, [], llm=llm, model="claude-opus-5-5")
    assert done.summary.kept is not None
    (entry,) = authored_kernels.catalog(tmp_path / "kept")
    p = entry.provenance
    assert (entry.state, entry.model, p["author"]) == ("candidate", "claude-opus-5-5", "llm")
    assert (p["run"], p["call"], p["rounds"], p["provider"]) == (done.run.info.id, 2, 2, "anthropic")
    assert p["prompt_sha256"] == llm.history[1].prompt_sha
    assert p["examples"] == ["other"]
    assert p["cost_usd"] == pytest.approx(2 * (4 * 1000 + 20 * 1000) / 1e6)
    assert len(p["seeds_commitment"]) == 64
    assert str(support.SEED) not in (entry.path / "provenance.json").read_text()
