"""The leaderboard: every task of the bank from committed records, and the tables that documents show of it.

    build            a Board: rows by task and size, what was not measured and why, how kernels were authored
    Kernel           what is known of a kernel besides its times
    readme_table     for README.md: the sums, the best and the worst
    authored_table   for authored_kernels/README.md: every authoring run

Nothing is measured here and nothing is judged; a Board is rebuilt on any machine, without torch. Neighbours: `duels` draws the
conclusions, `board_page` makes a page, `campaigns` has the authoring runs, `results` the table of the curated examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import authored_kernels
import examples_curated
from coda.errors import CodaError
from coda.plan import Plan
from coda.primitives.value import OPS

from .. import task as tasks
from ..errors import KernelDamaged
from . import campaigns, duels, measured
from . import compare as comparing
from . import shelves as kernels
from .absences import Missing
from .campaigns import Authoring
from .compare import Subject
from .duels import ALL, SIDE_NAMES, Row, Side, Tally
from .ratios import newest
from .shelves import Kept

SHOWN = 3
"""How many of the best and of the worst the README names."""
BEYOND = 10**9
"""No ratio of an error to what is allowed: a whole number may be too large to be a float."""
MOST = 6
"""Rows of its table."""
AUTHORED = (
    "task",
    "family",
    "difficulty",
    "model",
    "passed",
    "rounds",
    "refused before",
    "tokens",
    "lines",
    "same program as",
)
"""Columns of the table of authoring runs; `STARTED` too where one of them did not start from nothing."""
STARTED = "starts from"
NO_RECORD = "no GPU benchmark of this kernel is recorded"
SUSPECT = "SUSPECT: shown, but it wins nothing"
GONE = "the bank has no such task any more"


@dataclass(frozen=True)
class Kernel:
    """What is known of a kernel besides its times."""

    id: str
    task: str
    author: str
    """llm, project or human."""
    who: str
    """Model, or "curated here"."""
    digest: str
    primitives: tuple[str, ...]
    lines: int | None
    """Of code: without blank lines, comments and docstrings."""
    error_ratio: float | None
    """Largest error of any block of any output, over what is allowed; None where no numerics gate recorded one."""
    error_where: str
    """What that gate ran on."""
    rounds: int | None
    tokens: int | None
    """None where the provider reported none."""
    prompt_version: str
    same_as: str = ""
    """The curated example that is the same program."""


@dataclass(frozen=True)
class Board:
    """Everything that the leaderboard shows."""

    cards: Mapping[str, tasks.Card]
    rows: tuple[Row, ...]
    tallies: tuple[Tally, ...]
    kernels: Mapping[str, Kernel]
    missing: tuple[Missing, ...]
    absent: Mapping[tuple[str, str], tuple[str, ...]]
    """(peer, why it was not timed) -> tasks."""
    notes: Mapping[tuple[str, str], tuple[str, ...]]
    """(peer, what a reader must know of its times) -> tasks."""
    origins: tuple[str, ...]
    """Where and how it was measured, each once."""
    authoring: tuple[Authoring, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "rows": [{**asdict(row), "shape": row.shape} for row in self.rows],
            "tallies": [{**asdict(t), "count": t.count} for t in self.tallies],
            "kernels": [asdict(k) for k in self.kernels.values()],
            "not_measured": [asdict(m) for m in self.missing],
            "peers_not_timed": [{"peer": p, "why": why, "tasks": list(ids)} for (p, why), ids in self.absent.items()],
            "peers_notes": [{"peer": p, "note": note, "tasks": list(ids)} for (p, note), ids in self.notes.items()],
            "measured_on": list(self.origins),
            "authoring": [
                {"rounds_used": a.rounds_used, "first_time": a.first_time, **a.model_dump(mode="json", by_alias=True)}
                for a in self.authoring
            ],
        }


# building -------------------------------------------------------------------------------------------------------------


def build(folders: Iterable[Path] | None = None) -> Board:
    """From the kept kernels of these folders (the checkout's unless given), the curated bank, and the records of both.

    Raises `CampaignDamaged`; whatever else cannot be read is listed with the reason.
    """
    folders = tuple(folders) if folders is not None else (authored_kernels.FOLDER,)
    found = _Subjects(folders)
    cards = tasks.cards()
    rows: list[Row] = []
    missing: list[Missing] = []
    absent: dict[tuple[str, str], list[str]] = {}
    notes: dict[tuple[str, str], list[str]] = {}
    authoring = tuple(a for folder in folders for a in campaigns.read_all(folder / campaigns.FOLDER))
    for card in cards.values():
        kept, example = found.kept.get(card.id, []), found.examples.get(card.id)
        mine = list(duels.rows_of(card.id, kept, example))
        rows += mine
        missing += _missing(card.id, kept, example, mine, authoring)
        for record in (r for s in (*kept, *([example] if example else [])) for r in s.found.records):
            for peer, why in record.absent.items():
                absent.setdefault((peer, why), []).append(card.id)
            for m in record.measured:
                if m.note:
                    notes.setdefault((m.peer or m.name, m.note), []).append(card.id)
    missing += [Missing(task, GONE, of=s.id) for task, kept in found.kept.items() if task not in cards for s in kept]
    order = {task_id: at for at, task_id in enumerate(cards)}
    rows.sort(key=lambda r: (r.gpu, r.dtype, duels.size_key(r.size), order[r.task], r.shape))
    return Board(
        cards=cards,
        rows=tuple(rows),
        tallies=duels.tallies(rows),
        kernels=found.kernels,
        missing=tuple(missing),
        absent={key: tuple(dict.fromkeys(ids)) for key, ids in sorted(absent.items())},
        notes={key: tuple(dict.fromkeys(ids)) for key, ids in sorted(notes.items())},
        origins=tuple(dict.fromkeys(measured.origin(r, clocks=True) for r in found.records())),
        authoring=authoring,
    )


class _Subjects:
    """Every kernel of the bank and of the shelves, with its records and facts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.kept: dict[str, list[Subject]] = {}
        self.kernels: dict[str, Kernel] = {}
        errors = _example_errors()
        known = tasks.cards()
        self.examples = {i: comparing.of_example(i) for i in examples_curated.catalog() if i in known}
        for example in self.examples.values():
            if not example.trouble:
                self.kernels[example.id] = _of_example(example, errors.get(example.digest))
        for entry in kernels.entries(folders):
            try:
                kept = kernels.read(entry.path)
                subject = comparing.of_kept(kept)
            except KernelDamaged as error:
                subject = Subject(entry.id, entry.task, "llm", entry.model, "", trouble=error.what)
            else:
                if not subject.trouble:
                    self.kernels[subject.id] = self._of_kept(kept, subject)
            self.kept.setdefault(subject.task, []).append(subject)

    def _of_kept(self, kept: Kept, subject: Subject) -> Kernel:
        verdict = _record(kept, "verdict.json")
        ratio, where = error_ratio(_gate(verdict, "numerics"))
        known = kept.provenance
        usage = known.get("usage")
        tokens = sum(n for n in usage.values() if isinstance(n, int)) if isinstance(usage, dict) else 0
        own = self.examples.get(subject.task)
        rounds = known.get("rounds")
        return Kernel(
            id=subject.id,
            task=subject.task,
            author=subject.author,
            who=subject.who,
            digest=subject.digest,
            primitives=primitives(kept.program_json or ""),
            lines=campaigns.code_lines(kept.source),
            error_ratio=ratio,
            error_where=where,
            rounds=rounds if isinstance(rounds, int) else None,
            tokens=tokens or None,
            prompt_version=str(known.get("prompt_version") or ""),
            same_as=own.id if own is not None and own.digest == subject.digest else "",
        )

    def records(self) -> Iterator[Any]:
        """Every record that counts."""
        for subject in (*self.examples.values(), *(s for group in self.kept.values() for s in group)):
            yield from subject.found.records


def _of_example(example: Subject, numerics: Mapping[str, Any] | None) -> Kernel:
    ratio, where = error_ratio(numerics or {})
    return Kernel(
        id=example.id,
        task=example.task,
        author=example.author,
        who=example.who,
        digest=example.digest,
        primitives=primitives(examples_curated.load(example.task).program),
        lines=campaigns.code_lines(examples_curated.source(example.task)),
        error_ratio=ratio,
        error_where=where,
        rounds=None,
        tokens=None,
        prompt_version="",
    )


def primitives(program: Any) -> tuple[str, ...]:
    """Names of the primitives that a program, or its JSON, uses: by class, then by name. Arithmetic and operands go without
    saying, and so does the product."""
    if isinstance(program, str):
        from coda.kernel import from_json

        try:
            program = from_json(program).program
        except CodaError:
            return ()
    parts = program.programs if isinstance(program, Plan) else (program,)
    used = {node.op for part in parts for node in part.nodes} - {"const", "operand", "acc", "add", "sub", "mul", "div"}
    return tuple(sorted(used, key=lambda op: (OPS[op].primitive_class, op)))


def error_ratio(numerics: Mapping[str, Any]) -> tuple[float | None, str]:
    """The largest ratio that a numerics gate recorded, and on what it ran. None where none was recorded, one was beyond all
    numbers, or one cannot be read: it may be the largest."""
    backends = numerics.get("backends")
    ratios: list[object] = []
    for said in backends.values() if isinstance(backends, dict) else ():
        errors = (said.get("errors") or {}) if isinstance(said, dict) else {}
        if not isinstance(errors, dict) or not all(isinstance(found, dict) for found in errors.values()):
            return None, "not readable"
        ratios += [found.get("ratio") for found in errors.values()]
    if not ratios:
        return None, ""
    numbers = [float(r) for r in ratios if isinstance(r, float) or (type(r) is int and 0 <= r < BEYOND)]
    if len(numbers) < len(ratios) - ratios.count(None):
        return None, "not readable"
    if None in ratios or not all(map(math.isfinite, numbers)):
        return None, "not finite"
    return max(numbers), str(numerics.get("device") or "")


def _gate(verdict: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    gates = verdict.get("gates")
    for gate in gates if isinstance(gates, list) else ():
        if isinstance(gate, dict) and gate.get("name") == name and isinstance(gate.get("evidence"), dict):
            evidence: dict[str, Any] = gate["evidence"]
            return evidence
    return {}


def _record(kept: Kept, name: str) -> Mapping[str, Any]:
    try:
        return kept.record(name) or {}
    except KernelDamaged:
        return {}


def _example_errors() -> dict[str, Mapping[str, Any]]:
    """Numerics evidence by digest of the program, from the verdicts that lie beside the bank's records."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(examples_curated.FOLDER.glob("records/*.json")):
        try:
            verdicts = json.loads(path.read_text("utf-8")).get("verdicts", {})
        except (OSError, ValueError, AttributeError):
            continue  # `measured` says so where the records are read
        for verdict in verdicts.values() if isinstance(verdicts, dict) else ():
            if isinstance(verdict, dict) and isinstance(verdict.get("numerics"), dict):
                found[str(verdict.get("program_digest"))] = verdict["numerics"]
    return found


def _missing(
    task_id: str,
    kept: Sequence[Subject],
    example: Subject | None,
    rows: Sequence[Row],
    authoring: Sequence[Authoring],
) -> Iterator[Missing]:
    models = [s for s in kept if s.author == "llm"]
    if not models:
        yield Missing(task_id, _why_no_model(task_id, authoring))
    if example is None:
        yield Missing(task_id, "the bank has no curated example of it")
    for subject in (*models, *([example] if example else [])):
        if subject.trouble:
            yield Missing(task_id, subject.trouble, of=subject.id)
        elif not subject.found.records and not (example and rows and subject.digest == example.digest):
            yield Missing(task_id, NO_RECORD, of=subject.id)
        elif subject.found.records and not newest(subject.found.records):
            yield Missing(task_id, "measured by another protocol than the default one only", of=subject.id)
        for sentence in subject.found.set_aside:
            yield Missing(task_id, f"set aside: {sentence}", of=subject.id)
    for row in rows:
        yield from (Missing(task_id, sentence, of=f"{task_id} at {row.shape}") for sentence in row.notes)
        yield from (Missing(task_id, SUSPECT, of=f"{sentence} ({row.shape})") for sentence in row.suspicion)


def _why_no_model(task_id: str, authoring: Sequence[Authoring]) -> str:
    tried = [a for a in authoring if a.task == task_id]
    if not tried:
        return "no model's kernel: nobody has authored one yet"
    last = max(tried, key=lambda a: a.created)
    if last.passed:
        return f"no model's kernel: {last.model} passed in campaign {last.campaign}, and the kernel is not kept here"
    seen = last.failures[-1] if last.failures else None
    about = f", last {seen.gate or 'not proven'}: {seen.failure or seen.status}" if seen else ""
    return f"no model's kernel: {last.model} did not pass in {len(last.rounds)} rounds{about}"


# documents ------------------------------------------------------------------------------------------------------------


def readme_table(board: Board | None = None) -> str:
    """Markdown of twelve lines at most: the sums by size, and both ends of the list against people where there are any."""
    board = board or build()
    subject: Side = "llm" if any(t.subject == "llm" for t in board.tallies) else "project"
    sums = [t for t in board.tallies if t.subject == subject]
    if not sums:
        return "Nothing yet: no record of a GPU run is committed."
    machines = list(dict.fromkeys((t.gpu, t.dtype) for t in sums))
    lone = {t.size for t in sums} - {t.size for t in sums if t.wins + t.draws + t.losses + t.same > 1}
    sums = [t for t in sums if t.size not in lone]  # one task is no mean
    others = [side for side in duels.SIDES if any(t.against == side for t in sums)]
    keys = [(*m, size) for m in machines for size in dict.fromkeys(t.size for t in sums if (t.gpu, t.dtype) == m)]
    keys.sort(key=lambda key: (key[:2], duels.size_key(key[2])))
    lines = [
        "| size | " + " | ".join(f"{SIDE_NAMES[side]} ÷ {SIDE_NAMES[subject]}" for side in others) + " |",
        "|---" * (len(others) + 1) + "|",
    ]
    sizes = [k for k in keys if k[2] != ALL]
    for key in sizes[: MOST - 1] + [k for k in keys if k[2] == ALL][:1]:
        cells = [_sum(t) for side in others for t in sums if (t.gpu, t.dtype, t.size, t.against) == (*key, side)]
        found = {t.against for t in sums if (t.gpu, t.dtype, t.size) == key}
        shown = iter(cells)
        where = f"{key[2]}, {key[0]}, {key[1]}" if len(machines) > 1 else key[2]
        lines.append("| " + " | ".join([where, *(next(shown) if side in found else "–" for side in others)]) + " |")
    whose = {"human": "the fastest of the packages' kernels", "project": "this bank's example"}
    sides = "".join(f"; {SIDE_NAMES[side]}: {whose[side]}" for side in others if side in whose)
    left = ", ".join(k[2] for k in sizes[MOST - 1 :])
    more = f" All sizes count {left} too, which `compare --all` shows." if left else ""
    told = f"Geometric mean; in brackets: {SIDE_NAMES[subject]} faster, no difference, slower{sides}.{more}"
    return "\n".join([*lines, "", told, *_ends(board, subject, next((s for s in others if s != "project"), others[0]))])


def readme_campaigns(board: Board | None = None) -> str:
    """Markdown: a sentence for all runs that began with nothing, and one for those that had a kept kernel to improve."""
    board = board or build()
    fresh = [one for one in board.authoring if not one.improves]
    improving = [one for one in board.authoring if one.improves]
    found = []
    if fresh:
        found.append(
            f"{_runs(fresh)} by {', '.join(dict.fromkeys(one.model for one in fresh))}, each in a context of its own, given nothing but the"
            f" rendered prompt, the task's own example withheld: {_passed(fresh)}."
        )
    if improving:
        found.append(
            f"{_runs(improving)} with a kept kernel and its record in the prompt, to improve: {_passed(improving)}."
        )
    return " ".join(found) or "No campaign yet."


def _runs(found: Sequence[Authoring]) -> str:
    tasks = {one.task for one in found}
    of = f"{len(tasks)} tasks" if len(tasks) > 1 else f"`{found[0].task}`"
    return f"{len(found)} run{'s' * (len(found) > 1)} of {of}"


def _passed(found: Sequence[Authoring]) -> str:
    return f"{sum(one.passed for one in found)} passed, {sum(one.first_time for one in found)} in the first round"


def _sum(tally: Tally) -> str:
    same = f"{tally.same} the same program" if tally.same else ""
    if tally.geomean is None:
        return same
    return ", ".join(x for x in (f"×{tally.geomean:.3f} ({tally.wins}, {tally.draws}, {tally.losses})", same) if x)


def _ends(board: Board, subject: Side, against: Side) -> list[str]:
    """The tasks at which the subject does worst, each at its worst size, and those at which it does best."""
    pairs = [(d.ratio, row) for row in board.rows if (d := row.duel(subject, against)) and d.word != "same program"]
    pairs.sort(key=lambda pair: pair[0])
    lowest: dict[str, tuple[float, Row]] = {}
    highest: dict[str, tuple[float, Row]] = {}
    for ratio, row in pairs:
        lowest.setdefault(row.task, (ratio, row))
        highest[row.task] = (ratio, row)
    worst = list(lowest.values())[:SHOWN]
    named = {row.task for _, row in worst}
    best = sorted((b for task, b in highest.items() if task not in named), key=lambda pair: -pair[0])[:SHOWN]

    def told(found: Sequence[tuple[float, Row]]) -> str:
        return ", ".join(f"`{row.task}` ({row.size}) ×{ratio:.2f}" for ratio, row in found)

    name, other = SIDE_NAMES[subject], SIDE_NAMES[against]
    lines = [f"Worst of {name} against {other}: {told(worst)}."]
    return lines + ([f"Best: {told(best)}."] if best else [])


def authored_table(board: Board | None = None) -> str:
    """Markdown: a line of sums per campaign, then every task of it; kept kernels that no campaign knows come last."""
    board = board or build()
    groups: dict[str, list[Authoring]] = {}
    for one in board.authoring:
        groups.setdefault(one.campaign, []).append(one)
    parts: list[str] = []
    if groups:
        head = [
            "| campaign | model | prompt | tasks | passed | in the first round | tokens |",
            "|---|---|---|---|---|---|---|",
        ]
        parts.append("\n".join([*head, *(_campaign(name, runs) for name, runs in sorted(groups.items()))]))
    for name, runs in sorted(groups.items()):
        columns = (*AUTHORED, STARTED) if any(one.improves for one in runs) else AUTHORED
        head = [f"### {name}\n", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        order = {task_id: at for at, task_id in enumerate(board.cards)}
        runs = sorted(runs, key=lambda a: order.get(a.task, len(order)))
        parts.append("\n".join([*head, *(_authored(board, one, columns) for one in runs)]))
    known = {one.kept for one in board.authoring}
    rest = [k for k in board.kernels.values() if k.author != "project" and k.id not in known]
    if rest:
        head = [
            "### Kept kernels without a record of their run\n",
            "| kernel | author | rounds | tokens | lines | same program as |",
        ]
        parts.append("\n".join([*head, "|---|---|---|---|---|---|", *(_uncollected(k) for k in rest)]))
    return "\n\n".join(parts) or "Nothing yet: no authoring run was collected and no kernel is kept."


def _campaign(name: str, runs: Sequence[Authoring]) -> str:
    models = ", ".join(dict.fromkeys(a.model for a in runs))
    prompts = ", ".join(dict.fromkeys(a.prompt_version for a in runs))
    tokens = sum(a.usage.total for a in runs)
    cells = [name, models, prompts, len(runs), sum(a.passed for a in runs), sum(a.first_time for a in runs)]
    return "| " + " | ".join(_cell(c) for c in (*cells, tokens or "not reported")) + " |"


def _authored(board: Board, one: Authoring, columns: Sequence[str]) -> str:
    known = authoring_facts(board, one)
    return "| " + " | ".join(_cell(known[name]) for name in columns) + " |"


def authoring_facts(board: Board, one: Authoring) -> dict[str, str | int]:
    """What a table says of an authoring run, by column."""
    card = board.cards.get(one.task)
    same = next((k.id for k in board.kernels.values() if k.author == "project" and k.digest == one.digest), "")
    return {
        "task": one.task,
        "family": card.family if card else "not in the bank today",
        "difficulty": card.difficulty if card else "",
        "campaign": one.campaign,
        "model": one.model,
        "prompt": one.prompt_version,
        "passed": ("first time" if one.first_time else "yes") if one.passed else f"no ({one.stop})",
        "rounds": one.rounds_used,
        "refused before": "; ".join(r.told for r in one.failures),
        "tokens": one.usage.total or "not reported",
        "lines": one.lines if one.lines is not None else "",
        "same program as": same,
        STARTED: one.improves or "",
    }


def _uncollected(kernel: Kernel) -> str:
    cells = [
        kernel.id,
        kernel.who,
        kernel.rounds or "",
        kernel.tokens or "not reported",
        kernel.lines or "",
        kernel.same_as,
    ]
    return "| " + " | ".join(_cell(c) for c in cells) + " |"


def _cell(text: object) -> str:
    """One line of a Markdown table; what others wrote stays text."""
    plain = " ".join(str(text).split()).replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace(">", "&gt;").replace("[", "\\[")
