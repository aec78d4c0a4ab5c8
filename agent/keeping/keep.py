"""Keeps a passing kernel: `authored_kernels/<task>/<name>/`, from the evidence of a run.

    keep             write the folder, in one rename, under a name that is free
    default_folder   the checkout's `authored_kernels`, else the user's data folder
    Provenance       `provenance.json`: who wrote it, from which prompt and examples, at which cost

What is kept is a candidate: a person promotes it (`promote.py`). A program that is kept already for this task is
not kept twice. The package `authored_kernels` reads the folders, and so does `shelves`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

import authored_kernels

from ..files import publish, write_text
from ..llm.protocol import Usage
from ..records import Record, Verdict
from ..runs.events import KeptKernel
from ..settings import Settings

_UNSAFE = re.compile(r"[^a-z0-9_.-]+")


class Provenance(Record):
    """`provenance.json`."""

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["coda-agent/provenance/1"] = Field(default="coda-agent/provenance/1", alias="schema")
    task: str
    task_digest: str
    program_digest: str
    source_sha256: str
    author: Literal["llm", "human"] = "llm"
    model: str
    """Who answered, as the provider reported it."""
    provider: str
    """anthropic, folder, replay, scripted."""
    run: str
    """Id of the run."""
    call: int
    """Number of the model call that sent it."""
    rounds: int
    """Rounds until then."""
    prompt_version: str
    prompt_sha256: str
    """Of everything the model had read when it sent this."""
    examples: tuple[str, ...]
    """Ids of the examples it was shown."""
    usage: Usage
    """Tokens of the run until then."""
    cost_usd: float | None
    improves: str | None = None
    """The kept kernel that the run started from: its id, or its folder where it is on no shelf."""
    seeds_commitment: str
    """SHA-256 over the judge's seeds, which are in verdict.json."""
    rationale: str = ""
    created: datetime.datetime


def seeds_commitment(verdict: Verdict) -> str:
    """SHA-256 over the seeds by gate, as canonical JSON."""
    canonical = json.dumps(verdict.seeds, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def default_folder(settings: Settings) -> pathlib.Path:
    """Where kernels are kept without `--into`: in the checkout, or with the user's data where there is none."""
    package = authored_kernels.FOLDER
    checkout = (package.parent / "pyproject.toml").is_file() and os.access(package, os.W_OK)
    return package if checkout else settings.kernels_dir


def keep(
    into: pathlib.Path,
    *,
    source: str,
    verdict: Verdict,
    provenance: Provenance,
    schedule: dict[str, JsonValue] | None = None,
    name: str | None = None,
) -> KeptKernel:
    """Write `into/<task>/<name>/`; without a name one is made from the model's id. A taken name gets a number.

    Raises:
        ValueError: The verdict is not a pass, or is about another source or program.
    """
    if not verdict.passed or verdict.program_json is None:
        raise ValueError(f"only a pass is kept, not {verdict.status}")
    if (verdict.source_sha256, verdict.program_digest) != (provenance.source_sha256, provenance.program_digest):
        raise ValueError("verdict and provenance are about different programs")
    folder = into / verdict.task
    for entry in authored_kernels.catalog(into):
        kept_before = entry.task == verdict.task and entry.digest == verdict.program_digest
        if kept_before and entry.state != authored_kernels.DAMAGED:
            return KeptKernel(id=entry.id, path=str(entry.path), same_program=True)
    folder.mkdir(parents=True, exist_ok=True)
    building = pathlib.Path(tempfile.mkdtemp(dir=folder, prefix=".building-"))
    try:
        _fill(building, source, verdict, provenance, schedule)
        os.chmod(building, 0o755)  # noqa: S103  mkdtemp made it private
        target = _publish(building, folder, slug(name or provenance.model))
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return KeptKernel(id=f"{verdict.task}/{target.name}", path=str(target), same_program=False)


def _fill(
    folder: pathlib.Path, source: str, verdict: Verdict, provenance: Provenance, schedule: dict[str, JsonValue] | None
) -> None:
    assert verdict.program_json is not None
    write_text(folder / "kernel.py", source)
    write_text(folder / "program.json", verdict.program_json + "\n")
    write_text(folder / "verdict.json", verdict.to_json() + "\n")
    write_text(folder / "provenance.json", provenance.model_dump_json(by_alias=True, indent=2) + "\n")
    if schedule is not None:
        write_text(folder / "schedule.json", json.dumps(schedule, indent=2, sort_keys=True) + "\n")
    bench = verdict.gate("bench")
    if bench.status.good and bench.evidence:
        gpu = slug(verdict.environment.gpu or "unknown-gpu")
        write_text(folder / "bench" / f"{gpu}.json", json.dumps(bench.evidence, indent=2, sort_keys=True) + "\n")


def _publish(building: pathlib.Path, folder: pathlib.Path, name: str) -> pathlib.Path:
    """The first free name among name, name-2, name-3, …"""
    number = 1
    while True:
        target = folder / (name if number == 1 else f"{name}-{number}")
        if publish(building, target):
            return target
        number += 1


def slug(text: str) -> str:
    """A file name: lower case letters, digits, `_`, `.` and `-`."""
    return _UNSAFE.sub("-", text.lower()).strip("-.")[:60] or "kernel"
