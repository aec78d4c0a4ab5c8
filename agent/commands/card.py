"""A kept kernel on one screen, for `show`: who wrote it and when, what the gates said, what it runs with, how fast it was, where its
files are.

    Card    everything that is known of one, read from its folder
    card    that of a kernel
    facts   as lines "name, text" for a person

A record that cannot be read is said and hides no other. Neighbours: `catalogue` shows it beside formula and source, `keeping` reads
the records; `--json` has them raw.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coda.errors import CodaError
from coda.problem import Schedule

from ..errors import KernelDamaged
from ..keeping import compare as comparing
from ..keeping import promote, reviews
from ..keeping.leaderboard import error_ratio
from ..keeping.scheduled import short
from ..keeping.shelves import Kept
from ..records import Status, Verdict
from . import render

FILES = (
    "kernel.py",
    "program.json",
    "schedule.json",
    "provenance.json",
    "verdict.json",
    "review.json",
    "REVIEW.md",
    "review.html",
    "promotion.json",
)
MEASURED = ("gpu", "shape", "dtype", "us", "floor", "cublas", "compiled", "best_peer", "schedule", "verdict")
"""Of a row of `compare`, without what the card says already."""


@dataclass(frozen=True)
class Card:
    """What is known of a kept kernel."""

    kept: Kept
    state: str
    verdict: Verdict | None
    rows: tuple[comparing.Row, ...]
    """Measured, one per setting."""
    files: tuple[Path, ...]
    trouble: tuple[str, ...]
    """What cannot be read."""


def card(kept: Kept, state: str) -> Card:
    """Read it all."""
    trouble: list[str] = []
    verdict = None
    try:
        if (kept.folder / "verdict.json").is_file():
            verdict = Verdict.model_validate_json((kept.folder / "verdict.json").read_bytes())
    except (OSError, ValidationError) as error:
        trouble.append(f"verdict.json cannot be read: {_first(error)}")
    rows: tuple[comparing.Row, ...] = ()
    try:
        subject = comparing.of_kept(kept)
        rows = comparing.compare((subject,)).rows
        trouble += subject.found.set_aside
    except KernelDamaged as error:
        trouble.append(error.what)
    files = (*(kept.folder / name for name in FILES), *sorted(kept.folder.glob("bench/*.json")))
    return Card(kept, state, verdict, rows, tuple(path for path in files if path.is_file()), tuple(trouble))


def facts(shown: Card) -> Iterator[tuple[str, str]]:
    """What a person wants to know first."""
    known = shown.kept.provenance
    yield "state", shown.state
    yield "written by", _author(known)
    yield "when", _when(known.get("created"))
    yield "asked with", _asked(known)
    yield "rounds", _rounds(known)
    if shown.verdict is not None:
        yield "gates", ", ".join(_gate(g.name, g.status) for g in shown.verdict.gates)
        yield from (("", f"{g.name} not run: {g.reason}") for g in shown.verdict.not_run)
        ratio, where = error_ratio(shown.verdict.gate("numerics").evidence)
        if ratio is not None:
            yield "error", f"at most {ratio:.2f} of what is allowed, on {where}"
    yield "schedule", _schedule(shown)
    yield from _people(shown.kept)
    yield from (("cannot be used", said) for said in shown.trouble)
    yield "folder", str(shown.kept.folder)
    yield "files", ", ".join(path.relative_to(shown.kept.folder).as_posix() for path in shown.files)


def measured(shown: Card) -> list[dict[str, str]]:
    """The benchmark's summary as rows of a table."""
    return [{name: getattr(row, name) for name in MEASURED} for row in shown.rows]


def data(shown: Card) -> dict[str, Any]:
    """For programs, beside the raw records."""
    verdict = shown.verdict
    return {
        "gates": [] if verdict is None else render.gate_rows(verdict),
        "measured": [vars(row) for row in shown.rows],
        "schedule": shown.kept.schedule,
        "files": [str(path) for path in shown.files],
        "trouble": list(shown.trouble),
    }


# words ----------------------------------------------------------------------------------------------------------------


def _author(known: Mapping[str, Any]) -> str:
    if not known:
        return "not recorded"
    who = f"{known.get('model') or 'unknown'} ({known.get('author') or 'unknown kind'})"
    through = f", answering through {known['provider']}" if known.get("provider") else ""
    run = f"; run {known['run']}, reply {known.get('call', '?')}" if known.get("run") else ""
    return f"{who}{through}{run}"


def _asked(known: Mapping[str, Any]) -> str:
    if not known.get("prompt_version"):
        return "not recorded"
    examples = known.get("examples")
    shown = f", {render.count(len(examples), 'example')} shown" if isinstance(examples, list) else ""
    return f"prompt version {known['prompt_version']}{shown}"


def _rounds(known: Mapping[str, Any]) -> str:
    rounds = known.get("rounds")
    usage = known.get("usage")
    tokens = sum(n for n in usage.values() if isinstance(n, int)) if isinstance(usage, dict) else 0
    cost = known.get("cost_usd")
    parts = [f"passed in round {rounds}" if isinstance(rounds, int) else "not recorded"]
    parts.append(f"{tokens} tokens" if tokens else "tokens not reported")
    if tokens and isinstance(cost, int | float):
        parts.append(render.money(float(cost)))
    return ", ".join(parts)


def _gate(name: str, status: Status) -> str:
    return f"{name} {'-' if status is Status.NOT_RUN else status}"


def _schedule(shown: Card) -> str:
    """What was submitted, and what calls run with."""
    own = shown.kept.schedule
    if own is None:
        said = "none was submitted"
    else:
        try:
            found = Schedule.from_dict(own)
            said = f"submitted: {found.backend} {short(found)}"
        except (CodaError, TypeError) as error:
            said = f"submitted, and cannot be used: {error}"
    tuned = [row for row in shown.rows if row.schedule.endswith("tuned")]
    if tuned:
        return f"{said}; tuned at {render.count(len(tuned), 'size')}, see below"
    return f"{said}; a call takes what `coda-agent tune` measured on the machine, else the shipped choice"


def _people(kept: Kept) -> Iterator[tuple[str, str]]:
    """Who has looked at it."""
    try:
        review = reviews.latest(kept)
        promotion = kept.record(promote.FILE)
    except KernelDamaged as error:
        yield "reviewed", error.what
        return
    if review is not None:
        said = "accepted" if review.accepted else f"refused: {'; '.join(review.refusals)}"
        yield "reviewed", f"{_when(review.created)}: {said}"
    if promotion is not None:
        yield (
            "promoted",
            f"{_when(promotion.get('created'))} by {promotion.get('reviewer')}: {promotion.get('note')}"
            + (f" (without GPU evidence: {promotion['waiver']})" if promotion.get("waiver") else ""),
        )


def _when(value: object) -> str:
    """To the minute, in UTC."""
    try:
        moment = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(str(value))
        return moment.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return "not recorded"


def _first(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror or error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
