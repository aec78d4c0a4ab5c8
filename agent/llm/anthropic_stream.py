"""One streamed message of the Anthropic API, event by event, into a `Reply`.

Imports no SDK: events are read by attribute. Neighbour: `anthropic` makes the request and owns retries and errors;
what a `Turn` counted is valid at any point, so the tokens of a stream that broke are known as well as they can be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .extract import read_reply, read_tool
from .protocol import (
    REFUSED,
    TRUNCATED,
    UNKNOWN_MODEL,
    OnText,
    Problem,
    Reply,
    Request,
    StopDetails,
    Submission,
    Usage,
    clean_text,
)

TOOL_NAME = "submit_kernel"
MAX_SCHEDULE_CHARACTERS = 4000

_MALFORMED = (
    "The input of `submit_kernel` could not be read ({why}). Call it again with `source`, `rationale` and `schedule`."
)


class StreamBroken(Exception):
    """The stream ended before its message did. Internal: `anthropic` restarts the turn or gives up."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Turn:
    """Accumulates one message. `started` tells a stream that broke from a request that failed."""

    def __init__(self, request: Request, on_text: OnText | None) -> None:
        self._request = request
        self._on_text = on_text
        self._texts: dict[int, list[str]] = {}
        self._tools: dict[int, list[str]] = {}
        self._received = 0
        self._complete = False
        self._counts: dict[str, int] = {}
        self._stop_reason: str | None = None
        self._stop_details: StopDetails | None = None
        self._model: str | None = None
        self.request_id: str | None = None
        self.started = False

    def begin(self, request_id: str | None) -> None:
        self.started = True
        self.request_id = request_id

    def feed(self, event: Any) -> None:
        match event.type:
            case "message_start":
                self._model = event.message.model
                self._count(event.message.usage)
            case "content_block_start":
                self._open(event.index, event.content_block)
            case "content_block_delta":
                self._add(event.index, event.delta)
            case "message_delta":
                self._stop(event)
            case "message_stop":
                self._complete = True
            case _:
                pass  # the ends of blocks, pings, and events added since: none of them carries a kernel

    def end(self) -> None:
        """The stream is over; a message that is not was cut off by the connection."""
        if not self._complete or self._stop_reason is None:
            raise StreamBroken("the stream ended in the middle of the message")

    def usage(self) -> Usage:
        """Tokens so far. Output of an unfinished message is estimated: its count comes with the last event."""
        output = self._counts.get("output_tokens", 0)
        if self._stop_reason is None:
            output = max(output, self._received // 3)
        written = self._counts.get("cache_creation_input_tokens", 0)
        short, long = self._counts.get("write_5m", 0), self._counts.get("write_1h", 0)
        # Writes that the API did not split by lifetime are taken for the dearer one.
        return Usage(
            input_tokens=self._counts.get("input_tokens", 0),
            cache_write_5m=short,
            cache_write_1h=max(long, written - short),
            cache_read=self._counts.get("cache_read_input_tokens", 0),
            output_tokens=output,
        )

    def reply(self, provider: str, *, lost: Usage, notes: Sequence[str]) -> Reply:
        """The complete message."""
        found = list(notes)
        text = "".join(part for index in sorted(self._texts) for part in self._texts[index])
        outcome = self._outcome(text, found)
        return Reply(
            text=clean_text(text),
            submission=outcome if isinstance(outcome, Submission) else None,
            problem=outcome if isinstance(outcome, Problem) else None,
            stop_reason=self._stop_reason or "end_turn",
            stop_details=self._stop_details,
            model=self._model or UNKNOWN_MODEL,
            usage=self.usage() + lost,
            billed=True,
            request_id=self.request_id,
            provider=provider,
            notes=tuple(found),
        )

    def _open(self, index: int, block: Any) -> None:
        if block.type == "text":
            self._texts[index] = []
            self._receive(index, block.text or "")
        elif block.type == "tool_use" and block.name == TOOL_NAME:
            self._tools[index] = []

    def _add(self, index: int, delta: Any) -> None:
        if delta.type == "text_delta":
            self._receive(index, delta.text)
        elif delta.type == "input_json_delta":
            self._receive(index, delta.partial_json)
        elif delta.type == "thinking_delta":
            self._received += len(delta.thinking)  # paid for, not kept

    def _receive(self, index: int, fragment: str) -> None:
        self._received += len(fragment)
        parts = self._texts.get(index, self._tools.get(index))
        if parts is None or not fragment:
            return
        parts.append(fragment)
        if self._on_text is not None:
            self._on_text(clean_text(fragment))

    def _stop(self, event: Any) -> None:
        self._stop_reason = event.delta.stop_reason
        details = getattr(event.delta, "stop_details", None)
        if details is not None:
            self._stop_details = StopDetails(
                category=getattr(details, "category", None), explanation=getattr(details, "explanation", None)
            )
        self._count(event.usage)

    def _count(self, usage: Any) -> None:
        """Counts in later events are totals, so they replace earlier ones; what is absent stays."""
        for name in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
            if (value := getattr(usage, name, None)) is not None:
                self._counts[name] = value
        split = getattr(usage, "cache_creation", None)
        if split is not None:
            self._counts["write_5m"] = getattr(split, "ephemeral_5m_input_tokens", None) or 0
            self._counts["write_1h"] = getattr(split, "ephemeral_1h_input_tokens", None) or 0

    def _outcome(self, text: str, notes: list[str]) -> Submission | Problem:
        if self._stop_reason == REFUSED:
            category = self._stop_details.category if self._stop_details else None
            return Problem(
                kind="refused", message=f"The model declined to answer (category: {category or 'not given'})."
            )
        truncated = self._stop_reason in TRUNCATED
        if not self._tools:
            return read_reply(text, truncated=truncated)
        outcome = _read_input("".join(self._tools[max(self._tools)]), notes)
        # A tool input that ends where the limit struck is a truncation, whatever else it looks like.
        return read_reply("", truncated=True) if truncated and isinstance(outcome, Problem) else outcome


def _read_input(raw: str, notes: list[str]) -> Submission | Problem:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return _malformed(f"not JSON: {error}")
    if not isinstance(data, dict) or not isinstance(data.get("source"), str):
        return _malformed("no `source`")
    rationale = data.get("rationale")
    schedule = _read_schedule(data.get("schedule"), notes)
    return read_tool(data["source"], rationale if isinstance(rationale, str) else "", schedule)


def _malformed(why: str) -> Problem:
    return Problem(kind="bad_tool_input", message=clean_text(_MALFORMED.format(why=why)))


def _read_schedule(value: object, notes: list[str]) -> dict[str, Any] | None:
    """A hint, so one that cannot be read is dropped with a note and the kernel is judged without it."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and len(value) <= MAX_SCHEDULE_CHARACTERS:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        notes.append("the submitted schedule is not a JSON object and was ignored")
        return None
    return value or None
