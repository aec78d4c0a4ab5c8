"""A model that says what it was told to: a queue of replies, and the history of what it was asked.

For tests and demonstrations of anything that talks to a model, here and elsewhere:

    llm = ScriptedLLM(["sorry", "```python\\n...\\n```"])
    llm.complete(request)       # "sorry": a reply with problem "no_code"
    llm.history[0].task         # what was asked

An entry is a text (read as a model's text reply is), a `Reply`, or an exception to raise. `scripted:FILE` reads a
script, whose replies belong to the model calls of a run by number: a run that is resumed goes on with the next one.

- `*.json`: a list of texts and of objects with any of `text`, `source`, `rationale`, `schedule`, `stop_reason`,
  `category`, `model`, `usage`. `source` stands for a tool call.
- any other file: the replies as text, separated by lines `--- reply ---`, also as a comment: `# --- reply ---` keeps
  a file of Python replies valid Python, `<!-- --- reply --- -->` a Markdown file readable.

Neighbours: `protocol`, `extract`; `select` builds it for `--llm scripted:FILE`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import ProviderMisused, ScriptExhausted
from ..files import read_bounded
from ..records import Record
from .extract import read_reply, read_tool
from .protocol import (
    REFUSED,
    TRUNCATED,
    OnText,
    Problem,
    Reply,
    Request,
    StopDetails,
    Submission,
    Usage,
    clean_text,
    estimate_tokens,
)

SCRIPTED_MODEL = "scripted"
MAX_SCRIPT_BYTES = 16 * 1024 * 1024
_MARKER = re.compile(r"^[ \t]*(?:#|<!--)?[ \t]*-{3,}[ \t]*reply[ \t]*-{3,}[ \t]*(?:-->)?[ \t]*$", re.MULTILINE)


class ScriptedReply(Record):
    """One object of a JSON script."""

    text: str = ""
    source: str | None = None
    rationale: str = ""
    schedule: dict[str, Any] | None = None
    stop_reason: str = "end_turn"
    category: str | None = None
    """Of a refusal."""
    model: str = SCRIPTED_MODEL
    usage: Usage = Usage()

    def reply(self) -> Reply:
        outcome: Submission | Problem
        if self.stop_reason == REFUSED:
            outcome = Problem(kind="refused", message="The model declined to answer.")
        elif self.source is not None and self.stop_reason not in TRUNCATED:
            outcome = read_tool(self.source, self.rationale, self.schedule)
        else:
            outcome = read_reply(self.text, truncated=self.stop_reason in TRUNCATED)
        return Reply(
            text=clean_text(self.text),
            submission=outcome if isinstance(outcome, Submission) else None,
            problem=outcome if isinstance(outcome, Problem) else None,
            stop_reason=self.stop_reason,
            stop_details=StopDetails(category=self.category) if self.category else None,
            model=self.model,
            usage=self.usage,
            provider=ScriptedLLM.name,
        )


class ScriptedLLM:
    """Queue and history.

    Args:
        replies: What it says.
        by_round: Whether the first reply is the one to call 1 of a run, the second to call 2, and so on, whatever this object
            was asked before; else whoever asks gets the next one.
    """

    name = "scripted"

    def __init__(self, replies: Iterable[str | Reply | Exception] = (), *, by_round: bool = False) -> None:
        self.queue: deque[str | Reply | Exception] = deque(replies)
        self.history: list[Request] = []
        self._by_round = by_round

    @classmethod
    def from_file(cls, path: Path) -> ScriptedLLM:
        """Read a script.

        Raises:
            ProviderMisused: It cannot be read or holds something else.
        """
        try:
            text = read_bounded(path, MAX_SCRIPT_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderMisused(
                f"--llm scripted:{path} cannot be read: {error}", hint="name a JSON, Python or Markdown file"
            ) from error
        if path.suffix == ".json":
            return cls(_json_script(path, text), by_round=True)
        return cls((part.strip("\n") + "\n" for part in _MARKER.split(text) if part.strip()), by_round=True)

    def complete(self, request: Request, on_text: OnText | None = None) -> Reply:
        self.history.append(request)
        entry = self._entry(request)
        if isinstance(entry, Exception):
            raise entry
        reply = ScriptedReply(text=entry).reply() if isinstance(entry, str) else entry
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    def estimate(self, request: Request) -> int:
        return estimate_tokens(request)

    def _entry(self, request: Request) -> str | Reply | Exception:
        if self._by_round and request.round <= len(self.queue):
            return self.queue[request.round - 1]
        if not self._by_round and self.queue:
            return self.queue.popleft()
        held = len(self.queue) if self._by_round else len(self.history) - 1
        raise ScriptExhausted(
            f"the script is over: it holds {held} repl{'y' if held == 1 else 'ies'}, call {request.round} asks for another",
            hint="add replies to the script, or bound the run with --rounds",
        )


def _json_script(path: Path, text: str) -> list[str | Reply | Exception]:
    hint = 'expected a list of texts and objects like {"source": "...", "rationale": "..."}'
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProviderMisused(f"--llm scripted:{path} is not JSON: {error}", hint=hint) from error
    if not isinstance(entries, list):
        raise ProviderMisused(f"--llm scripted:{path} holds a {type(entries).__name__}", hint=hint)
    replies: list[str | Reply | Exception] = []
    for number, entry in enumerate(entries, 1):
        try:
            replies.append(entry if isinstance(entry, str) else ScriptedReply.model_validate(entry).reply())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the entry"
            raise ProviderMisused(
                f"--llm scripted:{path}, reply {number}: {where}: {first['msg']}", hint=hint
            ) from error
    return replies
