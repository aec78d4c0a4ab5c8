"""What happens in a run, as records: the lines of `events.jsonl`, what a progress display is told, and the last word.

    Event      the union of everything that can happen, told apart by `kind`
    Decision   what the loop does next and why; made by `agent/authoring/policy.py`, recorded as `Decided`
    Best       the best attempt so far
    Summary    the last word of a run: `summary.json`

A run is re-derivable: an event that concerns a model call carries its number, and `key` is the same when the same thing
happens again on resume, so that the store writes it once. Neighbours: `store` appends them, `agent.authoring.loop` makes them.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from ..llm.protocol import ProblemKind, Usage
from ..records import GateName, Record, Status

StopReason = Literal[
    "goal",
    "rounds",
    "cost",
    "tokens",
    "time",
    "no_usable_reply",
    "refused",
    "stuck",
    "unproven",
    "suspect",
    "invalid_spec",
    "infrastructure",
    "llm_error",
    "interrupted",
]
"""Why a run ended. `stuck`: the same candidate came again and again. `unproven`: something that the goal needs could not be
found out on this machine (a required gate, or speed)."""

Action = Literal["ask", "retry", "retry_plainly", "repair", "optimise", "judge_again", "stop"]


class Decision(Record):
    """What is done next. `stop` is set exactly for the action of that name."""

    action: Action
    reason: str
    stop: StopReason | None = None


class _Event(Record):
    at: datetime.datetime | None = None
    """Set by the store."""
    elapsed_s: float = Field(default=0.0, ge=0)
    """Of the run so far, all its sessions together."""

    @property
    def key(self) -> str | None:
        """Equal keys are one happening, recorded once; None for what may happen any number of times."""
        number = getattr(self, "call", None)
        kind: str = self.kind  # type: ignore[attr-defined]
        return None if number is None else f"{kind}/{number}"


class Started(_Event):
    """A run begins."""

    kind: Literal["started"] = "started"
    task: str
    llm: str
    model: str | None
    """The model that is asked for; None where the provider decides, and the replies say who answered."""
    shown: tuple[str, ...]
    """Ids of the examples in the prompt."""
    withheld: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.kind


class Resumed(_Event):
    """A run goes on after an interruption."""

    kind: Literal["resumed"] = "resumed"
    replies: int
    """Replies on disk, which are not asked for again."""
    verdicts: int


class Warned(_Event):
    """Something a person should know; the run goes on."""

    kind: Literal["warned"] = "warned"
    call: int | None = None
    message: str

    @property
    def key(self) -> str | None:
        return None if self.call is None else f"warned/{self.call}/{self.message}"


class Asked(_Event):
    """A model call begins. Recorded each time, so that a call whose reply was lost is still accounted for."""

    kind: Literal["asked"] = "asked"
    call: int
    round: int
    prompt_sha: str
    input_tokens: int
    """Estimate, on the high side."""
    reserved_usd: float | None
    """Set aside for it: None where the price is not known, 0 where nothing is billed."""

    @property
    def key(self) -> None:
        return None


class Replied(_Event):
    """A reply came, usable or not."""

    kind: Literal["replied"] = "replied"
    call: int
    round: int
    model: str
    stop_reason: str
    usage: Usage
    billed: bool
    cost_usd: float | None
    reused: bool = False
    """Read from the run's folder, not asked for again."""


class ReplyUnusable(_Event):
    """The reply held no kernel, for one of several distinct reasons."""

    kind: Literal["reply_unusable"] = "reply_unusable"
    call: int
    round: int
    problem: ProblemKind
    message: str
    category: str | None = None
    """Of a refusal, where the provider said."""


class CallFailed(_Event):
    """No reply could be had; the run stops."""

    kind: Literal["call_failed"] = "call_failed"
    call: int
    code: str
    message: str
    spent: Usage

    @property
    def key(self) -> None:
        return None


class Judging(_Event):
    """A candidate goes through the gates."""

    kind: Literal["judging"] = "judging"
    call: int
    round: int
    source_sha256: str


class Judged(_Event):
    """A candidate has its verdict."""

    kind: Literal["judged"] = "judged"
    call: int
    round: int
    status: Status
    gates: tuple[tuple[GateName, Status], ...]
    first_failure: GateName | None
    digest: str | None
    floor_fraction: float | None = None
    """Physical floor over measured time, where bench ran: 1 is as fast as can be."""
    reused: bool = False
    """Read from the run's folder, not judged again."""

    @property
    def key(self) -> str:
        return f"judged/{self.call}/{self.status}"  # a candidate is judged again after a failure of the machine


class Repeated(_Event):
    """A candidate that was judged before in this run came again; its verdict stands."""

    kind: Literal["repeated"] = "repeated"
    call: int
    round: int
    of: int
    """The call whose candidate it repeats."""


class Decided(_Event):
    """What the loop does next."""

    kind: Literal["decided"] = "decided"
    call: int
    round: int
    decision: Decision

    @property
    def key(self) -> str:
        return f"decided/{self.call}/{self.decision.action}/{self.decision.stop}"


class Kept(_Event):
    """A passing kernel was kept."""

    kind: Literal["kept"] = "kept"
    call: int
    id: str
    path: str
    same_program: bool
    """An equal program was kept already, and nothing new was written."""


class Stopped(_Event):
    """The run, or this session of it, is over."""

    kind: Literal["stopped"] = "stopped"
    stop: StopReason
    reason: str


Event = Annotated[
    Started
    | Resumed
    | Warned
    | Asked
    | Replied
    | ReplyUnusable
    | CallFailed
    | Judging
    | Judged
    | Repeated
    | Decided
    | Kept
    | Stopped,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads a line of `events.jsonl`."""


class Best(Record):
    """The best attempt so far: a pass before any failure, then the faster, then the one that got further."""

    call: int
    passed: bool
    status: Status
    gates_passed: int
    first_failure: GateName | None
    digest: str | None
    floor_fraction: float | None = None


class KeptKernel(Record):
    """Where the best passing kernel is."""

    id: str
    path: str
    same_program: bool


class Summary(Record):
    """The last word of a run."""

    schema_name: Literal["coda-agent/summary/1"] = Field(default="coda-agent/summary/1", alias="schema")
    run: str
    task: str
    stop: StopReason
    reason: str
    """Of the stop, for the person."""
    passed: bool
    goal_met: bool
    best: Best | None
    kept: KeptKernel | None
    rounds: int
    calls: int
    judged: int
    usage: Usage
    """Of all replies and failed calls."""
    cost_usd: float | None
    """Billed so far; None where the price of a billed reply is not known."""
    at_risk_usd: float = 0.0
    """Reserved for calls whose reply was lost (the process was killed): may have been billed too."""
    elapsed_s: float
    models: tuple[str, ...]
    """Who answered, as reported."""
    warnings: tuple[str, ...] = ()
    error: dict[str, str] | None = None
    """code, message and hint of what stopped the run, where it was an error."""

    model_config = ConfigDict(populate_by_name=True)

    @property
    def exit_code(self) -> int:
        """For the command line: 0 goal met, 130 interrupted, 3 finished without it. Errors are raised instead."""
        if self.stop == "interrupted":
            return 130
        return 0 if self.goal_met else 3
