"""Answers from a recording: what a real model once said, judged again from scratch.

A recording is a folder `replies/NNN.json` (a `Reply`), `requests/NNN.json` (the `Request` it answered, or just
`{"prompt_sha": ...}`) and `recording.json` (`RecordingInfo`: which task, which model, captured how). Every run folder
is one too, except that it may lack `recording.json`. Bundled recordings live in `agent/recordings/<task
id>[-<suffix>]/`.

Replies are matched by round. A prompt that has changed since is a warning, collected in `ReplayLLM.drift` and noted
in the reply, and no error: the verdict comes from the gates, which really run, and never from the recording.

Neighbours: `protocol` for the records, `select` decides when this is used, which is only when asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from ..errors import RecordingExhausted, RecordingInvalid, RecordingMissing
from ..records import Record
from .protocol import OnText, Reply, Request, estimate_tokens

BUNDLED = Path(__file__).parent.parent / "recordings"
"""Where the recordings that come with the tool are."""

MAX_FILE_BYTES = 16 * 1024 * 1024
_RECORD = TypeVar("_RECORD", bound=Record)
_ROUND_FILE = re.compile(r"(\d{3,})\.json")


class RecordingInfo(Record):
    """`recording.json`."""

    task: str
    """Task id."""
    model: str
    """The model that wrote the replies."""
    provider: str
    """How they were captured: `anthropic`, `folder`."""
    captured: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}")
    """Date, ISO 8601."""
    prompt_version: str = ""
    note: str = ""
    """Anything a reader must know to take the recording for what it is."""


class Recording:
    """A recording on disk. Replies are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rounds: tuple[int, ...] = tuple(sorted(_rounds(folder / "replies")))
        if not self.rounds:
            raise RecordingMissing(
                f"{str(folder)!r} holds no recorded replies (replies/001.json, ...)",
                hint="name a run folder or a recording; `coda-agent list runs` shows the runs",
            )
        document = folder / "recording.json"
        self.info: RecordingInfo | None = _parse(RecordingInfo, document) if document.is_file() else None

    def reply(self, number: int) -> Reply:
        """The reply of a round.

        Raises:
            RecordingExhausted: That round was not recorded.
        """
        if number not in self.rounds:
            raise RecordingExhausted(
                f"the recording {self.folder.name!r} ends with round {self.rounds[-1]}, round {number} was asked for",
                hint=f"--rounds {self.rounds[-1]} stops with the recording; to go on: --llm anthropic or folder:DIR",
            )
        return _parse(Reply, self.folder / "replies" / f"{number:03d}.json")

    def prompt_sha(self, number: int) -> str | None:
        """Hash of the prompt that the reply answered; None where the request was not kept."""
        path = self.folder / "requests" / f"{number:03d}.json"
        if not path.is_file():
            return None
        document = _read(path)
        if isinstance(document, dict) and isinstance(document.get("prompt_sha"), str):
            return str(document["prompt_sha"])
        return _parse(Request, path).prompt_sha


class ReplayLLM:
    """Plays a recording back. Nothing is billed.

    Args:
        recording: What to play.
        task_id: The task that it is played for; another one than was recorded is worth a warning.
    """

    name = "replay"

    def __init__(self, recording: Recording, *, task_id: str | None = None) -> None:
        self.recording = recording
        self.drift: list[str] = []
        """Warnings so far: prompts that differ from those recorded."""
        recorded = recording.info.task if recording.info else None
        if task_id is not None and recorded is not None and recorded != task_id:
            self.drift.append(f"the recording is of task {recorded!r}, played for {task_id!r}")

    def __repr__(self) -> str:
        return f"ReplayLLM({str(self.recording.folder)!r})"

    def complete(self, request: Request, on_text: OnText | None = None) -> Reply:
        reply = self.recording.reply(request.round)
        recorded = self.recording.prompt_sha(request.round)
        notes = list(reply.notes)
        if recorded is None:
            notes.append(f"round {request.round}: the recording does not say which prompt was answered")
        elif recorded != request.prompt_sha:
            notes.append(
                f"prompt drift in round {request.round}: recorded {recorded[:12]}, now {request.prompt_sha[:12]}; "
                "the recorded reply answers an older wording of the task, and is judged as it is"
            )
        self.drift.extend(notes[len(reply.notes) :])
        if on_text is not None and reply.text:
            on_text(reply.text)
        # Model and usage stay those of the recording; only who delivered it, and that it was free, are new.
        return reply.model_copy(update={"provider": self.name, "billed": False, "notes": tuple(notes)})

    def estimate(self, request: Request) -> int:
        return estimate_tokens(request)


def bundled(task_id: str) -> Recording:
    """The recording that comes with the tool for this task: `<task id>`, else the first `<task id>-*` by name.

    Raises:
        RecordingMissing: There is none; the hint lists those there are.
    """
    names = [name for name in bundled_names() if name == task_id or name.startswith(f"{task_id}-")]
    if names:
        return Recording(BUNDLED / names[0])
    have = ", ".join(bundled_names()) or "none"
    raise RecordingMissing(
        f"no recording is bundled for the task {task_id!r}",
        hint=f"bundled: {have}. --llm replay:RUN replays a run, folder:DIR asks you, anthropic asks a model",
    )


def bundled_names() -> list[str]:
    """Names of the bundled recordings, sorted, a plain task id before its variants."""
    if not BUNDLED.is_dir():
        return []
    return sorted(path.name for path in BUNDLED.iterdir() if (path / "replies").is_dir())


def find(name: str, *, runs: Path | None = None) -> Recording:
    """A recording by path, by the name of a run below `runs`, or by the name of a bundled one.

    Raises:
        RecordingMissing: None of the three exists.
    """
    plain = name not in ("", ".", "..") and Path(name).name == name
    places = [Path(name).expanduser()]
    if plain:
        places += ([runs / name] if runs is not None else []) + [BUNDLED / name]
    for place in places:
        if (place / "replies").is_dir():  # a folder that merely has the name does not hide a recording
            return Recording(place)
    raise RecordingMissing(
        f"no recording {name!r}: looked for {', '.join(repr(str(place)) for place in places)}",
        hint=f"name a run folder, or a bundled recording: {', '.join(bundled_names()) or 'none bundled'}",
    )


def _rounds(replies: Path) -> Iterator[int]:
    if replies.is_dir():
        for path in replies.iterdir():
            if match := _ROUND_FILE.fullmatch(path.name):
                yield int(match[1])


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RecordingInvalid(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingInvalid(
            f"{str(path)!r} cannot be read: {error}", hint="the recording is damaged; record it again"
        ) from error


def _parse(kind: type[_RECORD], path: Path) -> _RECORD:
    document = _read(path)
    try:
        return kind.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise RecordingInvalid(
            f"{str(path)!r} is not a {kind.__name__}: {where}: {first['msg']}",
            hint="the recording is damaged or of another version; record it again",
        ) from error
