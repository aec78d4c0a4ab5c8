"""The command `bench --layer`: whole layers, forward and backward, against PyTorch and against their matrix products alone; with
`--tune` their programs are tuned first.

    Asked   which layers, at how many tokens, and what else was on the command line
    bench   the command

Neighbours: `agent.keeping.layers` measures and has the table, `bench.py` is the command for kernels, whose flags those of here are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import FolderUnusable, UsageError
from . import bench as of_kernels
from . import flags, render
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from ..keeping.layers import LayerRecord, Outcome, Wanted

TOKENS = 16384
MOST_TOKENS = 1 << 24
WRITTEN = "write a layer as D:FFN, in numbers, D a multiple of 128: --layer 4096:11008"
BESIDE = ("rounds", "tune", "keep", "out")
"""Of the flags for kernels, those that go with layers too."""
NAMES = {"subjects": "a name", "everything": "--all", "backends": "--backend", "budget_s": "--budget"}
"""Of flags that are called otherwise than their fields."""
RIGHT = ("ms", "÷ GEMMs alone", "÷ compile", "peak, GiB", "error ÷ eager's")


@dataclass(frozen=True)
class Asked:
    """What was asked for."""

    layers: tuple[str, ...]
    tokens: int | None
    autotune: bool
    of_kernels: of_kernels.Asked
    """The same command line, as it would be for kernels."""

    def check(self) -> None:
        """Cheap, before anything slow is imported. Raises `UsageError`."""
        if not self.layers:
            flag = "--tokens" if self.tokens is not None else "--autotune"
            raise UsageError(f"{flag} goes with --layer only", hint="add --layer D:FFN, or leave it out")
        plain = of_kernels.Asked(())
        for name in (f.name for f in dataclasses.fields(plain) if f.name not in BESIDE):
            if getattr(self.of_kernels, name) != getattr(plain, name):
                said = NAMES.get(name, f"--{name.replace('_', '-')}")
                what = f"--layer measures whole layers, {said} does not go with it"
                raise UsageError(what, hint="leave out one of the two")
        flags.number("--tokens", self.tokens, least=1, hint=f"{TOKENS} is usual")
        if self.tokens is not None and self.tokens > MOST_TOKENS:
            raise UsageError(f"--tokens {self.tokens} are more than any GPU holds", hint=f"{TOKENS} is usual")
        flags.number("--rounds", self.of_kernels.rounds, least=3, hint="fewer have no spread; 25 is usual")
        out = self.of_kernels.out
        if out is not None and out.suffix != ".json":
            raise UsageError(f"--out {str(out)!r} is no file for the records of layers", hint="--out FILE.json")

    def wanted(self) -> list[Wanted]:
        """Raises `UsageError`."""
        from ..keeping.layers import HEAD, Wanted

        found = {}
        for text in self.layers:
            lengths = text.split(":")
            if len(lengths) != 2 or not all(
                n.isascii() and n.isdecimal() and len(n) < flags.MOST_DIGITS for n in lengths
            ):
                raise UsageError(f"--layer {text!r} is no layer", hint=WRITTEN)
            width, ffn = map(int, lengths)
            if not width or not ffn or width % HEAD:
                raise UsageError(f"--layer {text!r} has no whole heads of {HEAD} columns, or no columns", hint=WRITTEN)
            found[width, ffn] = Wanted(width, ffn, self.tokens or TOKENS, self.autotune)
        return list(found.values())


def bench(terminal: Terminal, asked: Asked) -> Answer:
    """The command. Raises `UsageError`, `BenchUnavailable`, `FolderUnusable`, `KernelDamaged`."""
    asked.check()
    wanted = asked.wanted()
    from ..keeping import layers
    from ..verify.suite import Options

    keep, out = asked.of_kernels.keep, asked.of_kernels.out
    out = out or of_kernels.folder_of_now(terminal.settings().runs_dir) / "layers.json"
    try:
        files.require_place(out)
        layers.kept(out)  # whether it can be added to
    except OSError as error:
        what = f"records go to {str(out)!r}, which cannot be written: {error.strerror}"
        raise FolderUnusable(what, hint="name another place with --out") from error
    if keep:
        layers.readable()
    tuned = _tuned(terminal, wanted) if asked.of_kernels.tune else None
    found: list[Outcome] = []
    records: list[LayerRecord] = []
    paths: dict[Path, None] = {}
    for one in wanted:
        found.append(layers.measure(one, Options(rounds=asked.of_kernels.rounds), terminal.say))
        if (record := found[-1].record) is None:
            continue
        records.append(record)
        layers.add(out, [record])  # as they come: a layer takes minutes, and the next one may be interrupted
        paths |= dict.fromkeys([out, *(layers.keep([record]) if keep else ())])
    answer = _answer(found, records, [("records", path) for path in paths])
    return answer if tuned is None else of_kernels.with_tuning(answer, tuned)


def _tuned(terminal: Terminal, wanted: Sequence[Wanted]) -> Answer:
    """The fastest schedules of every program that these layers run."""
    from ..keeping import layer_race
    from . import tune

    asked = tune.Asked(())
    arch = tune.arch_of(asked)
    jobs = tune.each_once([job for one in wanted for job in layer_race.jobs_of(one, arch)])
    terminal.say(f"tuning {render.count(len(jobs), 'program')} of {render.count(len(wanted), 'layer')}")
    return tune.measured(terminal, jobs, asked)


def _answer(found: Sequence[Outcome], records: Sequence[LayerRecord], paths: Sequence[tuple[str, Path]]) -> Answer:
    from ..keeping import layers

    rows, failed = layers.table(records), [outcome for outcome in found if outcome.record is None]
    data = {
        "gpu": records[0].gpu if records else None,
        "rows": rows,
        "records": [record.model_dump(mode="json") for record in records],
        "failed": [{"layer": o.wanted.name, "status": str(o.status), "reason": o.reason} for o in failed],
        "paths": [{"what": what, "path": str(path)} for what, path in paths],
    }

    def show() -> Iterator[Any]:
        if rows:
            yield render.table_of(rows, layers.COLUMNS, right=RIGHT)
            yield layers.reading(records)
        for record in records:
            yield from (f"{name} was not measured: {why}" for name, why in record.absent.items())
            yield layers.origin(record)
        for o in failed:
            yield f"not measured: {o.wanted.name}: {o.status} {o.reason}".rstrip()

    if not failed:
        return Answer(data, show, paths=tuple(paths))
    missing = f"{len(failed)} of {render.count(len(found), 'layer')} not measured"
    return Answer(
        data, show, Exit.GOAL_NOT_MET, Failure("incomplete", missing, "see the reason above"), paths=tuple(paths)
    )
