"""Verdicts: what may be recorded and what may not."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from pydantic import ValidationError

from agent.records import GATES, Environment, GateRecord, Status, Verdict, overall

pytestmark = pytest.mark.null


def ran(name: Any, status: Status = Status.PASS, **evidence: Any) -> GateRecord:
    reason = "" if status is Status.PASS else "because"
    return GateRecord(name=name, status=status, reason=reason, evidence=evidence or {"cases": 3}, seconds=0.5)


def absent(name: Any, reason: str = "no GPU") -> GateRecord:
    return GateRecord.not_run(name, reason)


def all_passed(bench: GateRecord | None = None) -> list[GateRecord]:
    return [*(ran(g) for g in GATES[:-1]), bench or absent("bench")]


def verdict(gates: list[GateRecord], **changes: Any) -> Verdict:
    failed = next((g.name for g in gates if g.status.refuses), None)
    known: dict[str, Any] = {
        "task": "t", "task_digest": "d", "source_sha256": "s", "program_digest": "p", "program_json": "{}", "kind": "epilogue",
        "gates": tuple(gates), "status": overall(tuple(gates)), "first_failure": failed, "seeds": {"algebra": 7},
        "environment": Environment.here(), "created": datetime.datetime.now(datetime.UTC),
    }  # fmt: skip
    return Verdict(**{**known, **changes})


def test_every_word_is_good_refusing_or_neither() -> None:
    assert {s for s in Status if s.good} == {Status.PASS, Status.NO_DIFFERENCE, Status.SLOWER}
    assert [s for s in Status if not s.good and not s.refuses] == [Status.NOT_RUN]


def test_a_gate_without_evidence_is_no_pass() -> None:
    for status in (Status.PASS, Status.WRONG_VALUES):
        with pytest.raises(ValidationError, match="without evidence"):
            GateRecord(name="algebra", status=status, reason="x")


def test_a_gate_that_did_not_run_has_a_reason_and_nothing_else() -> None:
    with pytest.raises(ValidationError, match="without a reason"):
        GateRecord(name="bench", status=Status.NOT_RUN)
    with pytest.raises(ValidationError, match="no evidence"):
        GateRecord(name="bench", status=Status.NOT_RUN, reason="no GPU", evidence={"us": 3})
    with pytest.raises(ValidationError, match="took no time"):
        GateRecord(name="bench", status=Status.NOT_RUN, reason="no GPU", seconds=1)


def test_a_refusal_says_why_and_numbers_are_numbers() -> None:
    with pytest.raises(ValidationError, match="without a reason"):
        GateRecord(name="algebra", status=Status.WRONG_VALUES, evidence={"cases": 1})
    with pytest.raises(ValidationError):
        GateRecord(name="algebra", status=Status.PASS, evidence={"cases": 1}, seconds=math.nan)
    with pytest.raises(ValidationError, match="word of bench"):
        ran("numerics", Status.SLOWER)


def test_the_first_refusal_decides_and_later_gates_did_not_run() -> None:
    gates = [
        ran("static"),
        ran("trace"),
        ran("algebra", Status.WRONG_VALUES),
        *(absent(g, "algebra failed") for g in GATES[3:]),
    ]
    found = verdict(gates)
    assert (found.status, found.first_failure, found.passed) == (Status.WRONG_VALUES, "algebra", False)
    assert [g.name for g in found.not_run] == ["compile", "numerics", "bench"]
    with pytest.raises(ValidationError, match="ran after algebra"):
        verdict([*gates[:3], ran("compile"), *gates[4:]])
    with pytest.raises(ValidationError, match="first_failure"):
        verdict(gates, first_failure=None)
    with pytest.raises(ValidationError, match="the status of these gates"):
        verdict(gates, status=Status.PASS)


def test_a_required_gate_that_did_not_run_is_never_a_pass() -> None:
    for missing in GATES[:-1]:
        found = verdict(
            [absent(g, "not asked for") if g == missing else ran(g) if g != "bench" else absent(g) for g in GATES]
        )
        assert found.status is Status.NOT_RUN
        assert not found.passed


def test_bench_adds_its_word_and_its_absence_takes_none_away() -> None:
    assert verdict(all_passed()).status is Status.PASS
    for word in (Status.NO_DIFFERENCE, Status.SLOWER):
        found = verdict(all_passed(ran("bench", word, shapes=[])))
        assert found.status is word
        assert found.passed
    assert not verdict(all_passed(ran("bench", Status.SUSPECT, shapes=[]))).passed


def test_speed_needs_right_numbers() -> None:
    gates = [absent("numerics", "not asked for") if g.name == "numerics" else g for g in all_passed(ran("bench"))]
    with pytest.raises(ValidationError, match="speed without right numbers"):
        verdict(gates)


def test_gates_are_complete_and_in_order() -> None:
    with pytest.raises(ValidationError, match="each once and in order"):
        verdict(all_passed()[:-1])
    with pytest.raises(ValidationError, match="each once and in order"):
        verdict(all_passed()[::-1])


def test_a_traced_candidate_has_a_program() -> None:
    with pytest.raises(ValidationError, match="come together"):
        verdict(all_passed(), program_json=None)
    with pytest.raises(ValidationError, match="without a program"):
        verdict(all_passed(), program_json=None, program_digest=None)
    with pytest.raises(ValidationError, match="time zone"):
        verdict(all_passed(), created=datetime.datetime(2026, 1, 1))


def test_json_round_trip_and_strictness() -> None:
    before = verdict(all_passed())
    assert Verdict.from_json(before.to_json()) == before
    assert '"schema": "coda-agent/verdict/1"' in before.to_json()
    with pytest.raises(ValidationError):
        Verdict.from_json(before.to_json().replace('"task":', '"tusk":'))
    with pytest.raises(ValidationError):
        Verdict.from_json(before.to_json().replace("verdict/1", "verdict/2"))
