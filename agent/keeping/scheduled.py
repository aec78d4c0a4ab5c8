"""A schedule in few letters, and what a record says of the one that a kernel ran with.

    short    the tile, and what is not as usual
    LEGEND   what the letters mean
    told     of a record's variant: backend, schedule, and where it came from

Neighbours: `coda.problem.Schedule` has the fields, `coda.bench.record.Measured.origin` the words for where one came from; the
commands `tune`, `show` and `compare` and the leaderboard show these.
"""

from __future__ import annotations

import dataclasses

from coda.bench.record import BenchRecord
from coda.errors import CodaError
from coda.problem import Schedule

MARKS = {
    "warps": "w",
    "stages": "s",
    "group_m": "g",
    "split": "e",
    "split_k": "k",
    "cluster_m": "cm",
    "cluster_n": "cn",
}
SWITCHES = {("persistent", False): "grid", ("tma", False): "pointers", ("pingpong", True): "pp"}
LEGEND = (
    "schedule: tile M×N×K; where not as usual w warps, s stages, g rows of tiles together, e parts of the accumulator, k parts of K, "
    "cm and cn cluster, grid: one program per tile, pp: ping-pong"
)


def short(schedule: Schedule) -> str:
    """The tile, and what is not as usual: see `LEGEND`. A field without a mark is spelled out."""
    usual = type(schedule)()
    words = [f"{schedule.tile_m}×{schedule.tile_n}×{schedule.tile_k}"]
    for f in dataclasses.fields(schedule):
        value = getattr(schedule, f.name)
        if f.name in ("backend", "tile_m", "tile_n", "tile_k") or value == getattr(usual, f.name):
            continue
        plain = f"{MARKS[f.name]}{value}" if f.name in MARKS else f"{f.name}={value}"
        words.append(SWITCHES.get((f.name, value), plain) if isinstance(value, bool) else plain)
    return " ".join(words)


def told(record: BenchRecord, name: str = "") -> str:
    """What a variant of a record (its kernel, unless named) ran with: "cutedsl 128×192×64 pp, tuned"; of a plan each program by
    name. Empty where the record does not say."""
    variant = record.of(name or record.kernel)
    parts = {part: _one(plain) for part, plain in variant.config.items()}
    if len(set(parts.values())) == 1:
        said = next(iter(parts.values()))
    else:
        said = "; ".join(f"{part} {text}" for part, text in parts.items())
    return ", ".join(text for text in (said, variant.origin) if text)


def _one(plain: object) -> str:
    """A schedule as a record has it; of a version with other fields its backend at least."""
    if not isinstance(plain, dict):
        return "a schedule that cannot be read"
    try:
        found = Schedule.from_dict(plain)
    except (CodaError, TypeError):
        return f"{plain.get('backend', 'a schedule')} (of another version)"
    return f"{found.backend} {short(found)}"
