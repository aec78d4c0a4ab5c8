"""What is asked of a language model and what comes back. Every provider beside this file speaks it; nothing else does
I/O.

A `Request` is laid out for prompt caching: `system` is the same text for every round of every task (guide, primitive
reference, examples), `task` is the same for every round of one run, `turns` grow. Its `round` numbers the *model
calls* of one run from 1, and names the files `requests/NNN.json` and `replies/NNN.json`: a retry of a refused prompt
is a call, and a number, of its own.

A `Reply` carries a `submission`, or the `problem` that kept one from being found, never both and never neither.
All of it is frozen and survives a round trip through JSON. Text is checked to be valid Unicode at this border, so that
nothing behind it can fail while writing a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from ..records import Record
from ..settings import Effort

UNKNOWN_MODEL = "unknown"
"""Recorded as the model when nobody said who answered."""

MAX_SOURCE_BYTES = 64 * 1024
"""Largest kernel source, in UTF-8 bytes: the static gate's figure, which a test compares."""

TRUNCATED = frozenset({"max_tokens", "model_context_window_exceeded"})
REFUSED = "refusal"

OnText = Callable[[str], None]
"""Called with each fragment as it streams in (prose and tool input alike): for a progress display, nothing else."""

ProblemKind = Literal[
    "empty_reply",
    "no_code",
    "no_kernel",
    "syntax_error",
    "invalid_text",
    "too_large",
    "bad_tool_input",
    "truncated",
    "refused",
]


def clean_text(text: str) -> str:
    """The text with lone surrogates spelled as escapes: they cannot be written to a UTF-8 file."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _require_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"lone surrogate {text[error.start]!r} at offset {error.start}: not valid Unicode text"
        ) from None
    return text


class Message(Record):
    """One turn after the task."""

    role: Literal["user", "assistant"]
    text: str

    _text = field_validator("text")(_require_text)


class Request(Record):
    """One call of a model."""

    system: str
    """Stable prefix: guide, reference, examples. Byte-identical in all rounds."""
    task: str
    """What to write. The same in all rounds of a run."""
    turns: tuple[Message, ...] = ()
    """The model's previous replies and the feedback on them, oldest first. The last one is the user's."""
    round: int = Field(default=1, ge=1)
    """Number of this model call in the run, from 1."""
    model: str
    max_tokens: int = Field(default=32_000, ge=1)
    """Longest reply, thinking included."""
    effort: Effort | None = None

    _text = field_validator("system", "task")(_require_text)

    @model_validator(mode="after")
    def _ends_with_the_user(self) -> Self:
        # A final assistant turn is a prefill, which recent models refuse.
        if self.turns and self.turns[-1].role != "user":
            raise ValueError("the last turn must be the user's")
        if not self.task.strip():
            raise ValueError("the task is empty")
        return self

    @property
    def prompt_sha(self) -> str:
        """SHA-256 over what the model reads. Model, limits and round do not count."""
        parts = {"system": self.system, "task": self.task, "turns": [[t.role, t.text] for t in self.turns]}
        canonical = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Price(Record):
    """US dollars per million tokens, with the factors for the prompt cache."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    write_5m: float = 1.25
    write_1h: float = 2.0
    read: float = 0.1


class Usage(Record):
    """Tokens of one reply, in the classes that are billed differently. `input_tokens` excludes everything cached."""

    input_tokens: int = Field(default=0, ge=0)
    cache_write_5m: int = Field(default=0, ge=0)
    cache_write_1h: int = Field(default=0, ge=0)
    cache_read: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    """Thinking included."""

    @property
    def total_input(self) -> int:
        return self.input_tokens + self.cache_write_5m + self.cache_write_1h + self.cache_read

    @property
    def total(self) -> int:
        return self.total_input + self.output_tokens

    def cost_usd(self, price: Price | None) -> float | None:
        """Cost, or None where the price is not known. A failed lookup is never a cost of zero."""
        if price is None:
            return None
        weighted = (
            self.input_tokens
            + price.write_5m * self.cache_write_5m
            + price.write_1h * self.cache_write_1h
            + price.read * self.cache_read
        )
        return (price.input * weighted + price.output * self.output_tokens) / 1e6

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields})


class Submission(Record):
    """A kernel that somebody wants judged."""

    source: str
    """The kernel file: valid UTF-8, at most 64 kB. Not yet known to parse when it came through the tool."""
    rationale: str = ""
    schedule: dict[str, Any] | None = None
    """How to run it, as submitted; validated by whoever uses it."""

    _text = field_validator("source", "rationale")(_require_text)

    @field_validator("source")
    @classmethod
    def _bounded(cls, source: str) -> str:
        size = len(source.encode())
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"source is {size} bytes, at most {MAX_SOURCE_BYTES}")
        return source


class Problem(Record):
    """Why a reply holds no submission."""

    kind: ProblemKind
    message: str
    """For the model, in the next prompt: what was wrong and what to do."""

    _text = field_validator("message")(_require_text)


class StopDetails(Record):
    """What the provider said about a refusal."""

    category: str | None = None
    explanation: str | None = None


class Reply(Record):
    """What came back from one call."""

    text: str
    """Prose of the reply, and its code when it was sent as text. Lone surrogates are spelled as escapes."""
    submission: Submission | None = None
    problem: Problem | None = None
    """Set exactly when there is no submission."""
    stop_reason: str = "end_turn"
    stop_details: StopDetails | None = None
    model: str = UNKNOWN_MODEL
    """Id of the model that answered, as the provider reported it."""
    usage: Usage = Usage()
    """All tokens of the call, lost attempts included."""
    billed: bool = False
    """Whether `usage` was paid for now. A replayed or hand-written reply costs nothing."""
    request_id: str | None = None
    provider: str
    notes: tuple[str, ...] = ()
    """Events to record and show: a restarted stream, prompt drift, a schedule that was ignored."""

    _text = field_validator("text")(_require_text)

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if (self.submission is None) == (self.problem is None):
            raise ValueError("a reply has either a submission or a problem")
        return self

    @property
    def truncated(self) -> bool:
        """The reply was cut off by a length limit."""
        return self.stop_reason in TRUNCATED

    @property
    def refused(self) -> bool:
        """The model declined; `stop_details.category` says on what grounds, if it does."""
        return self.stop_reason == REFUSED


class LLM(Protocol):
    """Whoever answers requests."""

    @property
    def name(self) -> str:
        """As in `--llm` and in records: `anthropic`, `replay`, `folder`, `scripted`."""

    def complete(self, request: Request, on_text: OnText | None = None) -> Reply:
        """Answer, or raise an `agent.errors.LLMError`. Never returns a made-up reply."""

    def estimate(self, request: Request) -> int:
        """Input tokens of the request, on the high side; reserve this plus `max_tokens` before calling."""


def estimate_tokens(request: Request) -> int:
    """A bound without any tokenizer. Code runs at 3 to 4 bytes per token; 2.5 leaves room for the tool."""
    texts = [request.system, request.task, *(turn.text for turn in request.turns)]
    return 600 + sum(2 * len(text.encode()) // 5 + 8 for text in texts)
