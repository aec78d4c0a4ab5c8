"""What an author is told about its last reply: records for the next prompt, never errors for the person.

    UnusableReply    the reply held no kernel
    RepeatedSource   it held one that was judged before
    Refused          a gate refused it
    Passed           it is right; how fast it is, where that was measured

**Failure classes only.** An author learns which gate refused, the status word, a trace error in full (message, hint, its own line),
and of wrong values the class. Seeds, sizes drawn for the run, inputs and expected values stay with the judge.
Neighbours: `outcome` makes the last two from a verdict, `prompt` renders all four.
"""

from __future__ import annotations

from typing import Literal

from ..llm.protocol import ProblemKind
from ..records import GateName, Record, Status


class UnusableReply(Record):
    """The reply held no kernel."""

    kind: Literal["unusable"] = "unusable"
    problem: ProblemKind
    message: str


class RepeatedSource(Record):
    """The same file and schedule as an earlier attempt; its verdict stands."""

    kind: Literal["repeated"] = "repeated"
    of: int
    passed: bool


class Refused(Record):
    """A gate refused."""

    kind: Literal["refused"] = "refused"
    attempt: int
    gate: GateName
    status: Status
    passed: tuple[GateName, ...]
    """Gates before it."""
    messages: tuple[str, ...]
    """Static findings, or the trace error in full, or the toolchain's words. Quoted when shown."""
    line: int | None = None
    """Of the candidate's file, where the error is."""
    classes: tuple[str, ...] = ()
    """Of wrong values: one line each."""


class Timing(Record):
    """One benchmark shape."""

    shape: str
    us: float
    floor_us: float | None
    peers: tuple[tuple[str, float], ...]
    """Name and microseconds, fastest first."""
    verdict: str = ""
    backends: tuple[tuple[str, float], ...] = ()
    """The kernel on each backend, with its tile, and microseconds; fastest first."""
    empty: tuple[tuple[str, float], ...] = ()
    """What the same GEMM takes without the epilogue: on the tiles of each backend, and from the vendor."""
    schedule: tuple[tuple[str, str], ...] = ()
    """Program and the fields of its schedule that differ from the default."""

    @property
    def floor_fraction(self) -> float | None:
        """1 is as fast as physics allows."""
        return self.floor_us / self.us if self.floor_us and self.us > 0 else None


class Passed(Record):
    """Every required gate passed; how fast it is, where that was measured."""

    kind: Literal["passed"] = "passed"
    attempt: int
    status: Status
    timings: tuple[Timing, ...]
    goal: float | None
    resources: tuple[str, ...] = ()
    """Registers and spills of each program on each backend, compiled for the first benchmark size."""


Feedback = UnusableReply | RepeatedSource | Refused | Passed
