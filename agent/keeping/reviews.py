"""The record that a review leaves: `review.json` beside the kernel.

    Review            the verdict, what it depends on, and why it was refused
    latest            the last review of a kernel, if any
    said              what the gates say against a kernel
    unproven          whether that is the machine's fault, and nothing else stands against it
    recorded_digest   the program that a kernel's folder claims to hold

`review` writes it, `promote` asks it to be fresh.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationError

from coda.errors import CodaError

from ..errors import KernelDamaged
from ..records import Record, Status, Verdict
from .shelves import Kept

FILE = "review.json"


class Review(Record):
    """`review.json`."""

    schema_name: Literal["coda-agent/review/1"] = Field(default="coda-agent/review/1", alias="schema")
    kernel: str
    task: str
    refusals: tuple[str, ...]
    """Why it was refused; empty when it was accepted."""
    recorded_digest: str
    """Of program.json; "" where it is missing or no program."""
    retraced_digest: str
    """Of kernel.py; "" where it could not be traced."""
    tree_digest: str
    """Of everything the verdict depends on but the machine: see `shelves.tree_digest`."""
    verdict: Verdict
    created: datetime.datetime

    @property
    def accepted(self) -> bool:
        """Whether the kernel passed and is what its folder says."""
        return not self.refusals

    @property
    def unproven(self) -> bool:
        """Whether nothing was found against it, but this machine could not run every required gate."""
        return unproven(self.verdict, self.refusals)


def said(verdict: Verdict) -> tuple[str, ...]:
    """What the gates say against a kernel, or why they could not run."""
    if verdict.passed:
        return ()
    if verdict.first_failure is not None:
        gate = verdict.gate(verdict.first_failure)
        return (f"gate {gate.name}: {gate.status}: {gate.reason}",)
    return tuple(f"gate {gate.name} could not run: {gate.reason}" for gate in verdict.not_run if gate.name != "bench")


def unproven(verdict: Verdict, refusals: Sequence[str]) -> bool:
    """Whether the machine's not having run a gate is all that stands against a kernel: a folder whose parts are not about one
    program is refused on any machine."""
    machine = verdict.status in (Status.NOT_RUN, Status.INFRA_ERROR)
    return machine and bool(refusals) and set(refusals) <= set(said(verdict))


def latest(kept: Kept) -> Review | None:
    """The last review of a kernel. Raises `KernelDamaged` for a record that is none."""
    if kept.record(FILE) is None:
        return None
    try:
        return Review.model_validate_json((kept.folder / FILE).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise KernelDamaged(
            f"{str(kept.folder / FILE)!r} is not a review: {where}: {first['msg']}",
            hint=f"`coda-agent review {shlex.quote(kept.handle)}` writes a new one",
        ) from error


def recorded_digest(kept: Kept) -> tuple[str, list[str]]:
    """Digest of `program.json` as coda's strict parser reads it, and what is wrong with it."""
    if kept.program_json is None:
        return "", ["there is no program.json: the source was never traced"]
    from coda.kernel import from_json

    try:
        return from_json(kept.program_json).program.digest, []
    except CodaError as error:
        return "", [f"program.json is not a program: {error.what}"]
