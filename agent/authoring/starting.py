"""A kept kernel as the start of a run: what the first request says of it, and which kernels will not do.

    start_from   kernel, task and goal in; a `Start` out, which the run's folder keeps

Whatever becomes of the kernel afterwards, the run goes on from what it began with. Neighbours: `prepare` puts the text behind the
task's, `agent.keeping` finds kernels and their records.
"""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

import examples_curated

from ..errors import CannotImprove
from ..keeping import ratios
from ..keeping.measured import of_kernel
from ..keeping.reviews import recorded_digest
from ..keeping.shelves import Kept
from ..prompting import outcome
from ..prompting.prompt import improve_text
from ..runs.store import Start
from ..task import Task


def start_from(kept: Kept, task: Task, goal: float | None, *, show_own: bool = False) -> Start:
    """The start of a run of `task` that goes on until `goal`, a fraction of the floor's speed.

    Raises `CannotImprove` where the kernel is of another task, was not kept, has changed since, was not measured, or is one that the
    task withholds.
    """
    if kept.task != task.id:
        raise CannotImprove(
            f"{kept.id!r} is a kernel of {kept.task!r}, not of {task.id!r}", hint="name one of the task"
        )
    if kept.origin == "run" or kept.program_json is None:
        raise CannotImprove(
            f"{kept.id!r} is an attempt that was not kept", hint="`coda-agent list kernels` shows those"
        )
    digest = _digest(kept)
    if not show_own and any(examples_curated.load(e).program.digest == digest for e in examples_curated.catalog()):
        hint = "--show-own-example shows it all the same; recorded"
        raise CannotImprove(f"{kept.id!r} is the same program as a curated example, which is withheld", hint=hint)
    found = of_kernel(kept, None, digest)
    records = tuple(ratios.newest(found.records).values())
    if not records:
        why = f": {'; '.join(found.set_aside)}"[:400] if found.set_aside else ""
        hint = f"measure it first, on a GPU: coda-agent bench {shlex.quote(kept.handle)} --keep"
        raise CannotImprove(f"nothing was measured of {kept.id!r}, so there is nothing to go by{why}", hint=hint)
    text = improve_text(kept.source, outcome.measured(records, goal, _compiled(kept)))
    return Start(kernel=kept.handle, program_digest=digest, text=text)


def _compiled(kept: Kept) -> dict[str, Any]:
    """Evidence of the gate `compile` in the verdict that it was kept with; empty where that is not there."""
    gates = (kept.record("verdict.json") or {}).get("gates")
    found = [g for g in gates if isinstance(g, dict)] if isinstance(gates, list) else []
    evidence = next((g.get("evidence") for g in found if g.get("name") == "compile"), None)
    return evidence if isinstance(evidence, dict) else {}


def _digest(kept: Kept) -> str:
    """Of the program, as long as source and program are what was kept."""
    changed = f"{kept.id!r} has changed since it was kept"
    hint = f"`coda-agent review {shlex.quote(kept.handle)}` judges it afresh"
    known = kept.provenance.get("source_sha256")
    if known is not None and hashlib.sha256(kept.source.encode()).hexdigest() != known:
        raise CannotImprove(f"{changed}: kernel.py is not the text that was judged", hint=hint)
    digest, complaints = recorded_digest(kept)
    if complaints:
        raise CannotImprove(f"{changed}: {'; '.join(complaints)}", hint=hint)
    if kept.provenance.get("program_digest", digest) != digest:
        raise CannotImprove(f"{changed}: program.json is not the program that was judged", hint=hint)
    return digest
