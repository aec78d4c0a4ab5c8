"""`promote`: a named person vouches for a kept kernel, inside an envelope, on the evidence of a fresh review.

    prepare     everything that a promotion needs, checked at once; a `Promotion`, or `PromotionRefused` with every reason
    write       `promotion.json`, at once or not at all
    state_of    candidate, promoted or stale: what a kept kernel is today, and why
    Envelope    where the promotion holds: architectures, dtypes, sizes, backend toolchain

A promotion decays. Its kernel is stale when its program, its source, its task or the minor version of the toolchain that it
was reviewed with is another one; then dispatch falls back, and a new review and promotion are due. Upgrading the library alone
does not make it stale, but a review made before the upgrade is no longer fresh enough to promote on.
"""

from __future__ import annotations

import datetime
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from coda.bench.record import BenchRecord

from ..errors import KernelDamaged, PromotionRefused, UsageError
from ..files import write_text
from ..records import Record, Verdict
from ..task import Task
from . import measured
from . import shelves as kernels
from .reviews import Review, recorded_digest
from .shelves import Kept

FILE = "promotion.json"
PACKAGE_OF = {"triton": "triton", "cutedsl": "quack-kernels"}
"""Backend -> the package whose minor version it is held to."""

Word = Literal["candidate", "promoted", "stale"]


class Envelope(Record):
    """Where a promotion holds. Outside it the kernel is not used."""

    arch: tuple[str, ...]
    """Measured on; with a waiver, compiled for."""
    dtypes: tuple[str, ...]
    """Numerics passed in all of these."""
    multiple_of: dict[str, int]
    """Dim -> what it must be a multiple of."""
    equal: dict[str, str] = Field(default_factory=dict)
    """Dim -> the dim it must equal."""
    toolchain: dict[str, str]
    """Package -> minor version; another one makes the kernel stale."""
    torch: str
    """Recorded, not enforced."""


class Benchmark(Record):
    """What a promotion says about speed: one shape, measured."""

    gpu: str
    shape: str
    dtype: str
    us: float
    against: dict[str, str]
    """Peer -> ratio of times and the word."""


class Promotion(Record):
    """`promotion.json`."""

    schema_name: Literal["coda-agent/promotion/1"] = Field(default="coda-agent/promotion/1", alias="schema")
    state: Literal["promoted"] = "promoted"
    kernel: str
    task: str
    task_digest: str
    program_digest: str
    source_sha256: str
    """Of kernel.py as it is on disk."""
    tree_digest: str
    """Of everything the review's verdict depends on."""
    reviewer: str
    note: str
    waiver: str | None = None
    """Why there is no GPU evidence; None where there is."""
    benchmarks: tuple[Benchmark, ...] = ()
    envelope: Envelope
    author: str
    """Who wrote it: the model, or `human`."""
    reviewed: datetime.datetime
    created: datetime.datetime

    @property
    def trailers(self) -> tuple[str, ...]:
        """For the commit that adds it."""
        return (f"Assisted-by: {self.author}", f"Reviewed-by: {self.reviewer}")


@dataclass(frozen=True)
class State:
    """What a kept kernel is today."""

    word: Word
    reason: str = ""


# promoting ------------------------------------------------------------------------------------------------------------


def prepare(
    kept: Kept,
    task: Task,
    review: Review | None,
    *,
    reviewer: str,
    note: str,
    waiver: str | None = None,
    replace: bool = False,
    now: datetime.datetime | None = None,
) -> Promotion:
    """The promotion, if everything it needs is there.

    Raises:
        UsageError: No reviewer, no note, or an empty waiver.
        PromotionRefused: Anything that a person cannot simply state; names all of it.
    """
    _require_words(reviewer, note, waiver)
    missing = [*_not_a_candidate(kept, replace), *_reviewer_is_author(kept, reviewer)]
    if review is None:
        raise _refused(kept, [*missing, "it was never reviewed"])
    found = measured.of_kernel(kept, review.verdict, review.retraced_digest)
    missing += _not_fresh(kept, task, review)
    missing += _no_evidence(found, waiver)
    if missing:
        raise _refused(kept, missing)
    return Promotion(
        kernel=kept.id,
        task=task.id,
        task_digest=task.digest,
        program_digest=review.retraced_digest,
        source_sha256=_sha256(kept.folder / "kernel.py"),
        tree_digest=review.tree_digest,
        reviewer=reviewer.strip(),
        note=note.strip(),
        waiver=None if found.records else (waiver or "").strip(),
        benchmarks=tuple(_benchmark(record) for record in found.records),
        envelope=envelope(task, review.verdict, found.records),
        author=str(kept.provenance.get("model") or kept.provenance.get("author") or "human"),
        reviewed=review.created,
        created=now or datetime.datetime.now(datetime.UTC),
    )


def write(kept: Kept, promotion: Promotion) -> Path:
    """Write `promotion.json` beside the kernel."""
    path = kept.folder / FILE
    write_text(path, promotion.model_dump_json(by_alias=True, indent=2) + "\n")
    return path


def envelope(task: Task, verdict: Verdict, benchmarks: Iterable[BenchRecord]) -> Envelope:
    """Where the evidence holds, and nowhere else."""
    from ..verify.sizes import Rules

    rules, packages = Rules.of(task), verdict.environment.packages
    measured_on = {str(r.environment["arch"]) for r in benchmarks if r.environment.get("arch")}
    compiled_for = {str(verdict.environment.arch)} if verdict.environment.arch else set()
    return Envelope(
        arch=tuple(sorted(measured_on or compiled_for)),
        dtypes=tuple(dtypes(verdict)),
        multiple_of={name: step for name, step in rules.step.items() if name not in rules.same},
        equal=dict(rules.same),
        toolchain={p: minor(packages[p]) for p in sorted(_packages(verdict)) if p in packages},
        torch=packages.get("torch", "not installed"),
    )


def dtypes(verdict: Verdict) -> list[str]:
    """Dtypes in which every output passed numerics, on some backend."""
    good: set[str] = set()
    for said in _mapping(verdict.gate("numerics").evidence.get("backends")).values():
        by_dtype: dict[str, bool] = {}
        for key, found in _mapping(said.get("errors")).items():
            dtype = key.partition("/")[0]
            by_dtype[dtype] = by_dtype.get(dtype, True) and bool(found.get("ok"))
        good |= {dtype for dtype, ok in by_dtype.items() if ok}
    return sorted(good)


# what is missing ------------------------------------------------------------------------------------------------------


def _require_words(reviewer: str, note: str, waiver: str | None) -> None:
    if not reviewer.strip():
        raise UsageError(f"--reviewer {reviewer!r} names nobody", hint="name the person who answers for the kernel")
    if not note.strip():
        raise UsageError(f"--note {note!r} says nothing", hint="say what you looked at and why it may be used")
    if waiver is not None and not waiver.strip():
        raise UsageError(
            f"--waive-gpu {waiver!r} gives no reason", hint="say why there is no GPU evidence; it is recorded"
        )


def _not_a_candidate(kept: Kept, replace: bool) -> Iterator[str]:
    if kept.same_as:
        yield f"its program is kept already, as {kept.same_as}"
    elif kept.origin == "run":
        yield "it was not kept: only a kernel that passed every required gate is"
    if (kept.folder / FILE).is_file() and not replace:
        yield "it is promoted already (--replace promotes it anew)"


def _reviewer_is_author(kept: Kept, reviewer: str) -> Iterator[str]:
    model = str(kept.provenance.get("model") or "")
    if model and model.casefold() == reviewer.strip().casefold():
        yield f"the reviewer {reviewer!r} is the model that wrote it"


def _not_fresh(kept: Kept, task: Task, review: Review) -> Iterator[str]:
    if not review.accepted:
        yield f"its review refused it: {'; '.join(review.refusals)}"
    if review.kernel != kept.id or review.tree_digest != kernels.tree_digest(kept, task.digest):
        yield "its review is out of date: the kernel, its task, the library or the judge has changed since"
    for package, then in sorted(review.verdict.environment.packages.items()):
        here = installed(package)
        if package in PACKAGE_OF.values() and here is not None and minor(here) != minor(then):
            yield f"its review ran with {package} {then}, here is {here}"


def _no_evidence(found: measured.Measurements, waiver: str | None) -> Iterator[str]:
    for record in found.records:
        if record.suspicion:
            yield f"a measured time needs explaining first: {record.suspicion}"
    if not found.records and waiver is None:
        aside = f" ({'; '.join(found.set_aside)})" if found.set_aside else ""
        yield f'no GPU benchmark of this kernel is recorded{aside}: review it on a GPU, or state --waive-gpu "reason"'


def _refused(kept: Kept, missing: list[str]) -> PromotionRefused:
    if kept.same_as:
        hint = f"coda-agent review {shlex.quote(kept.same_as)}, and promote that"
    elif all("--waive-gpu" in reason for reason in missing):
        hint = (
            f'coda-agent promote {shlex.quote(kept.handle)} --reviewer NAME --note TEXT --waive-gpu "why without a GPU"'
        )
    elif any("review" in reason for reason in missing) and kept.origin == "kernel":
        hint = f"coda-agent review {shlex.quote(kept.handle)}"
    elif all("--replace" in reason for reason in missing):
        hint = f"coda-agent promote {shlex.quote(kept.handle)} --reviewer NAME --note TEXT --replace"
    else:
        hint = "mend what is named"
    return PromotionRefused(f"{kept.id} cannot be promoted: {'; '.join(missing)}", hint=hint)


# what a kernel is today -----------------------------------------------------------------------------------------------


def state_of(kept: Kept, task: Task | None) -> State:
    """Today's state. `task` is None where the bank no longer has it. Raises `KernelDamaged`."""
    promotion = read(kept)
    if promotion is None:
        return State("candidate")
    reasons = []
    digest, complaint = recorded_digest(kept)
    if complaint or digest != promotion.program_digest:
        reasons.append("the program is another one" if not complaint else complaint[0])
    if _sha256(kept.folder / "kernel.py") != promotion.source_sha256:
        reasons.append("kernel.py was changed")
    if task is None or task.digest != promotion.task_digest:
        reasons.append("its task was changed" if task else "its task is gone")
    for package, then in promotion.envelope.toolchain.items():
        here = installed(package)
        if here is not None and minor(here) != then:
            reasons.append(f"it was promoted with {package} {then}, here is {here}")
    return State("stale", "; ".join(reasons)) if reasons else State("promoted", f"by {promotion.reviewer}")


def read(kept: Kept) -> Promotion | None:
    """`promotion.json`, if there is one. Raises `KernelDamaged` for a record that is none."""
    if kept.record(FILE) is None:
        return None
    try:
        return Promotion.model_validate_json((kept.folder / FILE).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise KernelDamaged(
            f"{str(kept.folder / FILE)!r} is not a promotion: {where}: {first['msg']}",
            hint=f"remove it, then `coda-agent promote {shlex.quote(kept.handle)}` again",
        ) from error


# small things ---------------------------------------------------------------------------------------------------------


def minor(version: str) -> str:
    """ "3.9" of "3.9.0"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def installed(package: str) -> str | None:
    """Version of a distribution here, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _benchmark(record: BenchRecord) -> Benchmark:
    against = {c.peer: f"{c.ratio:.3f} ({c.low:.3f} to {c.high:.3f}), {c.word}" for c in record.compared}
    median = record.of(record.kernel).median
    return Benchmark(
        gpu=measured.gpu(record),
        shape=measured.shape(record.dims),
        dtype=record.dtype,
        us=round(median * 1e6, 3),
        against=against,
    )


def _packages(verdict: Verdict) -> set[str]:
    """Packages of the backends on which the kernel compiled or ran."""
    found = set()
    for gate in ("compile", "numerics"):
        for backend, said in _mapping(verdict.gate(gate).evidence.get("backends")).items():
            if _mapping(said).get("status") == "PASS" and backend in PACKAGE_OF:
                found.add(PACKAGE_OF[backend])
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
