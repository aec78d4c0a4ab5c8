"""The leaderboard as one self-contained HTML page: a Board arranged for `templates/leaderboard.html.j2`.

    html    the page; opens without network, in light and dark, on a phone and on a desk

Everything from outside (ids, models, reasons) is escaped by the template. The little script sorts the tables; without it all is there.
Neighbours: `leaderboard` has the Board, `charts` the pictures' geometry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import charts, duels
from .absences import absences, reasons
from .campaigns import Authoring
from .duels import ALL, SIDE_NAMES, Duel, Row, Side, Tally
from .leaderboard import STARTED, Board, authoring_facts
from .scheduled import LEGEND

TEMPLATES = Path(__file__).with_name("templates")
BEHIND = 0.95
"""Below this ratio against people a setting is named."""
SECTIONS = (
    ("standings", "Standings"),
    ("times", "Times"),
    ("roofline", "Roofline"),
    ("overhead", "Overhead over cuBLAS"),
    ("table", "All numbers"),
    ("authoring", "How the kernels were authored"),
    ("missing", "What was not measured"),
    ("method", "How it was measured"),
)
"""Ids and titles, in order: also the page's own list of contents."""


@dataclass(frozen=True)
class Cell:
    """One cell of the sortable table."""

    text: str
    key: str
    """What it is sorted by; empty last."""
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Figure:
    """One task's bars with their caption."""

    task: str
    shape: str
    said: tuple[str, ...]
    picture: charts.Bars


@dataclass(frozen=True)
class Group:
    """The figures of one size."""

    id: str
    title: str
    open: bool
    figures: tuple[Figure, ...]


def html(board: Board) -> str:
    """The page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    subject = _subject(board)
    return environment.get_template("leaderboard.html.j2").render(
        sections=SECTIONS,
        lead=_lead(board, subject),
        tallies=[_tally(t) for t in board.tallies],
        behind=_behind(board, subject),
        groups=_groups(board, subject),
        carried=any(t.through for row in board.rows for t in row.times.values()),
        roofs=tuple(charts.rooflines(board.rows)),
        overheads=tuple(charts.overheads(board.rows)),
        names=SIDE_NAMES,
        columns=COLUMNS,
        wrapped=(COLUMNS.index("primitives"), COLUMNS.index("schedule")),
        schedules=LEGEND[0].upper() + LEGEND[1:],
        table=[_cells(board, row) for row in board.rows],
        authoring_columns=AUTHORING,
        authoring_wrapped=(AUTHORING.index("refused before"),),
        authoring=[_authored(board, one) for one in board.authoring],
        kept=[k for k in board.kernels.values() if k.author != "project"],
        missing=reasons(board.missing).items(),
        absent=absences(board.absent),
        notes=[(peer, note, ids) for (peer, note), ids in board.notes.items()],
        origins=board.origins,
    )


def _subject(board: Board) -> Side:
    return "llm" if any("llm" in row.times for row in board.rows) else "project"


def _lead(board: Board, subject: Side) -> tuple[tuple[str, str], ...]:
    """The figures above everything: what, how much of it."""
    measured = {row.task for row in board.rows}
    kept = {k.task for k in board.kernels.values() if k.author == "llm"}
    found = [
        (f"{len(kept)} of {len(board.cards)}", "tasks have a kernel of a model"),
        (f"{len(measured)} of {len(board.cards)}", "tasks were measured on a GPU"),
    ]
    for against in duels.SIDES:
        sums = [t for t in board.tallies if (t.subject, t.against) == (subject, against)]
        total = next((t for t in sums if t.size == ALL), sums[0] if sums else None)
        if total is not None and total.geomean is not None:
            found.append(
                (
                    f"×{total.geomean:.3f}",
                    f"{SIDE_NAMES[against]} time over {SIDE_NAMES[subject]} time, geometric mean of {total.wins + total.losses + total.draws}",
                )
            )
    return tuple(found)


def _tally(tally: Tally) -> dict[str, Any]:
    mine, other = SIDE_NAMES[tally.subject], SIDE_NAMES[tally.against]
    return {
        "where": f"{tally.gpu}, {tally.dtype}",
        "size": tally.size,
        "pair": f"{other} ÷ {mine}",
        "mean": "–" if tally.geomean is None else f"×{tally.geomean:.3f}",
        "count": tally.count,
        "mine": mine,
        "other": other,
        "wins": tally.wins,
        "losses": tally.losses,
        "draws": tally.draws,
        "same": tally.same,
    }


def _behind(board: Board, subject: Side) -> list[str]:
    """Where people are clearly ahead: by task, the farthest ahead first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for row in board.rows:
        duel = row.duel(subject, "human")
        if duel is not None and duel.ratio < BEHIND:
            said = f"{row.times['human'].who} at {row.size}, ×{duel.ratio:.3f} of the time"
            found.setdefault(row.task, []).append((duel.ratio, said))
    ordered = sorted(found.items(), key=lambda item: min(ratio for ratio, _ in item[1]))
    return [f"{task}: {'; '.join(said for _, said in sorted(lines))}" for task, lines in ordered]


def _groups(board: Board, subject: Side) -> tuple[Group, ...]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in board.rows:
        groups.setdefault((row.gpu, row.dtype, row.size), []).append(row)
    most = max(map(len, groups.values()), default=0)
    shown = next((key for key, rows in groups.items() if len(rows) > most // 2), None)  # the first that is nearly all
    found = []
    for at, ((gpu, dtype, size), rows) in enumerate(groups.items()):
        tasks = len({r.task for r in rows})
        figures = [
            Figure(r.task, r.shape, tuple(_said(r, subject)), charts.bars(r, f"bars-{at}-{n}"))
            for n, r in enumerate(rows)
        ]
        found.append(
            Group(
                f"size-{at}",
                f"{size}: {tasks} task{'s' * (tasks != 1)} on {gpu}, {dtype}",
                (gpu, dtype, size) == shown,
                tuple(figures),
            )
        )
    return tuple(found)


def _said(row: Row, subject: Side) -> Iterator[str]:
    """Who wins, in words; both directions read alike."""
    side = subject if subject in row.times else row.anchor
    for against in duels.SIDES:
        duel = row.duel(side, against)
        if duel is not None:
            mine, other = SIDE_NAMES[side], SIDE_NAMES[against]
            if duel.word == "faster":
                yield f"{mine} faster than {other}, ×{duel.ratio:.3f}"
            elif duel.word == "slower":
                yield f"{other} faster than {mine}, ×{1 / duel.ratio:.3f}"
            elif duel.word == "same program":
                yield f"{mine} and {other}: same program"
            else:
                yield f"{mine} and {other}: no difference"
    yield from (f"SUSPECT: {sentence}" for sentence in row.suspicion)


# the table ------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "task", "size", "LLM µs", "human µs", "project µs", "compile µs", "floor µs", "human ÷ LLM", "project ÷ LLM",
    "compile ÷ LLM", "human ÷ project", "compile ÷ project", "error", "lines", "rounds", "primitives", "schedule", "shape",
    "family", "difficulty", "kernel", "model",
)  # fmt: skip
AUTHORING = (
    "task", "family", "difficulty", "campaign", "model", "prompt", "passed", "rounds", "refused before", "tokens", "lines",
    "same program as", STARTED,
)  # fmt: skip
NUMBERS = ("difficulty", "rounds", "tokens", "lines")


def _cells(board: Board, row: Row) -> list[Cell]:
    card = board.cards[row.task]
    anchored = row.times[row.anchor].who
    kernel = board.kernels.get(anchored)
    large, number = duels.size_key(row.size)
    model = kernel.who if kernel is not None and kernel.author == "llm" else ""
    primitives = kernel.primitives if kernel is not None else ()
    return [
        Cell(row.task, row.task),
        Cell(row.size, f"{large:d}{number:012d}"),
        *(_time(row, side) for side in ("llm", "human", "project", "compile")),
        _number(row.floor_us, "{:.1f}", note=row.bound),
        *(_duel(row.duel("llm", against)) for against in ("human", "project", "compile")),
        *(_duel(row.duel("project", against)) for against in ("human", "compile")),
        _number(kernel.error_ratio if kernel else None, "{:.2f}", note=kernel.error_where if kernel else ""),
        _number(kernel.lines if kernel else None, "{}"),
        _number(kernel.rounds if kernel else None, "{}"),
        Cell(", ".join(primitives), str(len(primitives)) if primitives else ""),
        Cell(row.times[row.anchor].schedule, row.times[row.anchor].schedule),
        Cell(row.shape, row.shape),
        Cell(card.family, card.family),
        _number(card.difficulty, "{}"),
        Cell(anchored, anchored),
        Cell(model, model),
    ]


def _number(value: float | None, form: str, *, note: str = "") -> Cell:
    return Cell("", "") if value is None else Cell(form.format(value), f"{value:.9g}", note)


def _time(row: Row, side: Any) -> Cell:
    time = row.times.get(side)
    if time is None:
        return Cell("", "")
    mark = "*" if time.through else ""
    who = f", {time.who}" if side in ("human", "compile") else ""
    return Cell(f"{time.us:.1f}{mark}", f"{time.us:.6g}", f"{time.low:.1f} to {time.high:.1f}{who}")


def _duel(duel: Duel | None) -> Cell:
    if duel is None:
        return Cell("", "")
    if duel.word == "same program":
        return Cell("same program", "1", tone="draw")
    tone = {"faster": "win", "slower": "loss"}.get(duel.word, "draw")
    words = {"win": "faster", "loss": "slower", "draw": "no difference"}[tone]
    return Cell(f"×{duel.ratio:.3f}", f"{duel.ratio:.6g}", f"{duel.low:.3f} to {duel.high:.3f}, {words}", tone)


def _authored(board: Board, one: Authoring) -> list[Cell]:
    known = authoring_facts(board, one)
    tones = {"passed": "win" if one.passed else "loss"}
    return [
        _number(known[name] if isinstance(known[name], int) else None, "{}")  # type: ignore[arg-type]
        if name in NUMBERS
        else Cell(str(known[name]), str(known[name]), tone=tones.get(name, ""))
        for name in AUTHORING
    ]
