"""The geometry of the leaderboard's pictures: numbers in, coordinates out. The template draws, and decides nothing.

    bars        one task at one size: a bar per side with its interval, and the floor as a line
    roofline    achieved rate over arithmetic intensity, below what the machine can do
    overheads   time over the plain GEMM's, a line per task and a mark per size

Coordinates are those of an SVG's viewBox, y downwards. Widths fit a phone: a picture is never scaled down, so that its letters
stay legible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .duels import SIDE_NAMES, SIDES, Row, Side, size_key

NAMES: Mapping[Side, str] = {**SIDE_NAMES, "compile": "compile"}
"""Short enough for a label."""
WIDTH = 340.0
LABELS = 66.0
"""Of the names left of the bars."""
VALUES = 78.0
"""Kept free right of the longest bar."""
LINE = 22.0
LETTER = 6.1
"""Of a task's name, on the broad side."""
CAP = 3.0
"""Overheads beyond this factor are drawn at the edge and told in words."""


@dataclass(frozen=True)
class Bar:
    """One side."""

    side: Side
    label: str
    value: str
    title: str
    y: float
    width: float
    low: float
    high: float
    """Ends of the interval, in x."""
    text: float
    """Where the value stands."""


@dataclass(frozen=True)
class Bars:
    """One task at one size."""

    id: str
    height: float
    left: float
    bars: tuple[Bar, ...]
    floor: float
    """x of the floor."""
    floor_text: str
    floor_anchor: str
    summary: str
    """The picture in words."""


@dataclass(frozen=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Point:
    """One measured variant."""

    kind: str
    """A side, or the number of a size: says shape and colour."""
    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Roofline:
    """One GPU and dtype."""

    id: str
    where: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    roof: tuple[tuple[float, float], ...]
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    points: tuple[Point, ...]
    sides: tuple[Side, ...]
    summary: str
    left_out: tuple[str, ...]
    """Tasks without a GEMM."""


@dataclass(frozen=True)
class Line:
    """One task."""

    label: str
    y: float
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Overheads:
    """Every task of one GPU and dtype."""

    id: str
    where: str
    width: float
    height: float
    left: float
    right: float
    xs: tuple[Tick, ...]
    lines: tuple[Line, ...]
    sizes: tuple[str, ...]
    summary: str


def bars(row: Row, identity: str) -> Bars:
    """The bars of one row, from zero."""
    sides = [side for side in SIDES if side in row.times]
    longest = max([row.floor_us, *(row.times[s].high for s in sides)])
    scale = (WIDTH - LABELS - VALUES) / longest
    found = []
    for at, side in enumerate(sides):
        time = row.times[side]
        carried = " (carried over from another run)" if time.through else ""
        found.append(
            Bar(
                side=side,
                label=NAMES[side],
                value=f"{microseconds(time.us)} µs{'*' if time.through else ''}",
                title=f"{NAMES[side]}, {time.who}: {time.us:.1f} µs, {time.low:.1f} to {time.high:.1f}{carried}",
                y=round(4 + at * LINE, 1),
                width=round(time.us * scale, 1),
                low=round(LABELS + time.low * scale, 1),
                high=round(LABELS + time.high * scale, 1),
                text=round(
                    LABELS + max(time.high, row.floor_us if time.high > 0.8 * row.floor_us else 0) * scale + 6, 1
                ),
            )
        )
    floor = round(LABELS + row.floor_us * scale, 1)
    return Bars(
        id=identity,
        height=len(sides) * LINE + 24,
        left=LABELS,
        bars=tuple(found),
        floor=floor,
        floor_text=f"floor {microseconds(row.floor_us)} µs",
        floor_anchor="end" if floor > WIDTH - 60 else "middle" if floor > LABELS + 40 else "start",
        summary="; ".join([*(b.title for b in found), f"floor {row.floor_us:.1f} µs ({row.bound})"]),
    )


def microseconds(us: float) -> str:
    """Three or four digits."""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


# roofline -------------------------------------------------------------------------------------------------------------


def rooflines(rows: Sequence[Row]) -> Iterator[Roofline]:
    """One per GPU and dtype that has a GEMM among its rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.gpu, row.dtype), []).append(row)
    for at, ((gpu, dtype), found) in enumerate(groups.items()):
        if any(row.flops and row.bytes for row in found):
            yield _roofline(f"{gpu}, {dtype}", found, f"roof-{at}")


def _roofline(where: str, rows: Sequence[Row], identity: str) -> Roofline:
    width, height, left, right, top, bottom = 360.0, 360.0, 44.0, 350.0, 14.0, 318.0
    with_gemm = [r for r in rows if r.flops and r.bytes]
    peak = max((r.gemm_flops or r.flops / r.floor_us * 1e6) for r in with_gemm) / 1e12
    bandwidth = max(r.bandwidth for r in with_gemm) / 1e12
    ridge = peak / bandwidth
    spots = [(side, r, r.flops / r.bytes, r.flops / time.us / 1e6) for r in with_gemm for side, time in r.times.items()]
    spots.sort(key=lambda spot: -SIDES.index(spot[0]))  # the model's marks are drawn last, and so on top
    lowest = min(rate for *_, rate in spots)
    x_low, x_high = min(ridge, *(i for _, _, i, _ in spots)) / 1.25, max(i for _, _, i, _ in spots) * 1.25
    y_low, y_high = min(lowest, peak) / 1.15, peak * 1.12

    def x(intensity: float) -> float:
        return round(left + (right - left) * math.log(intensity / x_low) / math.log(x_high / x_low), 1)

    def y(rate: float) -> float:
        share = math.log(max(rate, y_low) / y_low) / math.log(y_high / y_low)
        return round(bottom - (bottom - top) * share, 1)

    start = max(x_low, y_low / bandwidth)
    roof = [(x(start), y(start * bandwidth)), (x(ridge), y(peak)), (x(x_high), y(peak))]
    points = [
        Point(
            side,
            x(intensity),
            y(rate),
            f"{r.task} at {r.size}, {NAMES[side]} ({r.times[side].who}): {rate:.0f} TFLOP/s at {intensity:.0f} flops per byte",
        )
        for side, r, intensity, rate in spots
    ]
    sides = tuple(s for s in SIDES if any(p.kind == s for p in points))
    reached = ", ".join(
        f"{NAMES[s]} {min(v := [rate for side, _, _, rate in spots if side == s]):.0f} to {max(v):.0f}" for s in sides
    )
    return Roofline(
        id=identity,
        where=where,
        width=width,
        height=height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        roof=tuple(roof),
        xs=tuple(Tick(x(t), f"{t:g}") for t in ticks(x_low, x_high)),
        ys=tuple(Tick(y(t), f"{t:g}") for t in ticks(y_low, y_high)),
        points=tuple(points),
        sides=sides,
        summary=f"Roof: {peak:.0f} TFLOP/s of the plain GEMM, {bandwidth:.2f} TB/s of a copy. Reached, in TFLOP/s: {reached}",
        left_out=tuple(dict.fromkeys(r.task for r in rows if r not in with_gemm)),
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis; closer ones where a decade has too few."""
    found: list[float] = []
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8)):
        found = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
            for step in steps
            if low <= step * 10.0**power <= high
        ]
        if len(found) >= 3:
            break
    return found


# overhead over the plain GEMM -----------------------------------------------------------------------------------------


def overheads(rows: Sequence[Row]) -> Iterator[Overheads]:
    """One per GPU and dtype: of the model's kernel in each row, of the project's where there is none of a model."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.cublas_us:
            groups.setdefault((row.gpu, row.dtype), []).append(row)
    for at, ((gpu, dtype), found) in enumerate(groups.items()):
        yield _overheads(f"{gpu}, {dtype}", found, f"over-{at}")


def _overheads(where: str, rows: Sequence[Row], identity: str) -> Overheads:
    width, right, step = 360.0, 344.0, 17.0
    left = min(LETTER * max(len(r.task) for r in rows) + 14, 205.0)
    sizes = tuple(sorted({r.size for r in rows}, key=size_key))
    values = [(r, r.times[r.anchor].us / r.cublas_us) for r in rows if r.cublas_us]
    low, high = min(1.0, *(v for _, v in values)), min(CAP, max(1.1, *(v for _, v in values)))

    def x(value: float) -> float:
        return round(left + (right - left) * (min(value, high) - low) / (high - low), 1)

    by_task: dict[str, list[tuple[Row, float]]] = {}
    for row, value in values:
        by_task.setdefault(row.task, []).append((row, value))
    ordered = sorted(by_task.items(), key=lambda item: min(v for _, v in item[1]))
    lines = []
    for at, (task, found) in enumerate(ordered):
        y = round(20 + at * step, 1)
        points = [
            Point(
                str(sizes.index(r.size) % 4),
                x(v),
                y,
                f"{task} at {r.size}, {NAMES[r.anchor]}: ×{v:.3f} of cuBLAS{' (beyond the edge)' if v > high else ''}",
            )
            for r, v in found
        ]
        lines.append(Line(task, y, tuple(points)))
    span = high - low
    unit = next((u for u in (0.05, 0.1, 0.2, 0.5, 1.0) if span / u <= 5), 1.0)
    marks = [round(k * unit, 2) for k in range(math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9) + 1)]
    least, most = min(values, key=lambda p: p[1]), max(values, key=lambda p: p[1])
    return Overheads(
        id=identity,
        where=where,
        width=width,
        height=20 + len(lines) * step + 22,
        left=left,
        right=right,
        xs=tuple(Tick(x(m), f"×{m:g}") for m in marks),
        lines=tuple(lines),
        sizes=sizes,
        summary=f"Time over the plain GEMM's, from ×{least[1]:.3f} ({least[0].task} at {least[0].size}) "
        f"to ×{most[1]:.3f} ({most[0].task} at {most[0].size})",
    )
