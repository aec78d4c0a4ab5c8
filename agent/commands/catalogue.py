"""`list` and `show` as commands: what there is, and one of it in full.

    listing   tasks, examples, kernels or runs
    show      everything of one name: the task, the curated example, the kept kernel

Neighbours: `judging` and `author` have the other commands, `keeping.shelves` finds kernels, `keeping.promote` says what one is
today.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import authored_kernels
import examples_curated

from ..errors import AgentError, KernelDamaged, RunDamaged, UnknownSubject, UnknownTask
from ..keeping import shelves as kernels
from ..keeping.compare import EXAMPLES
from ..runs import store
from ..runs.events import Replied
from ..task import Task, cards, find, load
from . import card as cards_of
from . import comparing, render
from .flags import one_of
from .terminal import Answer, Terminal


def listing(terminal: Terminal, what: str) -> Answer:
    """The command `list`."""
    lists = {"tasks": _tasks, "examples": _examples, "kernels": _kernels, "runs": _runs}
    one_of("list", what, lists, "list")
    columns, rows = lists[what](terminal)

    def show() -> Iterator[Any]:
        yield render.table_of(rows, columns) if rows else f"no {what}"

    follow = {"tasks": "coda-agent show ID", "kernels": "coda-agent review ID"}.get(what, "") if rows else ""
    return Answer({what: rows}, show, next=follow)


def _tasks(terminal: Terminal) -> tuple[list[str], list[dict[str, Any]]]:
    rows = [
        {"id": c.id, "title": c.title, "family": c.family, "difficulty": c.difficulty, "aliases": list(c.aliases)}
        for c in cards().values()
    ]
    return ["id", "title", "family", "difficulty"], rows


def _examples(terminal: Terminal) -> tuple[list[str], list[dict[str, Any]]]:
    found = [examples_curated.card(i) for i in examples_curated.catalog()]
    rows = [{"rung": c.rung, "id": c.id, "title": c.title, "idea": c.idea, "path": str(c.path)} for c in found]
    return ["rung", "id", "title", "idea"], rows


def _kernels(terminal: Terminal) -> tuple[list[str], list[dict[str, Any]]]:
    rows = []
    for entry in kernels.entries(kernels.shelves(terminal.settings())):
        state, reason = _state(entry)
        digest = entry.digest[:12]
        rows.append(
            {
                "id": entry.id,
                "task": entry.task,
                "state": state,
                "why": reason,
                "model": entry.model,
                "digest": digest,
                "path": str(entry.path),
            }
        )
    return ["id", "task", "state", "why", "model", "digest"], rows


def _state(entry: authored_kernels.Entry) -> tuple[str, str]:
    from ..keeping.promote import state_of

    if entry.state == authored_kernels.DAMAGED:
        return entry.state, entry.trouble
    try:
        task = load(entry.task)
    except UnknownTask:
        task = None
    try:
        state = state_of(kernels.read(entry.path), task)
    except AgentError as error:
        return authored_kernels.DAMAGED, error.what
    return state.word, state.reason


def _runs(terminal: Terminal) -> tuple[list[str], list[dict[str, Any]]]:
    rows = []
    for folder in store.list_runs(terminal.settings().runs_dir):
        row: dict[str, Any] = dict.fromkeys(("id", "task", "model", "rounds", "ended", "passed"))
        row |= {"id": folder.name, "path": str(folder), "why": ""}
        try:
            run = store.open_run(folder)
            summary = run.summary
        except RunDamaged as error:  # one bad folder hides no other
            rows.append({**row, "ended": "damaged", "why": error.what})
            continue
        rows.append(
            {
                **row,
                "id": run.info.id,
                "task": run.info.task,
                "model": _answered(run),
                "rounds": summary.rounds if summary else None,
                "ended": summary.stop if summary else "not finished",
                "passed": summary.passed if summary else None,
            }
        )
    why = ["why"] if any(row["why"] for row in rows) else []
    return ["id", "task", "model", "rounds", "ended", "passed", *why], rows


def _answered(run: store.Run) -> str | None:
    """Who answered last; before anybody has, who is asked."""
    models = [event.model for event in run.events if isinstance(event, Replied)]
    return models[-1] if models else run.info.model


def show(terminal: Terminal, name: str) -> Answer:
    """The command `show`: everything of that name."""
    data: dict[str, Any] = {}
    parts: list[tuple[str, Any]] = []
    example_id = name.removeprefix(EXAMPLES)
    alone = example_id != name and example_id in examples_curated.catalog()
    try:
        task = None if alone else load(find(name).id)
    except UnknownTask as unknown:
        task, near = None, unknown.near
    else:
        near = ()
    if task is not None:
        data["task"] = _task_data(task)
        parts.append((f"task {task.id}: {task.title}", task_text(task)))
        example_id = task.id
    if example_id in examples_curated.catalog():
        data["example"] = _program_data(
            example_id, examples_curated.source(example_id), examples_curated.load(example_id)
        )
        parts.append((f"example {example_id}: formula", data["example"]["explain"]))
        parts.append((f"example {example_id}: source", data["example"]["source"].rstrip()))
    if not data:
        kept = _kept(terminal, name, near)
        data["kernel"], known = _kept_data(kept)
        parts.append((f"kernel {kept.id}", render.facts_table(cards_of.facts(known))))
        rows = [{comparing.HEADERS.get(n, n): v for n, v in row.items()} for row in cards_of.measured(known)]
        columns = [comparing.HEADERS.get(name, name) for name in cards_of.MEASURED]
        title = f"kernel {kept.id}: measured"
        parts.append((title, render.table_of(rows, columns) if rows else "no GPU benchmark of it is recorded"))
        if kept.provenance.get("rationale"):
            parts.append((f"kernel {kept.id}: in its author's words", str(kept.provenance["rationale"]).rstrip()))
        parts.append((f"kernel {kept.id}: formula", data["kernel"]["explain"]))
        parts.append((f"kernel {kept.id}: source", kept.source.rstrip()))

    def drawn() -> Iterator[Any]:
        for title, text in parts:
            yield render.heading(title)
            yield text
            yield ""

    return Answer(data, drawn)


def _kept(terminal: Terminal, name: str, near: tuple[str, ...]) -> kernels.Kept:
    settings = terminal.settings()
    try:
        return kernels.find(name, folders=kernels.shelves(settings), runs=settings.runs_dir)
    except UnknownSubject as error:
        raise kernels.of_any_kind(name, error, near) from None


def task_text(task: Task) -> str:
    """A task for a person."""
    lines = [
        f"{task.kind}, {task.gemms} GEMM{'' if task.gemms == 1 else 's'}, family {task.family}, difficulty {task.difficulty}"
    ]
    lines.append(f"also called: {', '.join(task.aliases)}")
    lines += [f"  in  {i.name} ({', '.join(i.shape)}) {i.dtype}, {i.role}, drawn as {i.draw}" for i in task.inputs]
    lines += [f"  out {o.name} ({', '.join(o.shape)}) {o.dtype}" for o in task.outputs]
    lines += ["", task.description, ""]
    lines += [f"  {s.family}: {', '.join(f'{n}={v}' for n, v in s.dims.items())}: {s.reason}" for s in task.shapes]
    return "\n".join(lines)


def _task_data(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "title": task.title,
        "aliases": list(task.aliases),
        "family": task.family,
        "difficulty": task.difficulty,
        "kind": task.kind,
        "gemms": task.gemms,
        "description": task.description,
        "inputs": [{"name": i.name, "shape": list(i.shape), "dtype": i.dtype, "role": i.role} for i in task.inputs],
        "outputs": [{"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in task.outputs],
        "shapes": [{"family": s.family, "dims": dict(s.dims), "reason": s.reason} for s in task.shapes],
        "peers": list(task.peers),
        "distributions": list(task.distributions),
        "path": str(task.source_path),
    }


def _program_data(name: str, source: str, kernel: Any) -> dict[str, Any]:
    return {"id": name, "digest": kernel.program.digest, "explain": kernel.program.explain(), "source": source}


def _program(kept: kernels.Kept) -> Any:
    from coda.errors import FormatError
    from coda.kernel import from_json

    if kept.program_json is None:
        return None
    try:
        return from_json(kept.program_json).program
    except FormatError as error:
        path = str(kept.folder / "program.json")
        raise KernelDamaged(f"{path!r} is no program: {error.what}", hint="author the kernel again") from error


def _kept_data(kept: kernels.Kept) -> tuple[dict[str, Any], cards_of.Card]:
    """For programs, and for people."""
    from ..keeping.promote import state_of

    try:
        state = state_of(kept, load(kept.task))
    except UnknownTask:
        state = state_of(kept, None)
    program = _program(kept)
    said = f"{state.word}: {state.reason}" if state.reason else state.word
    known = cards_of.card(kept, said)
    plain = {
        "id": kept.id,
        "task": kept.task,
        "state": said,
        "digest": program.digest if program else None,
        "explain": program.explain() if program else "never traced",
        "source": kept.source,
        "provenance": kept.provenance,
        "path": str(kept.folder),
    }
    return {**plain, **cards_of.data(known)}, known
