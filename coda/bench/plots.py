"""Pictures of benchmark records, as SVG and PNG: times against peers, the roofline, what an epilogue costs by size.

    draw      every picture into a folder; returns the files
    times     each peer's time over the kernel's, with its interval, beside the noise floor
    roofline  rate over intensity, under the roofs measured in the same runs
    overhead  what kernel and peers take above the plain GEMM, by size

One colour per implementation, from a palette that colour-blind readers can tell apart, and a marker of its own, so that a
picture printed in grey still tells. Needs matplotlib, which is imported here and nowhere else. Neighbours: `record.py` has the
numbers.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from coda.bench import empty
from coda.bench.peers import COMPILED
from coda.bench.record import BenchRecord, short

STYLES: dict[str, tuple[str, str]] = {
    "kernel": ("#000000", "o"),
    "compile": ("#0072B2", "s"),
    "compile-halves": ("#56B4E9", "p"),
    "max-autotune": ("#009E73", "D"),
    "eager": ("#999999", "x"),
    "quack": ("#D55E00", "^"),
    "liger": ("#CC79A7", "v"),
    "flashinfer": ("#E69F00", "P"),
    "cut-cross-entropy": ("#F0E442", "*"),
    "empty epilogue": ("#777777", "_"),
}
"""Implementation -> colour (Okabe and Ito's) and marker."""
OTHER = ("#333333", ".")
LOOK: dict[Any, Any] = {"svg.hashsalt": "coda", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
"""matplotlib's settings while these pictures are drawn."""
MOST_ROWS = 40
"""Of one picture of times."""


def draw(records: Sequence[BenchRecord], folder: pathlib.Path) -> list[pathlib.Path]:
    """Every picture that these records give, as `<name>.svg` and `<name>.png`. Raises `ImportError` without matplotlib."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written: list[pathlib.Path] = []
    ordered = sorted(records, key=lambda r: (r.task, tuple(r.dims.values())))
    with matplotlib.rc_context(LOOK):
        for name, figure in _figures(ordered):
            for kind in ("svg", "png"):
                path = folder / f"{name}.{kind}"
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata)
                written.append(path)
    return written


def _figures(records: Sequence[BenchRecord]) -> Iterator[tuple[str, Any]]:
    compared = [r for r in records if r.compared]
    pages = [compared[at : at + MOST_ROWS] for at in range(0, len(compared), MOST_ROWS)]
    for number, page in enumerate(pages, 1):
        yield ("times" if len(pages) == 1 else f"times-{number}"), times(page)
    rated = [r for r in records if r.gemm_flops]
    if rated:
        yield "roofline", roofline(rated)
        yield "overhead", overhead(rated)


def _figure(width: float, height: float) -> Any:
    """A figure that belongs to no window and that nobody has to close."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _axes(width: float, height: float) -> tuple[Any, Any]:
    figure = _figure(width, height)
    return figure, figure.subplots()


def shape(record: BenchRecord) -> str:
    """4096×4096×4096."""
    return short(record.dims)


def _where(records: Sequence[BenchRecord]) -> str:
    gpus = dict.fromkeys(str(r.environment.get("gpu", "unknown GPU")) for r in records)
    dtypes = dict.fromkeys(r.dtype for r in records)
    return f"{', '.join(gpus)}, {', '.join(dtypes)}"


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(reversed(labels), reversed(handles), strict=True))
    names = list(dict.fromkeys(labels))
    axes.legend(
        [first[n] for n in names], names, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )


def times(records: Sequence[BenchRecord]) -> Any:
    """A row per record: how many times the kernel's time each peer takes. Right of 1 the kernel is faster."""
    figure, axes = _axes(8, 0.7 + 0.24 * len(records))
    for row, record in enumerate(records):
        axes.plot([1 - record.noise_floor, 1 + record.noise_floor], [row, row], color="#dddddd", linewidth=7, zorder=0)
        for c in record.compared:
            colour, marker = STYLES.get(c.peer, OTHER)
            middle, low, high = 1 / c.ratio, 1 / c.high, 1 / c.low
            axes.errorbar(
                middle,
                row,
                xerr=[[max(middle - low, 0)], [max(high - middle, 0)]],
                color=colour,
                marker=marker,
                markersize=5,
                linestyle="none",
                linewidth=1,
                label=c.peer,
            )
    axes.axvline(1, color="black", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(records)), [f"{r.task}  {shape(r)}" for r in records])
    axes.invert_yaxis()
    axes.set_xlabel("time of the peer over time of the kernel (95 % interval; grey: noise of the same run)")
    axes.set_title(f"Right of 1 the kernel is faster — {_where(records)}", fontsize=9, loc="left")
    _legend(axes)
    return figure


def roofline(records: Sequence[BenchRecord]) -> Any:
    """Each kernel's rate over its flops per mandatory byte; the roofs are the best measured GEMM and copy."""
    figure, axes = _axes(7, 4.5)
    top = max(r.gemm_flops or 0.0 for r in records)
    bandwidth = max(r.bandwidth for r in records)
    points = [(r.floor.flops / r.floor.bytes, r.floor.flops / r.of(r.kernel).median, r.task) for r in records]
    low, high = min(p[0] for p in points) / 3, max(p[0] for p in points) * 3
    low = min(low, top / bandwidth / 3)
    ridge = top / bandwidth
    axes.plot([low, ridge, high], [low * bandwidth / 1e12, top / 1e12, top / 1e12], color="black", linewidth=1)
    for at, task in enumerate(dict.fromkeys(p[2] for p in points)):
        mine = [p for p in points if p[2] == task]
        colours = [style[0] for style in STYLES.values()]
        markers = "os^vDP*X<>hd"
        axes.plot(
            [p[0] for p in mine],
            [p[1] / 1e12 for p in mine],
            linestyle="none",
            marker=markers[at % len(markers)],
            color=colours[at % len(colours)],
            markersize=5,
            label=task,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("flops per byte of declared inputs and outputs")
    axes.set_ylabel("TFLOP/s")
    roof = f"roofs: {top / 1e12:.0f} TFLOP/s of the plain GEMM, {bandwidth / 1e12:.2f} TB/s of a copy"
    axes.set_title(f"{roof} — {_where(records)}", fontsize=9, loc="left")
    _legend(axes)
    return figure


def overhead(records: Sequence[BenchRecord]) -> Any:
    """Per task a small picture: what the kernel, the best of torch.compile and quack-kernels take above the plain GEMM, by flops."""
    names = list(dict.fromkeys(r.task for r in records))
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = _figure(3.1 * columns, 2.3 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for at, axes in enumerate(grid.flat):
        if at >= len(names):
            axes.set_axis_off()
            continue
        mine = sorted((r for r in records if r.task == names[at]), key=lambda r: r.floor.flops)
        for who in ("kernel", "compile", "quack", "liger", "empty epilogue"):
            points = [(r.floor.flops, above) for r in mine if (above := _above(r, who)) is not None]
            if points:
                colour, marker = STYLES[who]
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, linewidth=1, label=who)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xscale("log")
        axes.set_title(names[at], fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("flops of the GEMMs")
    for line in grid:
        line[0].set_ylabel("% above cuBLAS")
    handles = {label: h for axes in grid.flat for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=8, frameon=False, loc="lower center", ncols=5)
    figure.suptitle(f"Time above the plain GEMM — {_where(records)}", fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return figure


def _above(record: BenchRecord, who: str) -> float | None:
    """Per cent above the plain GEMM of the same run."""
    medians = {m.name: m.median for m in record.measured}
    if who == "kernel":
        mine = [medians[record.kernel]]
    elif who == "empty epilogue":
        mine = [x for name, x in medians.items() if name == empty.label(record.kernel)]
    else:
        peers = COMPILED if who == "compile" else (who,)
        mine = [medians[c.variant or c.peer] for c in record.compared if c.peer in peers]
    return (min(mine) / medians["cublas"] - 1) * 100 if mine and "cublas" in medians else None
