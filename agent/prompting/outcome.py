"""A verdict as feedback for its author, and as a figure for the loop.

    refused, passed    what may be told of a verdict
    measured           the same of a kernel that was kept, from its records
    floor_fraction     how near it comes to the speed that no kernel can beat

Evidence is read key by key (an allow list): `agent.verify.feedback` words static findings and the classes of wrong values, the error
of tracing is passed on in full, and free text of a numerical gate has its numbers masked, since they may be sizes or
values of the run. Neighbours: `feedback` has the records, `agent.authoring` uses these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coda.bench import empty
from coda.bench.record import KERNELS, BenchRecord
from coda.problem import Schedule

from ..records import GateRecord, Status, Verdict
from ..verify.feedback import digest
from .feedback import Passed, Refused, Timing

_NUMBER = re.compile(r"(?<![A-Za-z_0-9.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def refused(attempt: int, verdict: Verdict) -> Refused:
    """The feedback of a verdict with a failed gate."""
    assert verdict.first_failure is not None
    gate = verdict.gate(verdict.first_failure)
    messages: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    line: int | None = None
    match gate.name:
        case "static":
            messages, line = digest(verdict).findings, _line(gate)
        case "trace":
            messages, line = _trace_error(gate)
        case "compile":
            messages = digest(verdict).findings
        case "bench":
            messages = (mask(gate.reason),)
        case "algebra" | "numerics":
            if any(failure.get("output") for failure in _failures(gate)):
                classes = digest(verdict).findings
            else:
                messages = (mask(gate.reason),)
    return Refused(
        attempt=attempt,
        gate=gate.name,
        status=gate.status,
        passed=tuple(g.name for g in verdict.gates if g.status.good),
        messages=messages,
        line=line,
        classes=classes,
    )


def passed(attempt: int, verdict: Verdict, goal: float | None) -> Passed:
    """The feedback of a pass."""
    return measured(_records(verdict), goal, verdict.gate("compile").evidence, attempt=attempt, status=verdict.status)


def measured(
    records: Sequence[BenchRecord],
    goal: float | None,
    compiled: Mapping[str, Any],
    *,
    attempt: int = 0,
    status: Status = Status.PASS,
) -> Passed:
    """The feedback of a right kernel with these records, and this evidence of the gate `compile`; attempt 0 was made before the run."""
    several = len({r.environment.get("gpu") for r in records}) > 1
    return Passed(
        attempt=attempt,
        status=status,
        timings=tuple(_timing(r, gpu=several) for r in records),
        goal=goal,
        resources=tuple(_resources(compiled)),
    )


def _resources(compiled: Mapping[str, Any]) -> Iterator[str]:
    backends = compiled.get("backends")
    for backend, said in backends.items() if isinstance(backends, dict) else ():
        for built in _list(said.get("built") if isinstance(said, dict) else None):
            if built.get("shape") == "benchmark" and built.get("registers") is not None:
                tile = _tile({"": built.get("schedule")})
                yield (
                    f"{built.get('name')}, {backend}{tile}: {built['registers']} registers per thread,"
                    f" {built.get('spills') or 0} bytes spilled"
                )


def floor_fraction(verdict: Verdict) -> float | None:
    """Geometric mean over the benchmark shapes of the floor's time over the kernel's; None where bench did not run."""
    found = [t.floor_fraction for t in map(_timing, _records(verdict))]
    known = [f for f in found if f is not None and f > 0]
    if not known or len(known) < len(found):
        return None
    return math.exp(sum(math.log(f) for f in known) / len(known))


def mask(text: str) -> str:
    """Text without its numbers, which may be sizes or values of the run; names such as float32 stay."""
    return _NUMBER.sub("#", text)


# static and trace: the author's own file -------------------------------------------------------------------


def _line(gate: GateRecord) -> int | None:
    """Of the static gate's only finding: with several, each names its own."""
    found = _list(gate.evidence.get("findings"))
    line = found[0].get("line") if len(found) == 1 else None
    return line if isinstance(line, int) else None


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


def _failures(gate: GateRecord) -> Iterator[Mapping[str, Any]]:
    """Those of `numerics` are kept per backend."""
    yield from _list(gate.evidence.get("failures"))
    backends = gate.evidence.get("backends")
    for said in backends.values() if isinstance(backends, dict) else ():
        if isinstance(said, dict):
            yield from _list(said.get("failures"))


def _list(value: object) -> list[Mapping[str, Any]]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


# speed ------------------------------------------------------------------------------------------------------------------


def _records(verdict: Verdict) -> list[BenchRecord]:
    """The benchmark records of a passed bench gate, one per shape."""
    bench = verdict.gate("bench")
    if not bench.status.good:
        return []
    found = [shape["record"] for shape in _list(bench.evidence.get("shapes")) if isinstance(shape.get("record"), dict)]
    return [BenchRecord.from_json(json.dumps({**record, "format": "coda.bench/1"})) for record in found]


def _timing(record: BenchRecord, *, gpu: bool = False) -> Timing:
    peers = {c.peer: record.of(c.variant or c.peer).median * 1e6 for c in record.compared}
    mine = {f"{m.name}{_tile(m.config)}": m.median * 1e6 for m in record.measured if m.author in KERNELS}
    ceilings = {empty.label(m.name): m.name for m in record.measured} | {"cublas": "cublas"}
    bare = {ceilings[m.name]: m.median * 1e6 for m in record.measured if m.name in ceilings}
    where = f" on {record.environment.get('gpu', 'an unknown GPU')}" if gpu else ""
    return Timing(
        shape=" ".join(f"{name}={length}" for name, length in record.dims.items()) + where,
        us=record.of(record.kernel).median * 1e6,
        floor_us=record.floor.seconds * 1e6,
        peers=tuple(sorted(peers.items(), key=lambda item: item[1])),
        verdict="SUSPECT" if record.suspicion else record.best_peer.word if record.best_peer else "",
        backends=tuple(sorted(mine.items(), key=lambda item: item[1])),
        empty=tuple(sorted(bare.items(), key=lambda item: item[1])),
        schedule=tuple((str(name), _chosen(value)) for name, value in record.of(record.kernel).config.items()),
    )


def _chosen(schedule: Any) -> str:
    """The backend, and what differs from the default."""
    if not isinstance(schedule, Mapping):
        return json.dumps(schedule)
    usual = Schedule().to_dict()
    return json.dumps({k: v for k, v in schedule.items() if k == "backend" or usual.get(k) != v})


def _tile(config: Mapping[str, Any]) -> str:
    """Of the only program of a kernel."""
    (schedule,) = config.values() if len(config) == 1 else ({},)
    if not isinstance(schedule, Mapping) or not {"tile_m", "tile_n"} <= schedule.keys():
        return ""
    return f" {schedule['tile_m']}×{schedule['tile_n']}{' ping-pong' if schedule.get('pingpong') else ''}"
