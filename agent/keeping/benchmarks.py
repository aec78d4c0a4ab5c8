"""Benchmarks that a person asks for: which kernels, at which sizes, where results go, and what need not be measured again.

    Target    a kernel that can be timed: a curated example or a kept kernel
    targets   what the names on a command line mean
    jobs      every target at every size
    Log       results of one sweep, one line each, written as they come; what a resumed sweep need not repeat
    measure   run what the log does not have, and log it
    readable  whether what lies beside kernels can be kept, before anything is measured
    keep      put records beside the kernels they are of

A record goes where `measured` finds it: an example's to `examples_curated/records/<gpu>.json`, a kept kernel's to `bench/<gpu>.json`
in its folder. A new record of the same kernel, size and protocol takes the old one's place; records of what an example no longer
is are dropped with it; what else the file holds stays. Neighbours: `agent.verify.suite` runs the jobs, `commands/bench.py` is the command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import examples_curated
from coda.bench.record import BenchRecord
from coda.errors import CodaError
from coda.kernel import from_json

from .. import files, task
from ..errors import FolderUnusable, KernelDamaged, UnknownSubject, UnknownTask
from ..verify.subject import task_ref
from ..verify.suite import Job, Machine, Options, Result, Tell, key_of, run
from . import measured, ratios
from . import shelves as kernels
from .compare import EXAMPLES
from .shelves import Kept

RECORDS = examples_curated.FOLDER / "records"


@dataclass(frozen=True)
class Target:
    """A kernel that can be timed."""

    id: str
    task: str
    program: str
    """JSON."""
    digest: str
    schedule: Mapping[str, Any] | None
    records: Path
    """The folder of its records, one file per GPU."""


def targets(
    texts: Sequence[str], *, folders: Iterable[Path], runs: Path, everything: bool = False
) -> tuple[Target, ...]:
    """A task stands for its example and every kept kernel. Raises `UnknownSubject`, `KernelDamaged`."""
    folders = tuple(folders)
    wanted = [*texts, *(task.cards() if everything else ())]
    found: dict[str, Target] = {}
    for text in wanted:
        for target in _targets(text, folders, runs, missing_ok=everything and text not in texts):
            found.setdefault(target.id, target)
    return tuple(found.values())


def _targets(text: str, folders: tuple[Path, ...], runs: Path, *, missing_ok: bool) -> list[Target]:
    name = text.removeprefix(EXAMPLES)
    if text != name and name in examples_curated.catalog():
        return [of_example(name)]
    try:
        card = task.find(text)
    except UnknownTask as unknown:
        try:
            return [of_kept(kernels.find(text, folders=folders, runs=runs))]
        except UnknownSubject as error:
            raise kernels.of_any_kind(text, error, unknown.near) from None
    found = [of_example(card.id)] if card.id in examples_curated.catalog() else []
    found += [of_kept(kernels.read(e.path)) for e in kernels.entries(folders) if e.task == card.id]
    if not found and not missing_ok:
        hint = f"`coda-agent author {card.id}` writes one"
        raise UnknownSubject(text, kinds="task with a kernel", hint=hint)
    return found


def with_examples(found: Iterable[Target]) -> tuple[Target, ...]:
    """The same, and the curated example of every task that is among them."""
    every = {target.id: target for target in found}
    for name in dict.fromkeys(target.task for target in every.values()):
        if name in examples_curated.catalog():
            example = of_example(name)
            every.setdefault(example.id, example)
    return tuple(every.values())


def of_example(example_id: str) -> Target:
    """A curated example. Raises `UnknownSubject` for one that belongs to no task: it has nothing to be compared with."""
    if example_id not in task.cards():
        raise UnknownSubject(example_id, kinds="example of a task", hint="`coda-agent list tasks` shows them")
    program = examples_curated.load(example_id).program
    return Target(f"{EXAMPLES}{example_id}", example_id, program.to_json(), program.digest, None, RECORDS)


def of_kept(kept: Kept) -> Target:
    """A kept kernel or an attempt of a run. Raises `KernelDamaged` for one without a readable program."""
    try:
        digest = from_json(kept.program_json or "").program.digest
    except CodaError as error:
        raise KernelDamaged(f"{kept.id}: no readable program.json: {error.what}", hint="review it") from error
    return Target(kept.id, kept.task, kept.program_json or "", digest, kept.schedule, kept.folder / "bench")


def jobs(
    found: Iterable[Target],
    shapes: Callable[[task.Task], Sequence[Mapping[str, int]]],
    peers: Sequence[str] = (),
) -> list[Job]:
    """Every target at every size that `shapes` gives for its task."""
    made = []
    for target in found:
        spec = task.load(target.task)
        for dims in shapes(spec):
            made.append(
                Job(
                    kernel=target.id,
                    task=task_ref(spec),
                    program=target.program,
                    digest=target.digest,
                    dims=dict(dims),
                    peers=tuple(peers),
                    schedule=target.schedule,
                )
            )
    return made


# the log of a sweep -----------------------------------------------------------------------------------------------------


class Log:
    """Results of a sweep in a file, one line each; a line is there completely or not at all."""

    def __init__(self, path: Path) -> None:
        """Read what is there. Raises `FolderUnusable` for a file that is no log."""
        self.path = path
        self.results: dict[str, Result] = {}
        """By key; of several with one key the last."""
        try:
            lines = files.read_lines(path)
        except (OSError, UnicodeDecodeError) as error:
            hint = "name another place with --out, or remove the file"
            raise FolderUnusable(f"{str(path)!r} cannot be read as results: {error}", hint=hint) from error
        for line in lines:
            try:
                result = Result.model_validate_json(line)
            except ValidationError:
                continue  # of another version: it is measured again
            self.results[result.key] = result

    def add(self, result: Result) -> None:
        """Write it and wait until it is on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.append_line(self.path, result.model_dump_json())
        self.results[result.key] = result

    def settled(self, key: str) -> bool:
        """Whether this need not be measured again."""
        return key in self.results and self.results[key].settled


def record_of(result: Result) -> BenchRecord | None:
    """Its record, if it has one that can be read."""
    if result.record is None:
        return None
    return next((r for r in measured.records(result.record) if isinstance(r, BenchRecord)), None)


@dataclass(frozen=True)
class Sweep:
    """What a sweep has in the end."""

    results: tuple[Result, ...]
    """Of every job that was reached now or before, in the order of the jobs."""
    reused: int
    """How many of them the log had."""
    left: int
    """Jobs that were not reached in time."""


def measure(
    wanted: Sequence[Job],
    where: Machine,
    options: Options,
    log: Log,
    *,
    resume: bool,
    tell: Tell = lambda text: None,
    heard: Callable[[Result], None] = lambda result: None,
) -> Sweep:
    """Every job that is wanted and, where it is resumed, not settled in the log. Raises `BenchUnavailable`."""
    keyed = {key_of(job, options, where.environment): job for job in wanted}
    wanting = {key: job for key, job in keyed.items() if not (resume and log.settled(key))}
    # what has failed before comes last: it may break the GPU for everything behind it
    todo = [wanting[key] for key in sorted(wanting, key=lambda key: resume and key in log.results)]

    def done(result: Result) -> None:
        log.add(result)
        heard(result)

    left = run(todo, where, options, done, tell) if todo else 0
    found = tuple(log.results[key] for key in keyed if key in log.results)
    return Sweep(found, len(keyed) - len(todo), left)


# beside the kernels -----------------------------------------------------------------------------------------------------


def file_of(gpu: str) -> str:
    """nvidia-h200.json, for "NVIDIA H200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def readable(found: Iterable[Target], gpu: str) -> None:
    """Whether `keep` could go on from the records of this GPU, and write there: before measuring costs anything. Raises
    `KernelDamaged`, and `OSError` that names the file."""
    for path in dict.fromkeys(target.records / file_of(gpu) for target in found):
        _present(path)
        files.require_place(path)


def keep(found: Sequence[Target], results: Iterable[Result]) -> list[Path]:
    """Write records beside the kernels that were measured, and nowhere else: an example and a kept kernel may be one program, and
    were timed with schedules of their own. Returns the files that were written. Raises `KernelDamaged`."""
    by_id = {target.id: target for target in found}
    places: dict[Path, list[BenchRecord]] = {}
    current = {target.task: target.digest for target in found if target.records == RECORDS}
    for result in results:
        target, record = by_id.get(result.kernel), record_of(result)
        if target is not None and record is not None and target.digest == record.program_digest:
            places.setdefault(target.records / file_of(measured.gpu(record)), []).append(record)
    present = {path: _present(path) for path in places}  # before anything is written
    for path, new in places.items():
        old, beside = present[path]
        merged = {_place(r): r for r in [*old, *new]}
        now = current if path.parent == RECORDS else {}
        kept = [r for r in merged.values() if now.get(r.task, r.program_digest) == r.program_digest]
        write(path, kept, beside=beside)
    return sorted(places)


def _place(record: BenchRecord) -> tuple[Any, ...]:
    """What a newer record takes the place of."""
    dims = tuple(sorted(record.dims.items()))
    return record.task, record.program_digest, dims, record.dtype, ratios.protocol(record)


def _present(path: Path) -> tuple[list[BenchRecord], dict[str, Any]]:
    """The records of a file, and what it has besides them: verdicts, say. Raises `KernelDamaged` for one that holds records that
    cannot be read, of a newer version, say: writing the file anew would lose them."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return [], {}
    except (OSError, ValueError, RecursionError) as error:
        raise KernelDamaged(f"{str(path)!r} cannot be read: {error}", hint="mend or remove it") from error
    listed = found.get("records", []) if isinstance(found, dict) else found
    records: list[BenchRecord] = []
    for number, item in enumerate(listed if isinstance(listed, list) else [listed], 1):
        for record in tuple(measured.records(item)) or ("it is no record that is known here",):
            if isinstance(record, str):
                what = f"{str(path)!r}: record {number} would be lost: {record}"
                raise KernelDamaged(what, hint="mend or remove that record, or use the version that wrote it")
            records.append(record)
    return records, {k: v for k, v in found.items() if k != "records"} if isinstance(found, dict) else {}


def write(path: Path, records: Iterable[BenchRecord], *, beside: Mapping[str, Any] | None = None) -> None:
    """A file of records, a line each, so that a change of one shows as one; what lies `beside` them comes after, a line each."""
    ordered = sorted(records, key=lambda r: (r.task, tuple(r.dims.values()), r.program_digest))
    lines = ",\n".join(r.to_json() for r in ordered)
    more = "".join(_part(name, value) for name, value in (beside or {}).items())
    files.write_text(path, f'{{"records": [\n{lines}\n]{more}}}\n')


def _part(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f",\n{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
    return f",\n{json.dumps(name)}: {{\n{lines}\n}}"
