"""Run folders: what is written, that it is written whole, what is read back after a kill, locks, and how runs are found."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from agent import files
from agent.errors import RunDamaged, RunLocked, UnknownRun
from agent.files import append_line, publish, read_lines, write_text
from agent.llm.protocol import Problem, Reply, Request, Submission, Usage
from agent.records import Environment
from agent.runs import store
from agent.runs.events import Asked, Decided, Decision, Replied, Started, Warned

pytestmark = pytest.mark.null

STARTED = Started(task="t", llm="scripted", model="m", shown=(), withheld=())


def info(**changes: object) -> store.RunInfo:
    values = {
        "id": store.new_id("demo", datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)),
        "task": "demo",
        "task_digest": "0" * 64,
        "created": datetime.datetime.now(datetime.UTC),
        "llm": "scripted",
        "model": "m",
        "limits": {"rounds": 3},
        "prompt_version": "1",
        "system_sha256": "0" * 64,
        "examples": ("one",),
        "environment": Environment.here(),
    }
    return store.RunInfo.model_validate(values | changes)


@pytest.fixture
def run(tmp_path: pathlib.Path) -> store.Run:
    return store.create(tmp_path, info())


def replied(call: int) -> Replied:
    return Replied(call=call, round=1, model="m", stop_reason="end_turn", usage=Usage(), billed=False, cost_usd=0.0)


# events ---------------------------------------------------------------------------------------------------------------


def test_events_come_back_dated_and_in_order(run: store.Run) -> None:
    for event in (STARTED, replied(1), Warned(message="μ 📍")):
        run.record(event)
    again = store.open_run(run.folder)
    assert [e.kind for e in again.events] == ["started", "replied", "warned"]
    assert all(e.at is not None and e.at.tzinfo is not None for e in again.events)
    assert again.events[2].message == "μ 📍"  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\u2029", "\x0b\x0c\x1c\x1d\x1e", "\r", "\r\n"])
def test_an_event_is_one_line_whatever_its_text_holds(run: store.Run, odd: str) -> None:
    """`str.splitlines` cuts at all of these; JSON escapes some of them only."""
    said = f"before{odd}after"
    run.record(Warned(message=said))
    run.record(replied(1))
    (first, second) = store.open_run(run.folder).events
    assert (first.message, second.kind) == (said, "replied")  # type: ignore[union-attr]


def test_a_log_that_is_not_utf8_is_damage(run: store.Run) -> None:
    run.record(STARTED)
    with (run.folder / "events.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(RunDamaged, match="cannot be read"):
        store.open_run(run.folder)


def test_the_same_happening_is_recorded_once_but_every_call_that_begins(run: store.Run) -> None:
    asked = Asked(call=1, round=1, prompt_sha="0", input_tokens=1, reserved_usd=None)
    for event in (STARTED, asked, replied(1), STARTED, asked, replied(1)):
        run.record(event)
    run.close()
    with store.resume(run.folder) as again:
        again.record(replied(1))
        again.record(replied(2))
    kinds = [e.kind for e in store.open_run(run.folder).events]
    assert kinds == ["started", "asked", "replied", "asked", "replied"]


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "replied", "call": 2', '{"message": "μ'.encode()[:-1]])
def test_a_torn_last_line_is_ignored_and_then_cut_off(run: store.Run, torn: bytes) -> None:
    run.record(STARTED)
    run.close()
    path = run.folder / "events.jsonl"
    with path.open("ab") as file:
        file.write(torn)
    assert [e.kind for e in store.open_run(run.folder).events] == ["started"]
    with store.resume(run.folder) as again:
        again.record(replied(1))
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["started", "replied"]


def test_a_torn_only_line_leaves_an_empty_log(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 200_000)
    assert read_lines(path) == []
    append_line(path, "whole")
    assert path.read_bytes() == b"whole\n"


def test_a_line_in_the_middle_that_is_no_event_is_damage(run: store.Run) -> None:
    run.record(STARTED)
    with (run.folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "unheard-of"}\n')
    with pytest.raises(RunDamaged, match="line 2"):
        store.open_run(run.folder)


def test_time_adds_up_over_sessions(run: store.Run) -> None:
    run._before = 100.0
    run.record(STARTED)
    run.close()
    assert store.open_run(run.folder).elapsed_s >= 100.0


def test_every_line_is_on_disk_before_record_returns(run: store.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    run.record(STARTED)
    assert synced == [(run.folder / "events.jsonl").stat().st_size]


# files ----------------------------------------------------------------------------------------------------------------


def test_requests_and_replies_come_back_equal(run: store.Run) -> None:
    request = Request(system="s", task="t", model="m")
    sent = Submission(source="kernel = 1\n", schedule={"tile_m": 64})
    reply = Reply(text="μ 📍", submission=sent, provider="scripted", usage=Usage(output_tokens=3), billed=True)
    run.write_request(1, request)
    run.write_reply(1, reply)
    assert (run.request(1), run.reply(1), run.request(2), run.reply(2)) == (request, reply, None, None)
    assert run.replies == (1,)


def test_a_damaged_reply_is_an_error_and_not_a_missing_one(run: store.Run) -> None:
    run.write_reply(1, Reply(text="", problem=Problem(kind="no_code", message="m"), provider="p"))
    (run.folder / "replies" / "001.json").write_text("{")
    with pytest.raises(RunDamaged, match=r"001\.json"):
        run.reply(1)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("run.json", "--llm replay:FOLDER"),
        ("events.jsonl", "remove the line"),
        ("replies/001.json", "asks the model for that reply again"),
        ("requests/001.json", "remove it"),
        ("attempts/001/verdict.json", "judged again"),
        ("summary.json", "written anew"),
    ],
)
def test_damage_says_what_to_do(run: store.Run, name: str, hint: str) -> None:
    (run.folder / name).parent.mkdir(exist_ok=True, parents=True)
    (run.folder / name).write_text("{\n")

    def read() -> None:
        found = store.open_run(run.folder)
        assert found.request(1) is found.reply(1) is found.verdict(1) is found.summary

    with pytest.raises(RunDamaged) as caught:
        read()
    assert hint in caught.value.hint


@pytest.mark.parametrize("work", [files.require_place, lambda path: write_text(path, "x")], ids=["asked", "written"])
@pytest.mark.parametrize("place", ["folder", "file/below", "file/below/that"])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(
    work: Callable[[pathlib.Path], None], place: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="directory") as caught:
        work(tmp_path / place)
    assert caught.value.filename == str(tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_asking_for_a_place_leaves_nothing(tmp_path: pathlib.Path) -> None:
    files.require_place(tmp_path / "new" / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file(tmp_path: pathlib.Path) -> None:
    path, wanted = tmp_path / "file", {"a" * 300_000, "b" * 300_000}
    write_text(path, "a" * 300_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in wanted:
                write_text(path, text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(path.read_text() in wanted for _ in range(200))
    finally:
        stop.set()
        writer.join()


def test_publishing_takes_no_taken_name(tmp_path: pathlib.Path) -> None:
    for name in ("made", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "made" / "file").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for taken in ("empty", "file", "dangling"):
        assert not publish(tmp_path / "made", tmp_path / taken)
    assert publish(tmp_path / "made", tmp_path / "free")
    assert (tmp_path / "free" / "file").is_file()


def test_a_run_opened_for_reading_writes_nothing(run: store.Run) -> None:
    reader = store.open_run(run.folder)
    with pytest.raises(RuntimeError, match="for reading"):
        reader.record(STARTED)
    with pytest.raises(RuntimeError, match="for reading"):
        reader.write_request(1, Request(system="s", task="t", model="m"))


def test_secrets_are_replaced_in_whatever_is_written(tmp_path: pathlib.Path) -> None:
    run = store.create(tmp_path, info(), secrets=("hunter2", ""))
    run.record(Warned(message="hunter2!"))
    run.write_candidate(1, Submission(source="# hunter2\n", schedule={"x": "hunter2"}))
    for path in run.folder.rglob("*"):
        if path.is_file():
            assert "hunter2" not in path.read_text()
    assert "[secret]!" in (run.folder / "events.jsonl").read_text()


# locks and names ------------------------------------------------------------------------------------------------------


def test_a_second_process_cannot_resume_and_a_dead_one_holds_no_lock(tmp_path: pathlib.Path) -> None:
    run = store.create(tmp_path, info())
    run.close()
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(pathlib.Path(store.__file__).parents[2])!r})\n"
        f"from agent.runs import store\nrun = store.resume(pathlib.Path({str(run.folder)!r}))\nprint('locked', flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(RunLocked, match="another process"):
            store.resume(run.folder)
        assert store.open_run(run.folder).info == run.info  # reading is allowed
    finally:
        child.kill()
        child.communicate()
    store.resume(run.folder).close()


def test_ids_are_dated_named_and_never_alike() -> None:
    made = {store.new_id("a/b ../c") for _ in range(20)}
    assert len(made) == 20
    assert all("/" not in name and " " not in name for name in made)
    assert info().id.startswith("2026-11-29-demo-")


def test_runs_are_found_by_path_id_or_an_unambiguous_part(tmp_path: pathlib.Path) -> None:
    for name in ("2026-11-29-demo-aaaaaa", "2026-11-29-demo-bbbbbb"):
        store.create(tmp_path, info(id=name)).close()
    assert store.find("2026-11-29-demo-aaaaaa", tmp_path).name.endswith("aaaaaa")
    assert store.find("bbb", tmp_path).name.endswith("bbbbbb")
    assert store.find(str(tmp_path / "2026-11-29-demo-bbbbbb"), tmp_path).name.endswith("bbbbbb")
    with pytest.raises(UnknownRun) as caught:
        store.find("demo", tmp_path)
    assert "2 runs fit" in caught.value.hint
    with pytest.raises(UnknownRun):
        store.find("", tmp_path)
    assert len(store.list_runs(tmp_path)) == 2


def test_what_is_no_run_is_not_opened(tmp_path: pathlib.Path) -> None:
    for way in (store.open_run, store.resume):
        with pytest.raises(UnknownRun):
            way(tmp_path)


def test_a_run_of_another_version_is_damage(run: store.Run) -> None:
    path = run.folder / "run.json"
    path.write_text(path.read_text().replace("coda-agent/run/1", "coda-agent/run/99"))
    with pytest.raises(RunDamaged, match="schema"):
        store.open_run(run.folder)


def test_decisions_of_a_call_are_told_apart_by_what_was_decided(run: store.Run) -> None:
    for action in ("judge_again", "repair", "repair"):
        run.record(Decided(call=1, round=1, decision=Decision.model_validate({"action": action, "reason": ""})))
    assert len(run.events) == 2
