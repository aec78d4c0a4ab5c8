"""Text that enters a record: nothing in it steers a terminal, hides, or cannot be encoded."""

from __future__ import annotations

import pytest

from agent.records import GateRecord, Status
from agent.verify.plain import EVIDENCE_CHARS, REASON_CHARS, cleaned, plain

pytestmark = pytest.mark.null

ODD = "\x1b]0;title\x07\x1b[2J\r\x9b31m\u202e\u200b\u2028\x7f\ud800\x00"


def test_what_is_printable_stays_and_the_rest_is_spelled() -> None:
    assert plain("μ·√x ≤ 1 — 変数 📍") == "μ·√x ≤ 1 — 変数 📍"
    assert plain(ODD) == r"\x1b]0;title\x07\x1b[2J\r\x9b31m\u202e\u200b\u2028\x7f\ud800\x00"
    assert plain("a\n\tb") == r"a\n\tb"
    assert plain("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert plain("x" * (REASON_CHARS + 1)) == "x" * REASON_CHARS + "…"
    assert len(plain("\ud800" * REASON_CHARS)) <= REASON_CHARS


def test_a_whole_record_is_cleaned_and_can_be_written() -> None:
    evidence = {"error": {"message": ODD, ODD: [1, None, [ODD, True]]}, "log_tail": "one\ntwo", "long": "x" * 10**6}
    record = GateRecord(
        name="trace", status=Status.RUNTIME_ERROR, reason=f"line 1: {ODD}\n  hint: y", evidence=evidence
    )
    found = cleaned(record)
    assert found.reason == f"line 1: {plain(ODD)}\n  hint: y"
    assert found.evidence["error"] == {"message": plain(ODD), plain(ODD): [1, None, [plain(ODD), True]]}
    assert found.evidence["log_tail"] == "one\ntwo"
    assert len(str(found.evidence["long"])) == EVIDENCE_CHARS + 1
    assert GateRecord.model_validate_json(found.model_dump_json()) == found
