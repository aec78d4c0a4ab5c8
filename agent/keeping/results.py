"""The documents' tables of tasks, and of what was measured of the curated examples, generated from the records beside them.

    task_table    the bank: a row per task
    readme_table  a row per task: time at three sizes, beside it torch.compile and quack-kernels
    full_page     every record, every peer, ceilings and the floor; what is explained in NOTES.md
    table         the rows of any records, for a command or a page

A ratio is of medians taken in the same run: the peer's time over the kernel's, so that more than 1 means that the kernel is
faster. Losses are bold, what cannot be told apart from noise has a ≈, what is `SUSPECT` a ⚠ and no part in the sums. Nothing is
left out: a task without a record is named. GPUs are never mixed. Neighbours: `measured` reads the records, `benchmarks` writes them, `leaderboard` compares authors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import examples_curated
from coda.bench import empty
from coda.bench.peers import COMPILED
from coda.bench.record import BenchRecord, Compared, short

from .. import task as tasks
from . import measured
from .ratios import newest, protocol

SIZES: dict[str, tuple[int, int]] = {"4096": (4096, 4096), "8192": (8192, 8192), "M = 512": (512, 4096)}
"""Heading -> (M, K). Of several N the smallest: that of a vocabulary of 32768."""
DOUBTFUL = "⚠"
"""Behind every figure of a record that is `SUSPECT`."""
NOTES = examples_curated.FOLDER / "records" / "NOTES.md"
"""Why what was lost was lost, by hand; its first paragraph is in the README."""
PAGE = "examples_curated/records/README.md"
COLUMNS = (
    "task",
    "shape",
    "kernel",
    "µs",
    "compile",
    "quack",
    "other",
    "÷ cuBLAS",
    "÷ empty epilogue",
    "of the floor",
    "host, µs",
    "word",
)


def task_table() -> str:
    """Markdown: every task, the easiest first, with the names that it answers to and whether a curated example solves it."""
    lines = ["| task | computes | family | difficulty | also called | example |", "|---|---|---|---|---|---|"]
    examples = examples_curated.catalog()
    for card in tasks.cards().values():
        example = f"[yes](../../examples_curated/{card.id}.py)" if card.id in examples else ""
        names = ", ".join(card.aliases)
        cells = (f"[`{card.id}`]({card.id}.py)", card.title, card.family, str(card.difficulty), names, example)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def readme_table() -> str:
    """Markdown, a table for each GPU; a sentence where nothing has been measured."""
    found = dict(by_task())
    machines = by_gpu(r for of_task in found.values() for r in of_task)
    if not machines:
        return "Nothing yet: no record of a GPU run is committed."
    lines: list[str] = []
    head = "| task |" + "".join(f" {size}, µs | compile | quack |" for size in SIZES)
    rule = "|---|" + "---|---|---|" * len(SIZES)
    for gpu in machines:
        here = {task_id: [r for r in of_task if measured.gpu(r) == gpu] for task_id, of_task in found.items()}
        cells = {task_id: list(_sizes(of_task)) for task_id, of_task in here.items() if of_task}
        rows = [f"| `{task_id}` | {' | '.join(x)} |" for task_id, x in cells.items() if set("".join(x)) - set("– |")]
        lines += [*([f"**{gpu}**", ""] if len(machines) > 1 else []), head, rule, *rows, ""]
    missing = [task_id for task_id, of_task in found.items() if not of_task]
    doubtful = DOUBTFUL in "".join(lines)
    tail = [
        (
            "µs of the kernel, a median; beside it the time of torch.compile (the best of its modes and layouts) and of quack-kernels' own"
            " kernel (the best of five configurations) over it. **Bold**: that one is faster; ≈: the noise is larger."
        ),
        f"{DOUBTFUL}: `SUSPECT`, to be looked at by a person." if doubtful else "",
        _sums(machines),
        first_note(),
        f"[All sizes, peers and ceilings]({PAGE}). {_origins(machines)}",
    ]
    if missing:
        tail.append(f"Not measured: {', '.join(missing)}.")
    return "\n".join([*lines, " ".join(text for text in tail if text)])


def full_page() -> str:
    """Markdown: a table of everything for each GPU, then what is absent and why."""
    machines = by_gpu(r for _, of_task in by_task() for r in of_task)
    records = [r for here in machines.values() for r in here]
    if not records:
        return "Nothing yet: no record of a GPU run is committed."
    lines = [_origins(machines), _sums(machines), ""]
    for gpu, here in machines.items():
        lines += [*([f"## {gpu}", ""] if len(machines) > 1 else []), *markdown(COLUMNS, table(here)), ""]
    if NOTES.is_file():
        lines += ["## What was lost, and why", "", NOTES.read_text(encoding="utf-8").strip(), ""]
    if absent := list(_absent(records)):
        lines += ["## Absent", "", *absent, ""]
    notes = {(m.peer, r.task, m.note) for r in records for m in r.measured if m.note}
    if notes:
        lines += ["## How peers were called", ""]
        lines += [f"- {peer} for `{task_id}`: {note}" for peer, task_id, note in sorted(notes)]
    return "\n".join(lines).rstrip()


def by_gpu(records: Iterable[BenchRecord]) -> dict[str, list[BenchRecord]]:
    """Times of two GPUs are in no table, and in no sum, together."""
    found: dict[str, list[BenchRecord]] = {}
    for record in records:
        found.setdefault(measured.gpu(record), []).append(record)
    return found


def table(records: Iterable[BenchRecord]) -> list[dict[str, str]]:
    """One row per record, as text, by `COLUMNS`."""
    ordered = sorted(records, key=lambda r: (measured.gpu(r), r.task, _order(r), protocol(r)))
    return [_row(r) for r in ordered]


def markdown(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Rows as the lines of a table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row[c] for c in columns) + " |" for row in rows]


# rows -----------------------------------------------------------------------------------------------------------------


def by_task() -> Iterator[tuple[str, list[BenchRecord]]]:
    """Every task that a curated example solves, with the records of that example that count."""
    for task_id in tasks.cards():
        if task_id in examples_curated.catalog():
            found = measured.of_example(examples_curated.load(task_id).program.digest).records
            yield task_id, list(newest(found).values())


def _row(record: BenchRecord) -> dict[str, str]:
    own = record.of(record.kernel)
    medians = {m.name: m.median for m in record.measured}
    bare = medians.get(empty.label(record.kernel))  # of the same backend: another one's is another mainloop
    others = [c for c in record.compared if c.peer not in (*COMPILED, "quack", "eager")]
    top, mark = record.best_peer, _mark(record)
    word = "SUSPECT" if record.suspicion else (f"{top.word} ({top.variant or top.peer})" if top else "no peer")
    return {
        "task": f"`{record.task}`",
        "shape": short(record.dims),
        "kernel": record.kernel,
        "µs": f"{own.median * 1e6:.1f} ± {(own.high - own.low) / 2 * 1e6:.1f}{mark}",
        "compile": _cell(_best(record, COMPILED), mark=mark),
        "quack": _cell(_best(record, ("quack",)), configured=True, mark=mark),
        "other": ", ".join(f"{c.peer} {_cell(c, mark=mark)}" for c in others) or "–",
        "÷ cuBLAS": f"{own.median / medians['cublas']:.3f}" if "cublas" in medians else "–",
        "÷ empty epilogue": f"{own.median / bare:.3f}" if bare else "–",
        "of the floor": f"{record.floor.seconds / own.median:.0%}",
        "host, µs": f"{own.host * 1e6:.0f}",
        "word": word,
    }


def _sizes(records: Sequence[BenchRecord]) -> Iterator[str]:
    """Three cells for each size of the README."""
    for m, k in SIZES.values():
        fitting = [r for r in records if (r.dims.get("M"), r.dims.get("K")) == (m, k)]
        if not fitting:
            yield from ("–", "–", "–")
            continue
        record = min(fitting, key=_order)
        mark = _mark(record)
        yield f"{record.of(record.kernel).median * 1e6:.0f}{mark}"
        yield _cell(_best(record, COMPILED), mark=mark)
        yield _cell(_best(record, ("quack",)), mark=mark)


def _best(record: BenchRecord, names: Sequence[str]) -> Compared | None:
    """The fastest of these peers."""
    return max((c for c in record.compared if c.peer in names), key=lambda c: c.ratio, default=None)


def _mark(record: BenchRecord) -> str:
    return DOUBTFUL if record.suspicion else ""


def _cell(found: Compared | None, *, configured: bool = False, mark: str = "") -> str:
    if found is None:
        return "–"
    value = f"{1 / found.ratio:.2f}{mark}"
    shown = {"slower": f"**{value}**", "no difference": f"≈{value}"}.get(found.word, value)
    chosen = found.variant.partition("[")[2].rstrip("]") if configured else ""
    return f"{shown} ({chosen})" if chosen else shown


def _order(record: BenchRecord) -> tuple[int, ...]:
    return tuple(record.dims.values())


def _absent(records: Sequence[BenchRecord]) -> Iterator[str]:
    """A line per peer and reason; the tasks for which a package has nothing are counted, not listed."""
    found: dict[tuple[str, str], set[str]] = {}
    for record in records:
        for peer, reason in record.absent.items():
            state = reason.partition(":")[0]
            if reason != "not asked for":
                found.setdefault((peer, state if state == "not applicable" else reason), set()).add(record.task)
    for (peer, reason), ids in sorted(found.items()):
        whose = f"{len(ids)} tasks" if reason == "not applicable" else ", ".join(f"`{i}`" for i in sorted(ids))
        yield f"- {peer}: {reason} ({whose})"


# sentences ------------------------------------------------------------------------------------------------------------


def _sums(machines: Mapping[str, Sequence[BenchRecord]]) -> str:
    """Wins, draws and losses against either kind of peer. What needs a person's look is no win."""
    sentences = []
    for gpu, records in machines.items():
        told = [r for r in records if not r.suspicion]
        said = []
        for whom, names in (("torch.compile", COMPILED), ("quack-kernels", ("quack",))):
            words = Counter(found.word for r in told if (found := _best(r, names)) is not None)
            if total := words.total():
                said.append(
                    f"{whom}: faster in {words['faster']}, no difference in {words['no difference']}, slower in {words['slower']}"
                    f" of {total} comparisons"
                )
        where = f"{gpu}, against" if len(machines) > 1 else "Against"
        doubtful = Counter(r.task for r in records if r.suspicion)
        aside = ", ".join(f"`{task_id}` at {count} sizes" for task_id, count in doubtful.items())
        if said:
            left_out = f" (left out as `SUSPECT`: {aside})" if aside else ""
            sentences.append(f"{where} {'; against '.join(said)}{left_out}.")
    return " ".join(sentences)


def first_note() -> str:
    """The first paragraph of the notes, on one line."""
    if not NOTES.is_file():
        return ""
    return " ".join(NOTES.read_text(encoding="utf-8").strip().partition("\n\n")[0].split())


def _origins(machines: Mapping[str, Sequence[BenchRecord]]) -> str:
    origins = dict.fromkeys(measured.origin(r) for records in machines.values() for r in records)
    return " ".join(f"Measured on {one}." for one in origins)
