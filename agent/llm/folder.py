"""Answers from files: any coding agent, or a person with an editor, is the model.

`folder:DIR` writes `NNN.request.md` (the whole prompt, to be read) and `NNN.request.json` (the same as a `Request`),
then waits for `NNN.reply.md`: text with a fenced Python block, or bare code. Beside it `NNN.reply.json` (`ReplyInfo`,
optional, written *before* the `.md`) says which model answered. A reply counts as complete once its size has not
changed for a moment, so renaming a finished file into place is the safe way to deliver one; an empty file is still
being written. A reply that is there already is used at once, which is how an interrupted run goes on.

Nothing needs cleaning up after Ctrl-C: requests are written whole or not at all. Neighbours: `extract` finds the
kernel, `protocol` has the records, `select` builds this class.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ..errors import ProviderMisused, ReplyMalformed, ReplyTimeout
from ..files import write_text
from ..records import Record
from .extract import read_reply
from .protocol import (
    REFUSED,
    TRUNCATED,
    UNKNOWN_MODEL,
    OnText,
    Problem,
    Reply,
    Request,
    Submission,
    Usage,
    estimate_tokens,
)

MAX_REPLY_BYTES = 1024 * 1024

_HOW_TO_ANSWER = """\
<!--
Round {number}. Answer by writing {reply} into this folder (write it under another name, then rename it).
Any prose, and the kernel file as the last fenced Python block. Optionally, and before that, {info}:
  {{"model": "<id of the model that answers>", "schedule": {{...}}, "stop_reason": "end_turn", "usage": {{...}}}}
-->
"""


class ReplyInfo(Record):
    """`NNN.reply.json`."""

    model: str = Field(default=UNKNOWN_MODEL, min_length=1)
    """Id of the model that wrote the reply."""
    usage: Usage = Usage()
    stop_reason: str = "end_turn"
    rationale: str | None = None
    """Replaces the prose around the code block."""
    schedule: dict[str, Any] | None = None


class FolderLLM:
    """Asks through files and waits for the answer.

    Args:
        folder: Where requests and replies meet; created if missing, in a folder that is there: a mistyped path would be
            waited for.
        model: Who answers, where `NNN.reply.json` does not say; recorded as "unknown" otherwise.
        deadline_s: Longest wait for one reply; None waits for ever.
        poll_s: How often to look.
        settle_s: How long a reply's size must stay the same.
        announce: Told once per request which file is being waited for.
        clock: Monotonic seconds, and `sleep`: replaced in tests.
    """

    name = "folder"

    def __init__(
        self,
        folder: Path,
        *,
        model: str | None = None,
        deadline_s: float | None = 3600.0,
        poll_s: float = 0.25,
        settle_s: float = 0.5,
        announce: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder = folder
        self._model = model
        self._deadline_s = deadline_s
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._announce = announce
        self._clock = clock
        self._sleep = sleep
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise ProviderMisused(
                f"--llm folder:{folder}: there is no folder {str(folder.parent)!r} to make it in",
                hint="look at the path again, or make that folder",
            ) from error
        except OSError as error:
            raise ProviderMisused(
                f"--llm folder:{folder} cannot be used: {error.strerror}", hint="name a folder that can be written to"
            ) from error

    def __repr__(self) -> str:
        return f"FolderLLM({str(self.folder)!r})"

    def complete(self, request: Request, on_text: OnText | None = None) -> Reply:
        stem = f"{request.round:03d}"
        reply_path, info_path = self.folder / f"{stem}.reply.md", self.folder / f"{stem}.reply.json"
        notes = self._stale(request, stem, reply_path)
        write_text(self.folder / f"{stem}.request.json", request.model_dump_json(indent=2) + "\n")
        write_text(self.folder / f"{stem}.request.md", render(request, reply=reply_path.name, info=info_path.name))
        self._wait(reply_path)
        text = _read(reply_path)
        info = _read_info(info_path)
        if on_text is not None:
            on_text(text)
        return self._reply(text, info, notes)

    def estimate(self, request: Request) -> int:
        return estimate_tokens(request)

    def _reply(self, text: str, info: ReplyInfo, notes: list[str]) -> Reply:
        outcome: Submission | Problem
        if info.stop_reason == REFUSED:
            outcome = Problem(kind="refused", message="The model declined to answer.")
        else:
            outcome = read_reply(text, truncated=info.stop_reason in TRUNCATED)
        if isinstance(outcome, Submission):
            rationale = outcome.rationale if info.rationale is None else info.rationale
            outcome = outcome.model_copy(update={"schedule": info.schedule, "rationale": rationale})
        return Reply(
            text=text,
            submission=outcome if isinstance(outcome, Submission) else None,
            problem=outcome if isinstance(outcome, Problem) else None,
            stop_reason=info.stop_reason,
            model=info.model if info.model != UNKNOWN_MODEL else self._model or UNKNOWN_MODEL,
            usage=info.usage,
            provider=self.name,
            notes=tuple(notes),
        )

    def _stale(self, request: Request, stem: str, reply: Path) -> list[str]:
        """A reply that waits here already may answer another prompt: the folder was used before."""
        earlier = self.folder / f"{stem}.request.json"
        if not (reply.exists() and earlier.exists()):
            return []
        try:
            same = Request.model_validate_json(earlier.read_bytes()).prompt_sha == request.prompt_sha
        except (OSError, ValidationError):
            same = False
        return [] if same else [f"{reply.name} was there already and answers another prompt than the present one"]

    def _wait(self, path: Path) -> None:
        begun = self._clock()
        seen: tuple[int, int] | None = None
        since = begun
        told = False
        while True:
            now, state = self._clock(), _state(path)
            if state is not None and self._untouched(state):
                return
            if state != seen:
                seen, since = state, now
            elif state is not None and now - since >= self._settle_s:
                return
            if state is None and not told and self._announce is not None:
                self._announce(f"waiting for {path}")
                told = True
            if self._deadline_s is not None and now - begun >= self._deadline_s:
                raise ReplyTimeout(
                    f"no reply in {str(path)!r} after {self._deadline_s:g} s",
                    hint="write the reply and resume the run, or raise reply_deadline in the settings",
                )
            self._sleep(self._poll_s)

    def _untouched(self, state: tuple[int, int]) -> bool:
        """Not written to for a while, by the file's own date: no need to watch it. A future date proves nothing."""
        age = time.time() - state[1] / 1e9
        return age >= self._settle_s


def render(request: Request, *, reply: str, info: str) -> str:
    """The prompt as a person reads it."""
    parts = [_HOW_TO_ANSWER.format(number=request.round, reply=reply, info=info)]
    parts += ["# Guide\n", request.system.rstrip() + "\n"] if request.system.strip() else []
    parts += ["# Task\n", request.task.rstrip() + "\n"]
    titles = {"assistant": "Your earlier reply", "user": "Feedback on it"}
    for turn in request.turns:
        parts += [f"# {titles[turn.role]}\n", turn.text.rstrip() + "\n"]
    return "\n".join(parts)


def _state(path: Path) -> tuple[int, int] | None:
    """Size and date of a file that holds something."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_REPLY_BYTES + 1)
        if len(data) > MAX_REPLY_BYTES:
            raise ReplyMalformed(f"{str(path)!r} is larger than {MAX_REPLY_BYTES} bytes", hint="shorten it and resume")
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ReplyMalformed(
            f"{str(path)!r} is not UTF-8: byte {error.start} is {data[error.start]:#04x}",
            hint="save it as UTF-8 and resume the run",
        ) from error
    except OSError as error:
        raise ReplyMalformed(
            f"{str(path)!r} cannot be read: {error.strerror}", hint="mend it and resume the run"
        ) from error


def _read_info(path: Path) -> ReplyInfo:
    if not path.is_file():
        return ReplyInfo()
    try:
        return ReplyInfo.model_validate_json(_read(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ReplyMalformed(
            f"{str(path)!r}: {where}: {first['msg']}",
            hint=f"it may hold {', '.join(ReplyInfo.model_fields)} and nothing else",
        ) from error
