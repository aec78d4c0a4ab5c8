"""What a word of the judge, or a number, depends on: as long as its digest is the same, asking again would only repeat it.

    judge_digest  a task's file, the library and the judge
    tuned_digest  the measured schedules that calls of some programs would take

Both leave out the machine, which a benchmark's key and a verdict name themselves. Neighbours: `suite.key_of` decides with them
what a resumed sweep repeats, `agent.keeping.shelves` builds a review's digest on the first.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from coda.schedules import FOLDER

ROOT = Path(__file__).resolve().parents[2]
"""Of the installation."""
JUDGES = ("coda/**/*.py", "agent/verify/**/*.py", "agent/task.py", "agent/records.py")
"""Files that make a verdict or a measurement, below the root of the installation."""


def judge_digest(task_digest: str, root: Path = ROOT) -> str:
    """SHA-256 over everything that judging by this task depends on, but the machine."""
    total = hashlib.sha256(f"task {task_digest}\n".encode())
    paths = {path for pattern in JUDGES for path in root.glob(pattern) if "__pycache__" not in path.parts}
    for path in sorted(paths):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {digest}\n".encode())
    return total.hexdigest()


class Tuned(NamedTuple):
    """What a measured schedule is of."""

    program: str
    """Digest."""
    m: int
    n: int
    k: int
    dtype: str


def tuned_digest(wanted: Collection[Tuned], gpu: str, cache: Path) -> str:
    """SHA-256 over the schedules that were measured for these programs at these sizes on a GPU of this name and lie in a cache
    folder; empty where there are none. When they were measured, and how long it took, does not count."""
    found: list[str] = []
    for path in sorted((cache / FOLDER).glob("*.json")):
        try:
            known = _chosen(path, path.stat().st_mtime_ns)
        except OSError:  # replaced or removed meanwhile
            continue
        if known is not None and known[0] == gpu and known[1] in wanted:
            found.append(known[2])
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


@functools.lru_cache(maxsize=8192)
def _chosen(path: Path, stamp: int) -> tuple[str, Tuned, str] | None:
    """GPU, what for, and what a call takes, as text; None for a file that calls ignore too. A changed `stamp` is a changed file."""
    try:
        data = json.loads(path.read_text("utf-8"))
        key, candidates = data["key"], data["candidates"]
        problem = key["problem"]
        best = {backend: candidates[at]["schedule"] for backend, at in data["best"].items()}
        chosen = [key, best, candidates[data["winner"]]["schedule"], data["backends"]]
        what = Tuned(key["program"], problem["m"], problem["n"], problem["k"], problem["dtype"])
        return key["gpu"], what, json.dumps(chosen, sort_keys=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
