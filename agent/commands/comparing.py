"""The command `compare` of kernels that a person names: what was measured of them side by side, and what was not.

    compare   the command

Neighbours: `bank` has `compare --all`, `bench` measures where `--run` asks for it, `agent.keeping.compare` concludes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..keeping import shelves as kernels
from ..keeping.scheduled import LEGEND
from . import render
from .terminal import Answer, Exit, Failure, Terminal

if TYPE_CHECKING:
    from ..keeping.compare import Subject

ROW_COLUMNS = (
    "kernel",
    "author",
    "gpu",
    "shape",
    "dtype",
    "us",
    "tflops",
    "cublas",
    "compiled",
    "best_peer",
    "floor",
    "schedule",
    "verdict",
)
HEADERS = {
    "us": "µs p50 (p20 to p80)",
    "tflops": "TFLOP/s",
    "cublas": "% of cuBLAS",
    "compiled": "time/compile",
    "best_peer": "time/best peer",
    "floor": "% of floor",
    "gpu": "GPU",
}


def compare(
    terminal: Terminal,
    texts: Sequence[str],
    threshold: float | None,
    *,
    page: Path | None = None,
    run: bool = False,
) -> Answer:
    """The command `compare`. With `run` the kernels are measured first, once all else is known to make sense."""
    from ..keeping import compare as comparing

    if not texts:
        raise UsageError(
            "nothing to compare was named", hint="`coda-agent compare NAME...`, or `coda-agent compare --all`"
        )
    if page is not None:
        raise UsageError("--html is the page of the whole bank", hint="`coda-agent compare --all --html FILE`")
    if threshold is not None and not (math.isfinite(threshold) and threshold >= 0):
        raise UsageError(f"--threshold {threshold:g} is no percentage", hint="say a number of 0 or more")
    settings = terminal.settings()

    def gathered() -> tuple[comparing.Subject, ...]:
        return comparing.gather(texts, folders=kernels.shelves(settings), runs=settings.runs_dir)

    subjects = gathered()
    if threshold is not None and len(subjects) < 2:
        raise UsageError("--threshold compares kernels, and there is only one", hint="name a second kernel")
    if run:
        from . import bench

        now = bench.fresh(terminal, texts)
        return now.beside(_compared(gathered(), threshold))
    return _compared(subjects, threshold)


def _compared(subjects: Sequence[Subject], threshold: float | None) -> Answer:
    from ..keeping import compare as comparing

    found = comparing.compare(subjects)

    def show() -> Iterator[Any]:
        listed = [
            {
                "kernel": s.id,
                "author": f"{s.author}: {s.who}",
                "digest": s.digest[:12],
                "measured": len(s.found.records),
            }
            for s in subjects
        ]
        yield render.table_of(listed, ["kernel", "author", "digest", "measured"], right=["measured"])
        yield from (f"same program: {' = '.join(ids)}" for ids in found.same)
        if found.rows:
            rows = [{HEADERS.get(name, name): value for name, value in vars(row).items()} for row in found.rows]
            columns = [HEADERS.get(name, name) for name in ROW_COLUMNS]
            yield render.heading("measured")
            yield render.table_of(rows, columns, right=columns[5:8])
            yield LEGEND
        yield from found.verdicts
        yield from (f"not measured: {sentence}" for sentence in found.not_measured)

    code, failure = _threshold(comparing.regression(subjects, threshold) if threshold is not None else None)
    return Answer(found.to_dict(), show, code, failure)


def _threshold(found: tuple[list[str], bool] | None) -> tuple[Exit, Failure | None]:
    if found is None:
        return Exit.OK, None
    slower, compared = found
    if slower:
        return Exit.REGRESSION, Failure("regression", "; ".join(slower), "measure again, or author a faster one")
    if not compared:
        return Exit.ENVIRONMENT, Failure(
            "not-measured", "these kernels have no measured setting in common", "review both on one GPU"
        )
    return Exit.OK, None
