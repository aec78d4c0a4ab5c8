"""Replay, folder, scripted, and the choice among providers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent import settings
from agent.errors import (
    LLMUnavailable,
    MissingKey,
    ProviderMisused,
    RecordingExhausted,
    RecordingInvalid,
    RecordingMissing,
    ReplyMalformed,
    ReplyTimeout,
    ScriptExhausted,
    UnknownProvider,
)
from agent.llm import replay, select
from agent.llm.anthropic import AnthropicLLM
from agent.llm.folder import FolderLLM
from agent.llm.protocol import Message, Reply, Request, Submission, Usage
from agent.llm.replay import Recording, ReplayLLM
from agent.llm.scripted import ScriptedLLM

pytestmark = pytest.mark.null

ROOT = Path(__file__).parents[3]
CODE = "def kernel(acc):\n    return {'y': acc}\n"
INFO = {"task": "t1", "model": "some-model", "provider": "folder", "captured": "2026-11-20"}


def request(number: int = 1, task: str = "write it") -> Request:
    return Request(system="guide", task=task, round=number, model="claude-opus-5-5")


def record(folder: Path, rounds: int = 2, info: dict[str, str] | None = INFO) -> Path:
    for kind in ("requests", "replies"):
        (folder / kind).mkdir(parents=True)
    for number in range(1, rounds + 1):
        reply = Reply(
            text=f"reply {number}",
            submission=Submission(source=CODE),
            model="some-model",
            usage=Usage(output_tokens=5),
            billed=True,
            provider="folder",
        )
        (folder / "requests" / f"{number:03d}.json").write_text(request(number).model_dump_json())
        (folder / "replies" / f"{number:03d}.json").write_text(reply.model_dump_json())
    if info is not None:
        (folder / "recording.json").write_text(json.dumps(info))
    return folder


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_replay_matches_by_round_and_bills_nothing(tmp_path: Path) -> None:
    llm = ReplayLLM(Recording(record(tmp_path)), task_id="t1")
    second, first = llm.complete(request(2)), llm.complete(request(1))
    assert (first.text, second.text) == ("reply 1", "reply 2")
    assert first.model == "some-model"
    assert first.provider == "replay"
    assert not first.billed
    assert llm.drift == []


def test_prompt_drift_is_a_warning(tmp_path: Path) -> None:
    llm = ReplayLLM(Recording(record(tmp_path)), task_id="t1")
    reply = llm.complete(request(1, task="write it differently"))
    assert reply.submission is not None
    assert len(llm.drift) == 1
    assert "drift in round 1" in llm.drift[0]
    assert reply.notes == tuple(llm.drift)


def test_a_recorded_hash_stands_for_the_request(tmp_path: Path) -> None:
    folder = record(tmp_path)
    (folder / "requests" / "001.json").write_text(json.dumps({"prompt_sha": request(1).prompt_sha}))
    (folder / "requests" / "002.json").unlink()
    llm = ReplayLLM(Recording(folder))
    assert llm.complete(request(1)).notes == ()
    assert "does not say" in llm.complete(request(2)).notes[0]


def test_another_task_is_a_warning(tmp_path: Path) -> None:
    assert "t1" in ReplayLLM(Recording(record(tmp_path)), task_id="t2").drift[0]


def test_past_the_end(tmp_path: Path) -> None:
    with pytest.raises(RecordingExhausted, match="ends with round 2") as caught:
        ReplayLLM(Recording(record(tmp_path))).complete(request(3))
    assert caught.value.exit_code == 6


def test_a_run_folder_needs_no_recording_json(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path, info=None))
    assert recording.info is None
    assert recording.rounds == (1, 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("replies/001.json", "{"),
        ("replies/001.json", '{"text": "x", "provider": "y"}'),
        ("requests/001.json", '{"task": 1}'),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    folder = record(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(RecordingInvalid, match=name.split("/")[1]):
        ReplayLLM(Recording(folder)).complete(request(1))


def test_bundled_recording_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BUNDLED", tmp_path)
    record(tmp_path / "rms_scale-repaired")
    record(tmp_path / "rms_scale_more")
    assert replay.bundled("rms_scale").folder.name == "rms_scale-repaired"
    record(tmp_path / "rms_scale")
    assert replay.bundled("rms_scale").folder.name == "rms_scale"
    with pytest.raises(RecordingMissing, match="rms") as caught:
        replay.bundled("rms")
    assert "rms_scale_more" in caught.value.hint
    assert replay.find("rms_scale-repaired").folder.name == "rms_scale-repaired"


def test_find_by_path_and_by_run_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "2026-run")
    (tmp_path / "empty" / "2026-run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty")
    assert replay.find(str(tmp_path / "2026-run")).rounds == (1, 2)
    assert replay.find("2026-run", runs=tmp_path).rounds == (1, 2)
    for missing in ("nope", "x/../2026-run", str(tmp_path)):
        with pytest.raises(RecordingMissing):
            replay.find(missing, runs=tmp_path / "2026-run")


# ---- folder ----------------------------------------------------------------------------------------------------------


def quick(folder: Path, **options: object) -> FolderLLM:
    defaults: dict[str, object] = {"poll_s": 0.01, "settle_s": 0.05, "deadline_s": 20.0}
    return FolderLLM(folder, **{**defaults, **options})  # type: ignore[arg-type]


def test_a_folder_is_made_in_one_that_is_there(tmp_path: Path) -> None:
    FolderLLM(tmp_path / "box")
    assert (tmp_path / "box").is_dir()
    with pytest.raises(ProviderMisused, match="there is no folder"):
        FolderLLM(tmp_path / "bax" / "box")
    assert not (tmp_path / "bax").exists()


def test_folder_asks_and_reads_the_answer(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer() -> None:
        prompt = tmp_path / "002.request.md"
        while not prompt.exists():
            time.sleep(0.01)
        seen.append(prompt.read_text("utf-8"))
        (tmp_path / "002.reply.json").write_text(
            '{"model": "m-1", "usage": {"output_tokens": 9}, "schedule": {"a": 1}}'
        )
        (tmp_path / "draft").write_text(f"Because.\n```python\n# μ\n{CODE}```\n", "utf-8")
        (tmp_path / "draft").rename(tmp_path / "002.reply.md")

    asked = request(2).model_copy(
        update={"turns": (Message(role="assistant", text="old code"), Message(role="user", text="off by 2"))}
    )
    thread = threading.Thread(target=answer)
    thread.start()
    reply = quick(tmp_path, model="ignored").complete(asked)
    thread.join()
    assert reply.submission == Submission(source="# μ\n" + CODE, rationale="Because.", schedule={"a": 1})
    assert (reply.model, reply.usage.output_tokens, reply.billed) == ("m-1", 9, False)
    for part in ("guide", "write it", "old code", "off by 2", "002.reply.md"):
        assert part in seen[0]
    assert Request.model_validate_json((tmp_path / "002.request.json").read_bytes()) == asked
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_reply_written_slowly_is_read_whole(tmp_path: Path) -> None:
    def answer() -> None:
        with (tmp_path / "001.reply.md").open("w") as file:
            for line in ["```python\n", *CODE.splitlines(keepends=True), "```\n"]:
                time.sleep(0.03)
                file.write(line)
                file.flush()

    thread = threading.Thread(target=answer)
    thread.start()
    reply = quick(tmp_path, settle_s=0.3).complete(request())
    thread.join()
    assert reply.submission is not None
    assert reply.submission.source == CODE


def test_a_reply_that_is_there_is_used_at_once(tmp_path: Path) -> None:
    path = tmp_path / "001.reply.md"
    path.write_text(CODE)
    os.utime(path, (time.time() - 60, time.time() - 60))

    def never(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    llm = quick(tmp_path, model="m-2", sleep=never)
    first = llm.complete(request())
    assert first.model == "m-2"
    assert first.notes == ()
    again = llm.complete(request(task="another task"))
    assert "another prompt" in again.notes[0]
    assert quick(tmp_path).complete(request(task="another task")).model == "unknown"


def test_an_empty_file_is_still_being_written_and_the_deadline_holds(tmp_path: Path) -> None:
    (tmp_path / "001.reply.md").touch()
    told: list[str] = []
    with pytest.raises(ReplyTimeout, match=r"001\.reply\.md"):
        quick(tmp_path, deadline_s=0.1, announce=told.append).complete(request())
    assert len(told) == 1


def test_interrupting_leaves_whole_requests(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path, sleep=interrupt).complete(request())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["001.request.json", "001.request.md"]


@pytest.mark.parametrize(
    ("stop", "kind"),
    [("refusal", "refused"), ("max_tokens", "truncated"), ("model_context_window_exceeded", "truncated")],
)
def test_folder_stop_reasons(tmp_path: Path, stop: str, kind: str) -> None:
    (tmp_path / "001.reply.json").write_text(json.dumps({"model": "m", "stop_reason": stop}))
    (tmp_path / "001.reply.md").write_text(CODE)
    reply = quick(tmp_path).complete(request())
    assert reply.problem is not None
    assert reply.problem.kind == kind


@pytest.mark.parametrize(
    ("md", "info", "said"),
    [(b"\xff\xfe", b"{}", "not UTF-8"), (b"x", b'{"modle": "m"}', "modle"), (b"x", b"{", "001.reply.json")],
)
def test_malformed_reply_files(tmp_path: Path, md: bytes, info: bytes, said: str) -> None:
    (tmp_path / "001.reply.json").write_bytes(info)
    (tmp_path / "001.reply.md").write_bytes(md)
    with pytest.raises(ReplyMalformed, match=said):
        quick(tmp_path).complete(request())


# ---- scripted --------------------------------------------------------------------------------------------------------


def test_queue_and_history() -> None:
    done = Reply(text="", submission=Submission(source=CODE), provider="x")
    llm = ScriptedLLM(["sorry", CODE, done, LLMUnavailable("down")])
    kinds = [llm.complete(request(n)).problem for n in (1, 2)]
    assert kinds[0] is not None
    assert kinds[0].kind == "no_code"
    assert kinds[1] is None
    assert llm.complete(request(3)) is done
    with pytest.raises(LLMUnavailable):
        llm.complete(request(4))
    with pytest.raises(ScriptExhausted, match="4 replies, call 5"):
        llm.complete(request(5))
    assert [r.round for r in llm.history] == [1, 2, 3, 4, 5]


def test_scripts_in_each_format(tmp_path: Path) -> None:
    entries = [
        "sorry",
        {"source": CODE, "rationale": "why", "schedule": {"tile_m": 64}},
        {"stop_reason": "refusal", "category": "cyber"},
        {"source": CODE, "stop_reason": "max_tokens"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    (tmp_path / "a.py").write_text(f"# --- reply ---\n{CODE}# --- reply ---\n{CODE.replace('acc', 'a')}")
    (tmp_path / "a.md").write_text(f"sorry\n<!-- --- reply --- -->\nok\n```python\n{CODE}```\n--- reply ---\n{CODE}")

    def play(name: str, count: int) -> list[Reply]:
        llm = ScriptedLLM.from_file(tmp_path / name)
        assert len(llm.queue) == count
        return [llm.complete(request(n)) for n in range(1, count + 1)]

    plain, tool, refusal, cut = play("a.json", 4)
    assert plain.problem is not None
    assert tool.submission == Submission(source=CODE, rationale="why", schedule={"tile_m": 64})
    assert refusal.refused
    assert refusal.stop_details is not None
    assert refusal.stop_details.category == "cyber"
    assert cut.problem is not None
    assert cut.problem.kind == "truncated"
    assert [r.submission.source for r in play("a.py", 2) if r.submission] == [CODE, CODE.replace("acc", "a")]
    assert [r.submission is None for r in play("a.md", 3)] == [True, False, False]


def test_a_script_answers_by_the_number_of_the_call(tmp_path: Path) -> None:
    """A resumed run asks a new object for its third reply first."""
    (tmp_path / "a.json").write_text(json.dumps(["one", "two", "three"]))
    first, second = (ScriptedLLM.from_file(tmp_path / "a.json") for _ in range(2))
    assert [first.complete(request(n)).text for n in (1, 2)] == ["one", "two"]
    assert second.complete(request(3)).text == "three"
    assert second.complete(request(3)).text == "three"  # asked again after a call that was lost
    with pytest.raises(ScriptExhausted, match="holds 3 replies, call 4"):
        second.complete(request(4))


@pytest.mark.parametrize("content", ["{", "{}", '[{"sauce": "x"}]', "[1]"])
def test_bad_scripts(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ProviderMisused, match=r"a\.json"):
        ScriptedLLM.from_file(tmp_path / "a.json")


# ---- select ----------------------------------------------------------------------------------------------------------


def test_parse() -> None:
    assert select.parse(None) == ("anthropic", "")
    assert select.parse("replay") == ("replay", "")
    assert select.parse("folder:/a:b") == ("folder", "/a:b")


@pytest.mark.parametrize(
    ("spec", "hint"), [("antropic", "anthropic"), ("Replay", "replay"), ("script:x", "scripted"), ("", "folder:DIR")]
)
def test_unknown_providers_have_near_names(spec: str, hint: str) -> None:
    with pytest.raises(UnknownProvider) as caught:
        select.parse(spec)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", ["folder", "folder:", "scripted", "replay:", "anthropic:claude"])
def test_arguments_are_checked(spec: str) -> None:
    with pytest.raises(ProviderMisused):
        select.parse(spec)


def test_select_builds_each(tmp_path: Path) -> None:
    record(tmp_path / "run")
    (tmp_path / "s.py").write_text(CODE)
    key = SecretStr("sk-test")

    def name(spec: str | None) -> str:
        return select.select(spec, key=key, task_id="t1", runs=tmp_path).name

    assert isinstance(select.select(None, key=key, task_id="t1"), AnthropicLLM)
    assert name("replay:run") == "replay"
    assert name(f"folder:{tmp_path}/new") == "folder"
    assert name(f"scripted:{tmp_path}/s.py") == "scripted"


def test_select_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_AGENT_HOME", str(tmp_path))
    record(tmp_path / "runs" / "2026-run")
    llm = select.from_settings(settings.load({"llm": "replay:2026-run"}), task_id="t1")
    assert llm.complete(request()).text == "reply 1"
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "001.reply.md").write_text(CODE)
    flags = {"llm": f"folder:{tmp_path / 'f'}"}
    assert select.from_settings(settings.load(flags), task_id="t1").complete(request()).model == "unknown"
    named = settings.load(flags | {"model": "m-3"})
    assert select.from_settings(named, task_id="t1").complete(request()).model == "m-3"


@pytest.mark.parametrize("spec", [None, "anthropic"])
@pytest.mark.parametrize("key", [None, SecretStr(""), SecretStr("  ")])
def test_no_key_is_an_error_and_never_a_replay(spec: str | None, key: SecretStr | None) -> None:
    with pytest.raises(MissingKey) as caught:
        select.select(spec, key=key, task_id="swiglu_backward")
    assert caught.value.exit_code == 6
    for part in ("ANTHROPIC_API_KEY", "--llm replay", "folder:DIR"):
        assert part in str(caught.value)


def test_a_missing_key_is_found_without_the_sdk() -> None:
    program = (
        "import sys\n"
        "from agent import settings\nfrom agent.errors import MissingKey\nfrom agent.llm.select import select\n"
        "try:\n    select(None, key=settings.load().anthropic_api_key, task_id='x')\n"
        "except MissingKey:\n"
        "    print(sorted({'anthropic', 'torch', 'httpx2'} & set(sys.modules)))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ANTHROPIC_API_KEY"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_reply_in_a_folder_is_waited_for_no_longer_than_the_run(tmp_path: Path) -> None:
    named = settings.load({"llm": f"folder:{tmp_path / 'box'}"})
    with pytest.raises(ReplyTimeout, match=r"after 0\.2 s"):
        select.from_settings(named, task_id="t1", time_s=0.2).complete(request())
