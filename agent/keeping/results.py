"""The README's table: what was measured of the curated examples, generated from the records beside them.

    readme_table   one row per task and shape: time, against the best of torch.compile, against the plain GEMM, error

A ratio is of medians taken in the same run. A task without a record has a row that says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import examples_curated
from coda.bench.record import BenchRecord

from .. import task as tasks
from . import measured

COMPILED = ("compile", "max-autotune")


def readme_table() -> str:
    """Markdown; a sentence where nothing has been measured."""
    rows, missing, origins = [], [], []
    for task_id in tasks.cards():
        if task_id not in examples_curated.catalog():
            continue
        found = measured.of_example(examples_curated.load(task_id).program.digest).records
        rows += [_row(task_id, r) for r in found]
        origins += [_origin(r) for r in found]
        if not found:
            missing.append(task_id)
    if not rows:
        return "Nothing yet: no record of a GPU run is committed."
    head = (
        "| task | M×N×K | coda, µs | torch.compile ÷ coda | coda ÷ cuBLAS GEMM alone | of the floor's speed |",
        "|---|---|---|---|---|---|",
    )
    tail = [f"Measured on {origin}." for origin in dict.fromkeys(origins)]
    if missing:
        tail.append(f"Not measured: {', '.join(missing)}.")
    return "\n".join([*head, *rows, "", " ".join(tail)])


def _row(task_id: str, record: BenchRecord) -> str:
    own = record.of(record.kernel)
    present = {m.name: m.median for m in record.measured}
    compiled = [present[name] for name in COMPILED if name in present]
    cells = [
        f"`{task_id}`",
        "×".join(str(n) for n in _gemm_order(record)),
        f"{own.median * 1e6:.0f}",
        f"{min(compiled) / own.median:.2f}" if compiled else "not measured",
        f"{own.median / present['cublas']:.3f}" if "cublas" in present else "not measured",
        f"{record.floor.seconds / own.median:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


def _gemm_order(record: BenchRecord) -> Iterator[int]:
    """M, N, K first, then whatever else the task has."""
    dims = dict(record.dims)
    for name in ("M", "N", "K"):
        if name in dims:
            yield dims.pop(name)
    yield from dims.values()


def _origin(record: BenchRecord) -> str:
    e = record.environment
    versions = ", ".join(f"{name} {e[name]}" for name in ("torch", "triton", "driver") if name in e)
    return f"one {measured.gpu(record)} in {record.dtype} ({versions}), cold L2, interleaved, medians of one run"
