"""Kernels that were written through the tool and kept, one folder each: `<task>/<name>/`.

    catalog(folder=None)        every kept kernel, sorted by id
    load("task/name")           the kernel object of one, from its program.json

A folder holds `program.json` (what runs), `kernel.py` (what a person reads; never executed here), `provenance.json` (who
wrote it, from what, at which cost), `verdict.json`, `schedule.json` where one was submitted, and `bench/<gpu>.json` where
it was measured. A kept kernel starts as a *candidate*; `promotion.json`, written when a named person promotes it, says what
it became. One folder that cannot be read is listed as *damaged*, says why, and hides no other. Beside the tasks, `campaigns/`
holds what became of authoring runs (`agent/keeping/campaigns.py`), and `README.md` tabulates them.
`agent/keeping/keep.py` writes the folders. This package imports `coda` and nothing of the tool.
"""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coda.errors import CodaError, FormatError, near

if TYPE_CHECKING:
    from coda.kernel import Epilogue, PlanKernel, Pointwise

__all__ = ["FOLDER", "Entry", "UnknownKernel", "catalog", "load"]

FOLDER = pathlib.Path(__file__).parent
"""Where the kernels of a checkout are. The tool keeps a user's kernels elsewhere when it is installed as a package."""

CANDIDATE = "candidate"
DAMAGED = "damaged"


class UnknownKernel(CodaError):
    """No kept kernel, `task/name`, has that id; the hint lists near ones.

    Of this package alone: the tool's own look-up, which knows runs and examples too, says `agent.errors.UnknownSubject`.
    """

    code = "unknown-kernel"


@dataclass(frozen=True)
class Entry:
    """One kept kernel, as a listing shows it."""

    task: str
    name: str
    path: pathlib.Path
    state: str
    """ "candidate" until somebody promotes it; then what `promotion.json` says; "damaged" where a record cannot be read."""
    digest: str
    """Of the program, as recorded when it was kept; "" where that cannot be read."""
    model: str
    """Who wrote it."""
    trouble: str = ""
    """What is damaged."""

    @property
    def id(self) -> str:
        """ "task/name"."""
        return f"{self.task}/{self.name}"

    @property
    def provenance(self) -> dict[str, Any]:
        """All of `provenance.json`."""
        return _json(self.path / "provenance.json")

    def load(self) -> Epilogue | Pointwise | PlanKernel:
        """The kernel object."""
        return _load(self)


def catalog(folder: pathlib.Path | None = None) -> tuple[Entry, ...]:
    """Every kept kernel of a folder (of this package unless given), sorted by id, the damaged ones included."""
    return tuple(_entries(folder or FOLDER))


def load(kernel_id: str, folder: pathlib.Path | None = None) -> Epilogue | Pointwise | PlanKernel:
    """The kernel "task/name" from its `program.json`; `kernel.py` is not executed.

    Raises `UnknownKernel` with near ids, and `FormatError` where it is damaged or the program is not the one that was kept.
    """
    known = {entry.id: entry for entry in _entries(folder or FOLDER)}
    if kernel_id not in known:
        raise UnknownKernel(
            "no kept kernel of that name",
            got=repr(kernel_id),
            expected=", ".join(known) or "none is kept in this folder",
            hint=near(kernel_id, known),
        )
    return _load(known[kernel_id])


def _entries(folder: pathlib.Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*/*/program.json")):
        place = path.parent
        if place.name.startswith(".") or place.parent.name.startswith("."):
            continue  # half-written or hidden
        provenance: dict[str, Any] = {}
        state, trouble = CANDIDATE, ""
        try:
            provenance = _json(place / "provenance.json")
            if (place / "promotion.json").is_file():
                state = str(_json(place / "promotion.json").get("state", CANDIDATE))
        except FormatError as error:  # one bad folder hides no other
            state, trouble = DAMAGED, str(error)
        yield Entry(
            task=place.parent.name,
            name=place.name,
            path=place,
            state=state,
            digest=str(provenance.get("program_digest", "")),
            model=str(provenance.get("model", "unknown")),
            trouble=trouble,
        )


def _load(entry: Entry) -> Epilogue | Pointwise | PlanKernel:
    from coda.kernel import from_json

    path = entry.path / "program.json"
    if entry.state == DAMAGED:
        raise FormatError(f"{entry.id} is damaged", got=entry.trouble, hint="mend or remove the file that is named")
    try:
        kernel = from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{entry.id}: program.json cannot be read", got=str(error)) from error
    if kernel.program.digest != entry.digest:
        raise FormatError(
            f"{entry.id}: the program is not the one that was kept",
            got=kernel.program.digest[:12],
            expected=entry.digest[:12] or "a digest in provenance.json",
            hint=f"`coda-agent review {shlex.quote(entry.id)}` judges it afresh",
        )
    return kernel


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"{path.parent.parent.name}/{path.parent.name}: {path.name} cannot be read", got=str(error)
        ) from error
    if not isinstance(data, dict):
        raise FormatError(
            f"{path.parent.parent.name}/{path.parent.name}: {path.name} is not a JSON object", got=type(data).__name__
        )
    return data
