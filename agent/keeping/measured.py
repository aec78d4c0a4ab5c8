"""What was measured of a kernel, wherever it was recorded: benchmark records read from verdicts and from files.

    records     every `coda.bench.record.BenchRecord` inside a JSON value
    of_kernel   those of a kernel, from its fresh verdict and from `bench/<gpu>.json` beside it
    of_example  those of a curated example, from the JSON files of its bank
    of_file     all records of a file, read once as long as it does not change
    Timing      one variant of one record, for a table
    timings     a record as such rows

A record counts only for the program whose digest it carries, and only when its outputs were checked; whatever else lies in a
file is reported as set aside, with the reason. Times are compared within a record, never between two: different runs have
different clocks. Neighbours: `review` and `compare` show these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import examples_curated
from coda.bench.record import FORMAT, KERNELS, BenchRecord, Measured
from coda.bench.timing import NOISE

from ..records import Verdict
from .shelves import Kept

MAX_DEPTH = 8
UNKNOWN = "unknown GPU"
_SHAPE_OF_A_RECORD = {"task", "program_digest", "measured", "compared"}


@dataclass(frozen=True)
class Measurements:
    """Records of one program, and what was found but does not count."""

    records: tuple[BenchRecord, ...] = ()
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """One variant of one record. Microseconds."""

    gpu: str
    shape: str
    dtype: str
    variant: str
    author: str
    """llm, project, human or tool."""
    us: float
    low: float
    high: float
    against: str = ""
    """How the kernel does against this variant; empty for the kernel itself."""
    note: str = field(default="", compare=False)

    def shown(self) -> dict[str, str]:
        """As text for a table."""
        return {
            "gpu": self.gpu,
            "shape": self.shape,
            "dtype": self.dtype,
            "variant": f"{self.variant} ({self.author})" if self.author else self.variant,
            "us": f"{self.us:.1f} ({self.low:.1f} to {self.high:.1f})",
            "ratio": " ".join(part for part in (self.against, self.note) if part),
        }


# reading --------------------------------------------------------------------------------------------------------------


def records(value: Any, *, depth: int = 0) -> Iterator[BenchRecord | str]:
    """Every record inside a JSON value; a sentence for one that cannot be read."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        if value.get("format") == FORMAT or value.keys() >= _SHAPE_OF_A_RECORD:
            try:
                yield BenchRecord.from_json(json.dumps({"format": FORMAT, **value}))
            except ValueError as error:
                yield f"a record that cannot be used: {error}"
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                yield from records(item, depth=depth + 1)


def of_kernel(kept: Kept, verdict: Verdict | None, digest: str) -> Measurements:
    """Records of a kernel's program: of the files in its folder, the likely oldest first, and of the fresh verdict."""
    sources: list[tuple[str, Any]] = []
    for name in ("verdict.json", "bench.json"):
        value = kept.record(name)
        if value is not None:
            sources.append((name, value))
    sources += [(f"bench/{name}.json", value) for name, value in kept.benches.items()]
    if verdict is not None:
        sources.append(("the bench gate", verdict.gate("bench").evidence))
    return _belonging(sources, digest)


def of_example(digest: str, folder: Path = examples_curated.FOLDER) -> Measurements:
    """Records of a curated example's program: every JSON file of the bank is looked through."""
    paths = sorted(folder.glob("**/*.json"))
    found = _counted(((path.relative_to(folder).as_posix(), r) for path in paths for r in of_file(path)), digest)
    return Measurements(found.records, tuple(s for s in found.set_aside if "another program" not in s))


def of_file(path: Path) -> tuple[BenchRecord | str, ...]:
    """Every record of a JSON file, and a sentence for what cannot be read."""
    try:
        return _of_file(path, path.stat().st_mtime_ns)
    except OSError as error:
        return (f"a record that cannot be used: {error.strerror or error}",)


@functools.lru_cache(maxsize=64)
def _of_file(path: Path, stamp: int) -> tuple[BenchRecord | str, ...]:
    """`stamp` makes a changed file a new one."""
    try:
        return tuple(records(json.loads(path.read_text("utf-8"))))
    except (ValueError, RecursionError) as error:
        return (f"a record that cannot be used: {error}",)


def _belonging(sources: Iterable[tuple[str, Any]], digest: str) -> Measurements:
    return _counted(((name, record) for name, value in sources for record in records(value)), digest)


def _counted(found: Iterable[tuple[str, BenchRecord | str]], digest: str) -> Measurements:
    kept: list[BenchRecord] = []
    aside: list[str] = []
    for name, record in found:
        if isinstance(record, str):
            aside.append(f"{name}: {record}")
        elif record.program_digest != digest:
            aside.append(f"{name}: a record of another program, {record.program_digest[:12]}")
        elif not record.verified:
            aside.append(f"{name}: a record whose outputs were not right")
        elif record not in kept:
            kept.append(record)
    return Measurements(tuple(kept), tuple(dict.fromkeys(aside)))


# rows -----------------------------------------------------------------------------------------------------------------


def gpu(record: BenchRecord) -> str:
    """Where it was measured."""
    return str(record.environment.get("gpu", UNKNOWN))


def origin(record: BenchRecord, *, clocks: bool = False) -> str:
    """Where and how it was measured, as sentences have it: GPU, dtype, versions, protocol."""
    e, p = record.environment, record.protocol
    versions = ", ".join(f"{n} {e[n]}" for n in ("torch", "triton", "quack-kernels", "cuda", "driver") if n in e)
    known = clocks and {"sm_clock_mhz", "power_limit_w"} <= e.keys()
    clock = f", {e['sm_clock_mhz']} MHz, {e['power_limit_w']} W" if known else ""
    how = ", ".join(
        text
        for text, told in (
            (f"{p.get('cache')} L2", "cache" in p),
            (f"{p.get('rounds')} interleaved rounds", "rounds" in p),
            ("a GPU-side backlog before each launch", bool(p.get("backlog"))),
        )
        if told
    )
    return f"{gpu(record)} in {record.dtype}: {versions or 'versions not recorded'}{clock}; {how or 'protocol not recorded'}"


def shape(dims: Mapping[str, int]) -> str:
    """M×N×K in the task's own order of dims."""
    return " ".join(f"{name}={length}" for name, length in dims.items())


def timings(found: Measurements) -> Iterator[Timing]:
    """Every variant of every record, the kernel first."""
    for record in found.records:
        words = {
            c.variant or c.peer: f"×{c.ratio:.3f} ({c.low:.3f} to {c.high:.3f}), {c.word}" for c in record.compared
        }
        note = f"SUSPECT: {record.suspicion}" if record.suspicion else ""
        for variant in sorted(record.measured, key=lambda m: m.name != record.kernel):
            if variant.name == NOISE:
                continue
            mine = variant.name == record.kernel
            floor = f"{record.floor.seconds / variant.median:.0%} of the floor's speed" if mine else ""
            yield Timing(
                gpu=gpu(record),
                shape=shape(record.dims),
                dtype=record.dtype,
                variant=variant.name,
                author=variant.author,
                us=variant.median * 1e6,
                low=variant.low * 1e6,
                high=variant.high * 1e6,
                against=floor if mine else words.get(variant.name, _otherwise(variant)),
                note=note if mine else variant.note,
            )


def _otherwise(variant: Measured) -> str:
    """What is said of a variant with which the kernel was not compared."""
    if variant.author in KERNELS:
        return ""
    return "a slower configuration" if variant.peer else "a ceiling, not a competitor"
