"""What an author is told about its last reply: records for the next prompt, never errors for the person.

    Feedback         the union: UnusableReply, RepeatedSource, Refused, Passed
    refused, passed  a verdict as feedback
    speed            what `bench` measured, as far as an author may know it

**Failure classes only.** An author learns which gate refused, the status word, a trace error in full (message, hint, its own
line), and of wrong values the class: which output, what pattern ("the sign is flipped"), how large, how much of it. Seeds,
sizes drawn for the run, inputs and expected values stay with the judge: evidence is read here key by key (an allow list), and
free text of a numerical gate has its numbers masked. Neighbours: `prompting` renders these; `loop` makes them; `records` has
the verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from .llm.protocol import ProblemKind
from .records import GateName, GateRecord, Status, Verdict

MAX_CLASSES = 8
_PLACES = {"where": "sizes", "distribution": "values"}
_NUMBER = re.compile(r"(?<![A-Za-z_0-9.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class UnusableReply(_Record):
    """The reply held no kernel."""

    kind: Literal["unusable"] = "unusable"
    problem: ProblemKind
    message: str


class RepeatedSource(_Record):
    """The same file and schedule as an earlier attempt; its verdict stands."""

    kind: Literal["repeated"] = "repeated"
    of: int
    passed: bool


class Refused(_Record):
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


class Timing(_Record):
    """One benchmark shape."""

    shape: str
    us: float
    floor_us: float | None
    peers: tuple[tuple[str, float], ...]
    """Name and microseconds, fastest first."""
    verdict: str = ""

    @property
    def floor_fraction(self) -> float | None:
        """1 is as fast as physics allows."""
        return self.floor_us / self.us if self.floor_us and self.us > 0 else None


class Passed(_Record):
    """Every required gate passed; how fast it is, where that was measured."""

    kind: Literal["passed"] = "passed"
    attempt: int
    status: Status
    timings: tuple[Timing, ...]
    goal: float | None
    schedule: tuple[tuple[str, str], ...] = ()
    """What it ran with, where recorded."""


Feedback = UnusableReply | RepeatedSource | Refused | Passed


def refused(attempt: int, verdict: Verdict) -> Refused:
    """The feedback of a verdict whose first failure is set."""
    assert verdict.first_failure is not None
    gate = verdict.gate(verdict.first_failure)
    messages, line = _messages(gate)
    return Refused(
        attempt=attempt,
        gate=gate.name,
        status=gate.status,
        passed=tuple(g.name for g in verdict.gates if g.status.good),
        messages=messages,
        line=line,
        classes=tuple(dict.fromkeys(_classes(gate)))[:MAX_CLASSES],
    )


def passed(attempt: int, verdict: Verdict, goal: float | None) -> Passed:
    """The feedback of a pass."""
    bench = verdict.gate("bench")
    schedule = bench.evidence.get("schedule")
    items = sorted(schedule.items()) if isinstance(schedule, dict) else []
    return Passed(
        attempt=attempt,
        status=verdict.status,
        timings=tuple(_timings(bench)),
        goal=goal,
        schedule=tuple((str(k), str(v)) for k, v in items),
    )


def floor_fraction(verdict: Verdict) -> float | None:
    """Geometric mean over the benchmark shapes of floor over time; None where bench has none."""
    found = [t.floor_fraction for t in _timings(verdict.gate("bench"))]
    known = [f for f in found if f is not None and f > 0]
    if not known or len(known) < len(found):
        return None
    return math.exp(sum(math.log(f) for f in known) / len(known))


def _messages(gate: GateRecord) -> tuple[tuple[str, ...], int | None]:
    match gate.name:
        case "static":
            return _findings(gate)
        case "trace":
            return _trace_error(gate)
        case "compile" | "bench":
            return (gate.reason,), None
        case "algebra" | "numerics":
            return (() if _failures(gate) else (mask(gate.reason),)), None


def _findings(gate: GateRecord) -> tuple[tuple[str, ...], int | None]:
    found = [f for f in _list(gate.evidence.get("findings")) if "message" in f]
    lines = [f"{f.get('rule', '')} line {f.get('line', '?')}: {f['message']}".strip() for f in found]
    first = found[0].get("line") if len(found) == 1 else None
    return (tuple(lines) or (gate.reason,)), first if isinstance(first, int) else None


def _trace_error(gate: GateRecord) -> tuple[tuple[str, ...], int | None]:
    """The error as `coda` words it, or what differs from the task's interface."""
    error = gate.evidence.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        text, hint, line = str(error["message"]), error.get("hint"), error.get("line")
        if isinstance(hint, str) and hint not in text:
            text += f"\n  hint: {hint}"
        return (f"{error.get('code', 'error')}: {text}",), line if isinstance(line, int) else None
    differs = tuple(str(m["message"]) for m in _list(gate.evidence.get("interface")) if "message" in m)
    return (differs or (gate.reason,)), None


def _classes(gate: GateRecord) -> Iterator[str]:
    """One line per failing output and pattern, without any value of the run."""
    for failure in _failures(gate):
        output, text = failure.get("output"), failure.get("text")
        if not isinstance(text, str):
            continue
        details = [f"error {failure['magnitude']} of its size"] if failure.get("magnitude") else []
        fraction = failure.get("fraction")
        if isinstance(fraction, (int, float)) and 0 < fraction <= 1:
            details.append(f"{100 * fraction:.0f} % of the elements")
        seen = {
            key: str(failure[key]) for key in ("where", "distribution", "dtype") if isinstance(failure.get(key), str)
        }
        places = [f"{seen[key]} {what}" for key, what in _PLACES.items() if key in seen] + (
            [seen["dtype"]] if "dtype" in seen else []
        )
        details += [f"seen at {', '.join(places)}"] if places else []
        yield f"output `{output}`: {text}" + (f" ({'; '.join(details)})" if details else "")


def _failures(gate: GateRecord) -> list[Mapping[str, Any]]:
    """Failures with a pattern; those of `numerics` are kept per backend."""
    found: list[Mapping[str, Any]] = []
    if gate.name in ("algebra", "numerics"):
        backends = gate.evidence.get("backends")
        places = [gate.evidence, *(backends.values() if isinstance(backends, dict) else ())]
        for place in places:
            found += _list(place.get("failures")) if isinstance(place, dict) else []
    return [f for f in found if isinstance(f.get("text"), str)]


def _timings(bench: GateRecord) -> Iterator[Timing]:
    if not bench.status.good:
        return
    for row in _list(bench.evidence.get("rows")):
        us, floor = row.get("us"), row.get("floor_us")
        if not isinstance(us, (int, float)) or us <= 0:
            continue
        peers = row.get("peers")
        known = (
            {str(k): float(v) for k, v in peers.items() if isinstance(v, (int, float))}
            if isinstance(peers, dict)
            else {}
        )
        yield Timing(
            shape=str(row.get("shape", "?")),
            us=float(us),
            floor_us=float(floor) if isinstance(floor, (int, float)) else None,
            peers=tuple(sorted(known.items(), key=lambda item: item[1])),
            verdict=str(row.get("verdict", "")),
        )


def _list(value: object) -> list[Mapping[str, Any]]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def mask(text: str) -> str:
    """Text without its numbers, which may be sizes or values of the run; names such as float32 stay."""
    return _NUMBER.sub("#", text)
