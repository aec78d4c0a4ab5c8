"""Text of a candidate made harmless before it enters a record: one rule, whoever shows the record later.

    plain    one text: what a terminal or a JSON encoder could trip over becomes its escape, and a limit holds
    cleaned  the same through a whole gate record

A message quotes what a candidate wrote: a name, an assertion, what it printed. Control characters would steer a terminal (clear
it, rename it, write a line that looks like ours), invisible ones would hide text, lone surrogates cannot be encoded at all.
`tracer.py` cleans what a candidate says before anybody sees it, the judge cleans every gate's record once more.
"""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from ..records import GateRecord

REASON_CHARS = 4000
EVIDENCE_CHARS = 1 << 16
"""Of one text in the evidence."""


def plain(text: str, *, lines: bool = False, most: int = REASON_CHARS) -> str:
    """Printable characters as they are, the others as `repr` spells them. `lines` keeps line ends and tabs: our own texts have them."""
    kept = text[:most]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() or (lines and c in "\n\t") else repr(c)[1:-1] for c in kept)[:most]
    return kept + "…" if len(text) > most else kept


def cleaned(record: GateRecord) -> GateRecord:
    """The record with every text plain. Line ends stay: a hint of `coda` or the tail of a log has them."""
    evidence: Any = _cleaned(record.evidence)
    return record.model_copy(update={"reason": plain(record.reason, lines=True), "evidence": evidence})


def _cleaned(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return plain(value, lines=True, most=EVIDENCE_CHARS)
    if isinstance(value, list):
        return [_cleaned(x) for x in value]
    if isinstance(value, dict):
        return {plain(name): _cleaned(x) for name, x in value.items()}
    return value
