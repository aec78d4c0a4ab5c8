"""What an author hears of a verdict: classes of failure, never what would let a wrong kernel fit the test.

    Feedback   gate, word, and findings in words
    digest     verdict -> feedback; a pure function of the record

Per output the commonest specific pattern is told with the order of its magnitude and the kind of inputs ("large values", "ragged
sizes") under which it fails; after a pass, which ways through the kernel no input took. Seeds, sizes, expected values, hidden
shapes, tracebacks and logs are not; quotes are cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ..records import GateRecord, Record, Status, Verdict

MAX_FINDINGS = 8
MAX_CHARS = 600
KINDS = {
    "large": "large values",
    "huge": "very large values",
    "small": "small values",
    "heavy": "heavy-tailed values",
    "extreme": "very large, very small or zero values",
    "number": "another value than the default of a number",
    "edge": "values next to a constant of the kernel",
    "integer": "integers that the kernel names",
    "size": "sizes that the kernel names",
}
VAGUE = ("values", "first of the rows", "first of the columns")
"""Patterns that are told only where nothing better is known."""


class Feedback(Record):
    """For the next prompt, and for a person who wonders."""

    gate: str | None
    """The gate that refused; None after a pass."""
    status: Status
    findings: tuple[str, ...] = Field(default=())
    passed: tuple[str, ...] = ()
    """Gates that were passed."""

    @property
    def text(self) -> str:
        """As the prompt has it."""
        if self.gate is None:
            lines = [f"{self.status}: passed {', '.join(self.passed) or 'nothing'}."]
        else:
            before = f" (passed: {', '.join(self.passed)})" if self.passed else ""
            lines = [f"{self.status} at gate {self.gate}{before}."]
        return "\n".join([*lines, *(f"- {f}" for f in self.findings)])


def digest(verdict: Verdict) -> Feedback:
    """What the author may know of a verdict."""
    passed = tuple(g.name for g in verdict.gates if g.status.good)
    failed = verdict.gate(verdict.first_failure) if verdict.first_failure else None
    if failed is None:
        findings = [f"{g.name} did not run: {g.reason}" for g in verdict.not_run]
        findings += [f"untested: {text}" for text in untested(verdict)]
        findings += _speed(verdict.gate("bench"))
    else:
        findings = _FINDERS.get(failed.name, _plain)(failed) or _plain(failed)
    return Feedback(
        gate=failed.name if failed else None,
        status=verdict.status,
        findings=tuple(_cut(f) for f in findings[:MAX_FINDINGS]),
        passed=passed,
    )


def untested(verdict: Verdict) -> list[str]:
    """Ways through the kernel that no judged input took, as the gate `algebra` found them: a reviewer reads the same."""
    found = verdict.gate("algebra").evidence.get("untested")
    return [str(text) for text in found] if isinstance(found, list) else []


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _plain(gate: GateRecord) -> list[str]:
    return [gate.reason]


def _static(gate: GateRecord) -> list[str]:
    findings = gate.evidence.get("findings")
    return [f"line {f['line']}: {f['message']} [{f['rule']}]" for f in findings] if isinstance(findings, list) else []  # type: ignore[index,call-overload]


def _trace(gate: GateRecord) -> list[str]:
    wrong = gate.evidence.get("interface")
    if isinstance(wrong, list) and wrong:
        return [str(w["message"]) for w in wrong]  # type: ignore[index,call-overload]
    return [gate.reason]


def _values(gate: GateRecord) -> list[str]:
    return told(gate.evidence.get("failures")) or [_without_numbers(gate.reason)]


def _numerics(gate: GateRecord) -> list[str]:
    backends = gate.evidence.get("backends")
    found = []
    for name, said in backends.items() if isinstance(backends, dict) else ():
        if isinstance(said, dict):
            found += [f"{name}: {line}" for line in told(said.get("failures"))]
    return found or [_without_numbers(gate.reason)]


def _compile(gate: GateRecord) -> list[str]:
    backends = gate.evidence.get("backends")
    found = []
    for name, said in backends.items() if isinstance(backends, dict) else ():
        if isinstance(said, dict) and said.get("status") not in ("PASS", "NOT_RUN"):
            found.append(f"{name}: {said.get('status')}: {str(said.get('reason'))[:400]}")
    return found


def _speed(gate: GateRecord) -> list[str]:
    shapes = gate.evidence.get("shapes")
    if not isinstance(shapes, list):
        return []
    found = []
    for shape in shapes:
        record = shape.get("record") if isinstance(shape, dict) else None
        if isinstance(record, dict):
            found.append(_speed_of(record))
    return found


def _speed_of(record: Mapping[str, Any]) -> str:
    """One benchmark shape (they are in the prompt already): time, floor, every peer."""
    mine = next(m for m in record["measured"] if m["name"] == record["kernel"])
    sizes = " ".join(f"{k}={v}" for k, v in record["dims"].items())
    floor = record["floor"]
    peers = ", ".join(
        f"{c['word']} than {c['peer']} ({c['ratio']:.3f}×)".replace("no difference than", "as fast as")
        for c in record["compared"]
    )
    return f"{sizes}: {mine['median'] * 1e6:.1f} µs, floor {floor['seconds'] * 1e6:.1f} µs ({floor['bound']}); {peers or 'no peer'}"


_FINDERS = {"static": _static, "trace": _trace, "algebra": _values, "numerics": _numerics, "compile": _compile}


def told(failures: Any) -> list[str]:
    """One line per failing output from a gate's failures."""
    if not isinstance(failures, Sequence):
        return []
    by_output: dict[str, list[Mapping[str, Any]]] = {}
    for failure in failures:
        if isinstance(failure, Mapping) and failure.get("output"):
            by_output.setdefault(str(failure["output"]), []).append(failure)
    return [*(_line(output, seen) for output, seen in by_output.items()), *_unnamed(by_output)]


def _unnamed(by_output: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Where some mistake has no name of its own: what is right, so that it can be looked for in what is not."""
    every = [f for seen in by_output.values() for f in seen]
    unnamed = [n for n, seen in by_output.items() if all(f.get("pattern") in (*VAGUE, "zeros") for f in seen)]
    known = [{str(x) for x in f["right"]} for f in every if isinstance(f.get("right"), list)]
    if not unnamed or not known:
        return []
    right = sorted(set[str]().union(*known) - by_output.keys())
    others = f"right so far: {', '.join(map(repr, right))}; " if right else "no output is right; "
    return [f"{others}check the formula of {' and of '.join(map(repr, unnamed))} term by term"]


def _line(output: str, seen: Sequence[Mapping[str, Any]]) -> str:
    counted = Counter(str(f.get("pattern", "")) for f in seen if f.get("pattern") not in VAGUE)
    best = counted.most_common(1)[0][0] if counted else None
    first = next((f for f in seen if f.get("pattern") == best), seen[0])
    text = str(first.get("text") or first.get("pattern") or first.get("status"))
    magnitude = (
        f", error {first['magnitude']} of its size" if str(first.get("magnitude", "")).startswith("about") else ""
    )
    return f"output {output!r}: {text}{magnitude}{_when(seen)}"


def _when(seen: Sequence[Mapping[str, Any]]) -> str:
    """Under which inputs, where that is not all of them."""
    distributions = {str(f.get("distribution", "normal")) for f in seen}
    places = {str(f.get("where", "")) for f in seen} - {""}
    found = []
    if "normal" not in distributions:
        found += [KINDS.get(d, d) for d in sorted(distributions)]
    if places and not places & {"smoke", "benchmark", "benchmark-like"}:
        found.append(_kind_of_sizes(places))
    dtypes = {str(f["dtype"]) for f in seen if f.get("dtype")}
    found += [f"in {d}" for d in sorted(dtypes)] if dtypes else []
    return f" (with {', '.join(found)})" if found else ""


def _kind_of_sizes(places: set[str]) -> str:
    if places <= {"long"}:
        return "many rows or columns only: no position and no size may be special"
    return "sizes that do not fill whole tiles" if places & {"ragged", "near", "far"} else "tiny sizes"


_SIZES = re.compile(r"\d+(?: ?[×x] ?\d+)+")
_NUMBER = re.compile(r"(?<![A-Za-z_0-9.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def _without_numbers(text: str) -> str:
    """A library's message without its numbers, which may be hidden sizes or values of the run; names as float32 stay."""
    return _NUMBER.sub("#", _SIZES.sub("#", text))
