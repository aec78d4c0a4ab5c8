"""Runs that start from a kept kernel: what the model reads of it, what is recorded, and what cannot be started from."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import authoring_support as support
import kept_support
import pytest

import authored_kernels
from agent.commands import author as command
from agent.commands.author import Asked
from agent.commands.terminal import Terminal
from agent.errors import CannotImprove, UsageError
from agent.keeping import shelves
from agent.keeping.shelves import Kept
from agent.runs import store
from agent.task import load

pytestmark = pytest.mark.null


@pytest.fixture
def kept(tmp_path: pathlib.Path) -> Kept:
    """A kernel of the task, kept by a run and measured: quack's best configuration beats it."""
    first = support.author(tmp_path / "first", [support.reply("PASS")])
    assert first.summary.kept is not None
    found = shelves.read(pathlib.Path(first.summary.kept.path))
    record = kept_support.bench_record(
        found.provenance["program_digest"], us=100.0, peers={"compile": 120.0, "cublas": 90.0}
    )
    quack = {
        **record["measured"][1],
        "name": "quack[128x128 c21]",
        "peer": "quack",
        "median": 95e-6,
        "low": 94e-6,
        "high": 96e-6,
    }
    record["measured"].append(quack)
    compared = {"peer": "quack", "variant": quack["name"], "ratio": 1.05, "low": 1.04, "high": 1.06, "word": "slower"}
    record["compared"].append(compared)
    record["measured"][0] |= {
        "author": "candidate",
        "config": {"kernel": {"tile_m": 128, "tile_n": 256, "pingpong": True}},
    }
    bare = {**record["measured"][2], "name": "triton, empty epilogue", "author": "project"}
    record["measured"].append(bare)
    kept_support.add_bench(found, record)
    return found


def test_the_model_reads_the_kernel_and_what_was_measured_of_it(tmp_path: pathlib.Path, kept: Kept) -> None:
    done = support.author(tmp_path, [support.reply("PASS 0.97", program="second")], improve=kept, goal=0.95)
    asked = done.llm.history[0]
    assert kept.source.rstrip() in asked.task
    row = "| M=4096 N=4096 K=4096 | 100.0 | triton 128×256 ping-pong 100.0 | cublas 90.0, triton 90.0 | 80.0 | 80 % | quack 95.0 µs | slower |"
    assert row in asked.task
    assert '- M=4096 N=4096 K=4096: kernel `{"tile_n": 256, "pingpong": true}`' in asked.task
    assert "The goal is 95 % of the floor's speed." in asked.task
    assert done.summary.goal_met
    assert done.run.info.start is not None
    assert done.run.info.start.kernel == kept.id
    assert done.summary.kept is not None
    assert json.loads(pathlib.Path(done.summary.kept.path, "provenance.json").read_text())["improves"] == kept.id


def test_of_several_records_of_a_size_the_newest_by_the_default_protocol_is_read(
    tmp_path: pathlib.Path, kept: Kept
) -> None:
    def measured(us: float, when: str, name: str) -> dict[str, Any]:
        record = kept_support.bench_record(kept.provenance["program_digest"], us=us)
        return {**record, "measured_at": when, "protocol": {"rounds": 25, "name": name}}

    new, old, other = (
        measured(*x)
        for x in (
            (70.0, "2026-12-02T00:00:00Z", "default"),
            (60.0, "2026-12-01T00:00:00Z", "default"),
            (50.0, "2026-12-03T00:00:00Z", "paper"),
        )
    )
    kept_support.add_bench(kept, new, old, other)
    done = support.author(tmp_path, [support.reply("PASS 0.97", program="second")], improve=kept, goal=0.95)
    rows = [line for line in done.llm.history[0].task.splitlines() if line.startswith("| M=4096")]
    assert [row.split(" | ")[1] for row in rows] == ["70.0"]


def test_registers_and_spills_are_told_where_they_are_known(own_folders: pathlib.Path) -> None:
    answer = command.author(
        Terminal("author"),
        Asked("swiglu_backward", improve="swiglu_backward/claude", dry_run=True),
        {"llm": "folder:x"},
    )
    assert "- swiglu_backward, triton 128×256: 255 registers per thread, 128 bytes spilled" in answer.data["task_text"]


def test_feedback_of_a_later_round_has_the_same_table(tmp_path: pathlib.Path, kept: Kept) -> None:
    replies = [support.reply("PASS 0.8", program="second"), support.reply("PASS 0.97", note="again", program="second")]
    done = support.author(tmp_path, replies, improve=kept, goal=0.95)
    assert "Attempt 1 is right" in done.feedback[0]
    assert "| shape | yours (µs) | by backend | without the epilogue |" in done.feedback[0]
    assert done.llm.history[0].task == done.llm.history[1].task


def test_what_cannot_be_started_from(tmp_path: pathlib.Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    script: list[Any] = [support.reply("PASS")]
    elsewhere = kept_support.keep_one(tmp_path / "other")
    with pytest.raises(CannotImprove, match="is a kernel of 'rms_scale', not of 'demo_scale'"):
        support.author(tmp_path, script, improve=elsewhere)
    attempt = dataclasses.replace(kept, origin="run", id="run#1")
    with pytest.raises(CannotImprove, match="'run#1' is an attempt that was not kept"):
        support.author(tmp_path, script, improve=attempt)
    changed = dataclasses.replace(kept, source=kept.source + "# faster\n")
    with pytest.raises(CannotImprove, match=r"has changed since it was kept: kernel\.py is not the text"):
        support.author(tmp_path, script, improve=changed)
    changed = dataclasses.replace(kept, program_json=support.PROGRAMS["second"].to_json())
    with pytest.raises(CannotImprove, match=r"has changed since it was kept: program\.json is not the program"):
        support.author(tmp_path, script, improve=changed)
    shutil.rmtree(kept.folder / "bench")
    with pytest.raises(CannotImprove, match="nothing was measured of 'demo_scale/scripted'") as refused:
        support.author(tmp_path, script, improve=dataclasses.replace(kept, called="a folder/of mine"))
    assert str(refused.value.hint).endswith("coda-agent bench 'a folder/of mine' --keep")
    digest = kept.provenance["program_digest"]
    monkeypatch.setattr("examples_curated.catalog", lambda: ("twin",))
    monkeypatch.setattr(
        "examples_curated.load", lambda name: type("Twin", (), {"program": type("P", (), {"digest": digest})})
    )
    with pytest.raises(CannotImprove, match="same program as a curated example, which is withheld"):
        support.author(tmp_path, script, improve=kept)


def test_the_command_goes_on_to_the_floor_and_a_run_with_what_it_was_told(
    own_folders: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Asked("swiglu_backward", improve="swiglu_backward/claude")
    assert command._going_on(wanted, None).goal == 1.0
    assert command._going_on(Asked("swiglu_backward"), None).goal is None
    assert command._going_on(Asked("swiglu_backward", goal=0.9, improve="x"), None).goal == 0.9
    monkeypatch.chdir(own_folders)
    assert command._going_on(Asked("swiglu_backward", into=pathlib.Path("kept")), None).into == own_folders / "kept"
    start = store.Start(kernel="swiglu_backward/claude", program_digest="0", text="begin here")
    info = store.RunInfo.model_construct(start=start, goal=0.9, into="/elsewhere", name="mine")
    resumed = command._going_on(Asked(None, resume="run"), info)
    assert (resumed.into, resumed.name) == (pathlib.Path("/elsewhere"), "mine")
    assert command._going_on(Asked(None, resume="run", name="other"), info).name == "other"
    assert command._start(resumed, info, load("swiglu_backward"), Terminal("author").settings()) is start
    with pytest.raises(UsageError, match="--improve and --resume exclude each other"):
        command.author(Terminal("author"), Asked("swiglu_backward", improve="x", resume="y"), {})


def test_what_cannot_be_started_from_is_refused_before_the_task_is_linted(
    own_folders: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_lint", lambda *given: pytest.fail("linted first"))
    with pytest.raises(CannotImprove, match="is a kernel of 'swiglu_backward', not of 'rms_scale'"):
        command.author(
            Terminal("author"),
            Asked("rms_scale", improve="swiglu_backward/claude"),
            {"llm": f"folder:{tmp_path / 'box'}"},
        )


def test_a_kernel_outside_the_shelves_is_found_again_from_everywhere(
    kept: Kept, own_folders: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kept.folder.parent)
    settings = Terminal("author").settings()
    found = command._start(Asked(None, improve=kept.folder.name), None, support.TASK, settings)
    assert found is not None
    assert found.kernel == str(kept.folder.resolve())
    place = str(authored_kernels.FOLDER / "swiglu_backward" / "claude")
    inside = command._start(Asked(None, improve=place), None, load("swiglu_backward"), settings)
    assert inside is not None
    assert inside.kernel == "swiglu_backward/claude"


def test_every_kept_kernel_that_was_measured_can_be_started_from(own_folders: pathlib.Path) -> None:
    """A dry run over those in the checkout, peers with several configurations included."""
    known = [e for e in authored_kernels.catalog() if (e.path / "bench").is_dir()]
    assert known
    for entry in known[:6]:
        answer = command.author(
            Terminal("author"), Asked(entry.task, improve=entry.id, dry_run=True, show_own=True), {"llm": "folder:box"}
        )
        assert "Where to start" in answer.data["task_text"]
        assert answer.next == f"coda-agent author {entry.task} --improve {entry.id}"


def test_a_kernel_to_improve_knows_its_task(own_folders: pathlib.Path) -> None:
    asked = Asked(None, improve="swiglu_backward/claude", dry_run=True, show_own=True)
    answer = command.author(Terminal("author"), asked, {"llm": "folder:box"})
    assert answer.next == "coda-agent author swiglu_backward --improve swiglu_backward/claude"
    with pytest.raises(UsageError, match="missing argument 'TASK'"):
        command.author(Terminal("author"), Asked(None, dry_run=True), {"llm": "folder:box"})


def test_a_run_that_made_a_kept_program_again_is_read_as_its_own_attempt(tmp_path: pathlib.Path) -> None:
    first = support.author(tmp_path / "first", [support.reply("PASS")])
    assert first.summary.kept is not None
    shutil.copytree(tmp_path / "first" / "kept", tmp_path / "again" / "kept")
    again = support.author(tmp_path / "again", [support.reply("PASS", note="other words")])
    assert again.summary.kept is not None
    assert again.summary.kept.same_program
    found = shelves.of_run(again.run.folder)
    assert (found.origin, found.provenance["run"]) == ("run", again.run.info.id)
    assert "other words" in found.source
    assert shelves.of_run(first.run.folder).origin == "kernel"
