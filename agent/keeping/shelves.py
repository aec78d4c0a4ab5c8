"""A kernel on disk that a person names: the kept kernel, or what a run left, with everything that is known about it.

    Kept         one such kernel: its files, read and not trusted
    find         by path, by "task/name", by name alone where only one fits, or by run
    of_any_kind  the refusal where a task or an example might have been meant too
    found_as     how what a run kept is found from everywhere
    shelves      the folders in which kept kernels are looked for
    tree_digest  what a verdict on a kernel depends on: the task, the judge (`agent.verify.identity`), and the kernel's files

`review`, `promote` and `compare` work on a `Kept`. Nothing here runs a candidate's code. Neighbours: `keep` wrote the folder,
`agent.runs.store` the run, the package `authored_kernels` lists the shelves.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import authored_kernels
import examples_curated

from .. import files
from ..errors import KernelDamaged, UnknownRun, UnknownSubject
from ..llm.protocol import UNKNOWN_MODEL
from ..runs import store
from ..runs.events import KeptKernel
from ..settings import Settings
from ..verify.identity import ROOT, judge_digest

MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True)
class Kept:
    """A kernel on disk. `program_json` is what the folder claims; whoever needs the truth retraces `source`."""

    id: str
    """ "task/name", or the run's id with the number of the call."""
    task: str
    folder: Path
    origin: Literal["kernel", "run"]
    """`run`: an attempt that was not kept."""
    source: str
    program_json: str | None
    """None for an attempt that was never traced."""
    schedule: dict[str, Any] | None
    provenance: dict[str, Any]
    """Empty where nobody recorded any."""
    run: Path | None = None
    """The run's folder, where it was named by run."""
    called: str = ""
    """How the person named it."""
    same_as: str = ""
    """Of an attempt that was not kept: the kept kernel whose program it made again."""

    @property
    def handle(self) -> str:
        """A name under which the same person finds it again."""
        return self.called or self.id

    def record(self, name: str) -> dict[str, Any] | None:
        """A JSON object of the folder by file name, or None. Raises `KernelDamaged`."""
        return _json(self.folder / name)

    @property
    def benches(self) -> dict[str, dict[str, Any]]:
        """Benchmark records by GPU, as in `bench/<gpu>.json`."""
        found = {path.stem: _json(path) for path in sorted(self.folder.glob("bench/*.json"))}
        return {name: record for name, record in found.items() if record is not None}


def shelves(settings: Settings, *more: Path) -> tuple[Path, ...]:
    """Folders of kept kernels: those named, the checkout's, the user's."""
    wanted = [*more, authored_kernels.FOLDER, settings.kernels_dir]
    return tuple(dict.fromkeys(path for path in wanted if path.is_dir()))


def entries(folders: Iterable[Path]) -> Iterator[authored_kernels.Entry]:
    """Every kept kernel of the shelves; an id that is on two shelves counts on the first."""
    seen: set[str] = set()
    for folder in folders:
        for entry in authored_kernels.catalog(folder):
            if entry.id not in seen:
                seen.add(entry.id)
                yield entry


def find(text: str, *, folders: Iterable[Path], runs: Path) -> Kept:
    """The kernel that a person means. Raises `UnknownSubject` with near names, or `KernelDamaged`."""
    known = list(entries(folders))
    place = files.spelled(text)
    if place is not None and (place / "kernel.py").is_file() and not (place / "run.json").is_file():
        return dataclasses.replace(read(place.resolve()), called=text)
    for attribute in ("id", "name", "task"):
        found = [entry for entry in known if getattr(entry, attribute) == text]
        if len(found) == 1:
            return read(found[0].path)
        if found:
            near = tuple(entry.id for entry in found[:4])
            raise UnknownSubject(text, kinds="single kept kernel", near=near, hint="name one of them")
    try:
        folder = store.find(text, runs)
    except UnknownRun:
        names = [entry.id for entry in known] + [path.name for path in store.list_runs(runs)]
        near = tuple(difflib.get_close_matches(text, names, n=3, cutoff=0.4))
        hint = "`coda-agent list kernels` and `coda-agent list runs` show them all"
        raise UnknownSubject(text, kinds="run or kept kernel", near=near, hint=hint) from None
    return dataclasses.replace(of_run(folder), called=text)


def of_any_kind(text: str, error: UnknownSubject, tasks: tuple[str, ...]) -> UnknownSubject:
    """What `find` refused, said where a task (near ones: `tasks`) or an example might have been meant too."""
    if error.near and "single" in error.what:  # it names several
        return error
    own = difflib.get_close_matches(text.removeprefix("examples_curated/"), examples_curated.catalog(), n=2)
    near = tuple(dict.fromkeys((*error.near[:2], *tasks[:2], *own, *tasks, *error.near)))[:4]
    hint = "`coda-agent list tasks|examples|kernels|runs` shows them all"
    return UnknownSubject(text, kinds="task, example, kernel or run", near=near, hint=hint)


def of_run(folder: Path) -> Kept:
    """What a run left: the kernel that it kept, else its best attempt; where the same program was kept before, its own attempt, which
    is another text by another author. Raises `UnknownSubject` where it judged none."""
    run = store.open_run(folder)
    summary, same_as = run.summary, ""
    if summary is not None and summary.kept is not None and (Path(summary.kept.path) / "kernel.py").is_file():
        kept = read(Path(summary.kept.path), run=folder)
        if not summary.kept.same_program or kept.provenance.get("run") == run.info.id:
            return kept
        same_as = found_as(run, summary.kept)
    judged = run.verdicts
    if not judged:
        hint = f"`coda-agent author {run.info.task} --resume {shlex.quote(folder.name)}` goes on with it"
        raise UnknownSubject(folder.name, kinds="run with a judged kernel", hint=hint)
    best = summary.best.call if summary is not None and summary.best is not None else judged[-1]
    return dataclasses.replace(_attempt(run, best), same_as=same_as)


def found_as(run: store.Run, kept: KeptKernel) -> str:
    """How what the run kept is found from everywhere: by its id, or by its folder where `--into` named one."""
    return kept.id if run.info.into is None else kept.path


def _attempt(run: store.Run, call: int) -> Kept:
    folder, reply = run.attempt_folder(call), run.reply(call)
    provenance = {
        "author": "llm",
        "model": reply.model if reply else run.info.model or UNKNOWN_MODEL,
        "provider": reply.provider if reply else run.info.llm,
        "run": run.info.id,
        "call": call,
        "examples": list(run.info.examples),
        "prompt_version": run.info.prompt_version,
        "rationale": reply.submission.rationale if reply and reply.submission else "",
    }
    program = folder / "program.json"
    return Kept(
        id=f"{run.info.id}#{call}",
        task=run.info.task,
        folder=folder,
        origin="run",
        source=_text(folder / "kernel.py"),
        program_json=_text(program) if program.is_file() else None,
        schedule=_json(folder / "schedule.json"),
        provenance=provenance,
        run=run.folder,
    )


def read(folder: Path, *, run: Path | None = None) -> Kept:
    """A kept kernel from its folder `<task>/<name>/`. Raises `KernelDamaged`."""
    provenance = _json(folder / "provenance.json") or {}
    task = str(provenance.get("task") or folder.parent.name)
    return Kept(
        id=f"{folder.parent.name}/{folder.name}",
        task=task,
        folder=folder,
        origin="kernel",
        source=_text(folder / "kernel.py"),
        program_json=_text(folder / "program.json"),
        schedule=_json(folder / "schedule.json"),
        provenance=provenance,
        run=run,
    )


# what a verdict depends on --------------------------------------------------------------------------------------------

JUDGED = ("kernel.py", "program.json", "schedule.json")
"""Files of a kernel that its verdict is about."""


def tree_digest(kept: Kept, task_digest: str, root: Path = ROOT) -> str:
    """SHA-256 over everything that a verdict on this kernel depends on, but the machine: as long as it is the same, so is
    what was judged, and who judged it."""
    total = hashlib.sha256(f"judge {judge_digest(task_digest, root)}\n".encode())
    for name in JUDGED:
        path = kept.folder / name
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "absent"
        total.update(f"kernel/{name} {digest}\n".encode())
    return total.hexdigest()


# files ----------------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise KernelDamaged(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes", hint="this is no kept kernel")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KernelDamaged(f"{str(path)!r} cannot be read: {error}", hint="author the kernel again") from error


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise KernelDamaged(f"{str(path)!r} is not JSON: {error}", hint="mend or remove the file") from error
    if not isinstance(data, dict):
        raise KernelDamaged(
            f"{str(path)!r} holds a {type(data).__name__}, not an object", hint="mend or remove the file"
        )
    return data
