"""The commands over the whole bank: values from the command line in, an `Answer` out.

    leaderboard   `compare --all`: everything that was measured, as a table and as a page
    verify_all    `verify --all`: every curated and kept kernel proved again
    collect       runs of the author become committed records of a campaign

Neighbours: `comparing` and `judging` have `compare` and `verify` of single kernels, `agent.keeping` does the work, `render` draws.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import authored_kernels

from .. import files
from ..errors import UsageError
from ..keeping import shelves as kernels
from ..runs import store
from . import flags, render
from .judging import Judging
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from ..keeping.duels import Row, Side
    from ..keeping.leaderboard import Board
    from ..keeping.reverify import Outcome, Report

MOST_JOBS = 8
MOST_NAMED = 6
"""Of a list in a line of text."""


# compare --all --------------------------------------------------------------------------------------------------------


def leaderboard(
    terminal: Terminal, texts: Sequence[str], threshold: float | None, page: Path | None, *, run: bool = False
) -> Answer:
    """The command `compare --all`. With `run` every kernel is measured first, once all else is known to make sense."""
    from ..keeping import leaderboard as boards

    if texts or threshold is not None:
        what = "--threshold" if threshold is not None else repr(texts[0])
        raise UsageError(f"--all compares everything, {what} does not go with it", hint="leave out one of the two")
    if page is not None:
        files.require_place(page)
    now = None
    if run:
        from . import bench

        now = bench.fresh(terminal, (), everything=True)
    board = boards.build(kernels.shelves(terminal.settings()))
    paths: tuple[tuple[str, Path], ...] = ()
    if page is not None:
        from ..keeping import board_page

        files.write_text(page, board_page.html(board))
        paths = (("page", page),)
    answer = Answer({"leaderboard": board.to_dict()}, lambda: _standings(board), paths=paths)
    return answer if now is None else now.beside(answer)


def _standings(board: Board) -> Iterator[Any]:
    sums = [
        {
            "compared": f"{t.against} ÷ {t.subject}",
            "size": t.size,
            "mean": "" if t.geomean is None else f"×{t.geomean:.3f}",
            "faster": t.wins,
            "slower": t.losses,
            "no difference": t.draws,
            "same program": t.same,
            "on": f"{t.gpu}, {t.dtype}",
        }
        for t in board.tallies
    ]
    if sums:
        yield render.heading("geometric means of time ratios: above 1 the named side, right of ÷, is faster")
        yield render.table_of(sums, list(sums[0]), right=list(sums[0])[2:7])
    if board.rows:
        yield render.heading("times in µs; * carried over from another run")
        rows = [_shown(row) for row in board.rows]
        yield render.table_of(rows, list(rows[0]), right=list(rows[0])[3:])
    yield from _remarks(board)


def _remarks(board: Board) -> Iterator[str]:
    """Everything else that must be known, in a screenful: the page and the document have the whole lists."""
    from ..keeping.absences import absences, reasons

    same = [k.id for k in board.kernels.values() if k.same_as]
    if same:
        yield f"same program as the curated example, so a record of either is one of both: {_some(same)}"
    yield from (f"not measured: {why}: {_some(kinds)}" for why, kinds in reasons(board.missing).items())
    yield from (f"not timed: {one.peer}: {one.why}: {_some(one.tasks)}" for one in absences(board.absent))
    if board.notes:
        peers = ", ".join(dict.fromkeys(peer for peer, _ in board.notes))
        yield f"how peers were called: {len(board.notes)} notes, on {peers}: --html and --json have them"
    yield from (f"measured on {origin}" for origin in board.origins)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _shown(row: Row) -> dict[str, str]:
    sides: tuple[Side, ...] = ("llm", "human", "project", "compile")
    cells = {"task": row.task, "size": row.size, "shape": row.shape}
    for side in sides:
        time = row.times.get(side)
        cells[side] = f"{time.us:.1f}{'*' if time.through else ''}" if time is not None else ""
    cells["floor"] = f"{row.floor_us:.1f}"
    for against in sides[1:]:
        duel = row.duel("llm", against)
        if duel is None:
            cells[f"{against} ÷ llm"] = ""
        else:
            cells[f"{against} ÷ llm"] = duel.word if duel.word == "same program" else f"×{duel.ratio:.3f} {duel.word}"
    return cells


# verify --all ---------------------------------------------------------------------------------------------------------


def verify_all(
    terminal: Terminal,
    judging: Judging,
    alone: Mapping[str, object],
    *,
    number: int | None,
    seed: int | None,
    jobs: int | None,
) -> Answer:
    """The command `verify --all`. `alone` is what goes with a single kernel only."""
    from ..keeping import reverify as proving
    from ..verify.judge import Options

    given = [name for name, value in alone.items() if value is not None]
    if given:
        raise UsageError(f"--all proves every kernel, {given[0]} does not go with it", hint="leave out one of the two")
    judging.check()
    flags.number("--sample", number, least=1, hint="leave it out for every kernel")
    if seed is not None and number is None:
        raise UsageError("--seed chooses a sample, and none was asked for", hint="add --sample N")
    flags.number("--jobs", jobs, least=1, hint="leave it out: then processors decide")
    found = proving.targets(kernels.shelves(terminal.settings()))
    seed = (random.randrange(1 << 32) if seed is None else seed) if number is not None else None
    chosen = proving.sample(found, number, seed) if number is not None and seed is not None else found
    options = Options(gates=proving.PROOF, arch=judging.arch, backends=judging.backends or proving.QUICK, device=False)
    with render.Counting(len(chosen), terminal.say, terminal.live, unit="kernel") as counting:

        def told(outcome: Outcome) -> None:
            said = f"{outcome.word}: {outcome.id}"
            lines = [f"{said}: {why}" for why in outcome.why]
            terminal.detail(f"{said} in {outcome.seconds:.1f} s")
            counting.advance(said, *lines)

        workers = jobs or min(MOST_JOBS, len(os.sched_getaffinity(0)))
        report = proving.reverify(chosen, of=len(found), seed=seed, jobs=workers, options=options, on_outcome=told)
    code, failure = _judged(report)
    data = {**report.model_dump(mode="json"), "proved": report.count("proved"), "refused": report.count("refused")}
    return Answer(data, lambda: _outcomes(report), code, failure)


def needs_all(flags: Mapping[str, object]) -> None:
    """Raises `UsageError` for a flag that means something with --all only."""
    for name, value in flags.items():
        if value is not None:
            raise UsageError(f"{name} goes with --all only", hint="`coda-agent verify --all`, or leave it out")


def _outcomes(report: Report) -> Iterator[Any]:
    for outcome in report.outcomes:
        yield from (f"{outcome.word}: {outcome.id}: {why}" for why in outcome.why)
    traced = [o.id for o in report.outcomes if o.word == "traced"]
    if traced:
        yield f"no task to prove them against, so only read and traced: {', '.join(traced)}"
    yield report.summary


def _judged(report: Report) -> tuple[Exit, Failure | None]:
    if report.refused:
        names = ", ".join(o.id for o in report.refused)
        hint = f"`coda-agent review {report.refused[0].id}` writes down why"
        if report.refused[0].author == "project":
            hint = f"mend {report.refused[0].id}.py, or what it is judged by"
        return Exit.REFUSED, Failure("refused", f"{len(report.refused)} of {len(report.outcomes)}: {names}", hint)
    open_ones = [o for o in report.outcomes if o.word == "unproven"]
    if open_ones:
        said = f"not proven on this machine: {open_ones[0].id}: {'; '.join(open_ones[0].why)}"
        return Exit.ENVIRONMENT, Failure("not-proven", said, "`coda-agent doctor` says what is missing here")
    return Exit.OK, None


# collect --------------------------------------------------------------------------------------------------------------


def collect(terminal: Terminal, names: Sequence[str], campaign: str, into: Path | None) -> Answer:
    """The command `collect`."""
    from ..keeping import campaigns

    settings = terminal.settings()
    runs = [store.find(name, settings.runs_dir) for name in names]
    folder = into or authored_kernels.FOLDER / campaigns.FOLDER
    written = campaigns.collect(runs, folder, campaign=campaign)
    data = {
        "folder": str(folder),
        "collected": [{**record.model_dump(mode="json", by_alias=True), "path": str(path)} for record, path in written],
    }

    def show() -> Iterator[Any]:
        rows = [
            {
                "campaign": r.campaign,
                "task": r.task,
                "model": r.model,
                "passed": "first time" if r.first_time else "yes" if r.passed else f"no: {r.stop}",
                "rounds": r.rounds_used,
                "refused before": "; ".join(x.told for x in r.failures),
                "tokens": r.usage.total or None,
            }
            for r, _ in written
        ]
        yield render.table_of(rows, list(rows[0]), right=["rounds", "tokens"])

    return Answer(data, show, paths=(("campaigns", folder),), next="coda-agent compare --all")
