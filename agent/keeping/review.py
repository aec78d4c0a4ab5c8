"""`review`: judge a kernel again from scratch and write what a reviewer reads.

    review      retrace, judge, compare with what the folder claims, write REVIEW.md, review.html, review.json
    Judge       what is asked of the judge
    Written     the review and where its documents are

Nothing in a review comes from an earlier verdict: `kernel.py` is traced again, the gates run with new seeds, and the program
found must be the one in `program.json`, which is what would be dispatched. The judge is handed in, so that tests need none.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..files import write_text
from ..records import Record, Verdict
from ..task import Task
from . import measured, packet
from . import shelves as kernels
from .reviews import FILE, Review, recorded_digest, said
from .shelves import Kept


class Judge(Protocol):
    """What `agent.verify.judge.judge` is to us, its options bound."""

    def __call__(self, source: str, task: Task, schedule: dict[str, Any] | None) -> Verdict:
        """All gates on a source."""


class Written(Record):
    """A review and where its documents are."""

    review: Review
    markdown: Path
    html: Path


def review(
    kept: Kept,
    task: Task,
    judge: Judge,
    *,
    into: Path | None = None,
    now: Callable[[], datetime.datetime] | None = None,
) -> Written:
    """Judge and write. A refusal is a result, not an exception; the packet is written all the same."""
    verdict = judge(kept.source, task, kept.schedule)
    refusals, recorded, retraced = against(kept, verdict)
    found = Review(
        kernel=kept.id,
        task=task.id,
        refusals=refusals,
        recorded_digest=recorded,
        retraced_digest=retraced,
        tree_digest=kernels.tree_digest(kept, task.digest),
        verdict=verdict,
        created=now() if now else datetime.datetime.now(datetime.UTC),
    )
    timings = list(measured.timings(measured.of_kernel(kept, verdict, retraced)))
    content = packet.packet(kept, task, verdict, refusals, timings, digests=(recorded, retraced))
    folder = into or kept.folder
    written = Written(review=found, markdown=folder / "REVIEW.md", html=folder / "review.html")
    write_text(written.markdown, packet.markdown(content))
    write_text(written.html, packet.html(content))
    write_text(folder / FILE, found.model_dump_json(by_alias=True, indent=2) + "\n")  # last: it says the rest is there
    return written


def against(kept: Kept, verdict: Verdict) -> tuple[tuple[str, ...], str, str]:
    """Everything that stands against a kernel after a fresh verdict, and the recorded and the retraced program's digest."""
    recorded, complaint = recorded_digest(kept)
    retraced = verdict.program_digest or ""
    return (*said(verdict), *complaint, *_drift(kept, recorded, retraced)), recorded, retraced


def _drift(kept: Kept, recorded: str, retraced: str) -> Sequence[str]:
    """Where source, program and provenance are not about one program."""
    found = []
    if recorded and retraced and recorded != retraced:
        found.append(
            f"kernel.py traces to {retraced[:12]}, program.json holds {recorded[:12]}: one of them was changed after it was kept"
        )
    claimed = str(kept.provenance.get("program_digest") or "")
    if claimed and recorded and claimed != recorded:
        found.append(f"provenance.json is about the program {claimed[:12]}, program.json holds {recorded[:12]}")
    return found
