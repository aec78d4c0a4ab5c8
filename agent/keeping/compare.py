"""`compare`: kernels of people, of the project and of models in one table, with what was measured and what was not.

    gather      the kernels that the named subjects stand for
    compare     a Comparison: one row per kernel and measured setting, sentences about the rest
    regression  whether the first kernel is slower than the others by more than a threshold

A number is shown only with the record it comes from. Two kernels measured in one run are compared by their times; measured in
different runs, only by their ratios to a peer that both ran against, because clocks differ between runs. Equal digests are *the
same program*, whatever the texts look like, and are compared as such. A difference counts where it lies beyond the noise floor
and the intervals of both runs (`ratios`). Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import authored_kernels
import examples_curated
from coda.bench.peers import COMPILED
from coda.bench.record import BenchRecord
from coda.bench.timing import NOISY
from coda.errors import CodaError

from .. import task
from ..errors import KernelDamaged, UnknownSubject, UnknownTask
from . import measured
from . import shelves as kernels
from .absences import NOT_HERE, Gap, by_size
from .measured import Measurements
from .ratios import DEFAULT, Between, between, current, newest, protocol
from .reviews import recorded_digest
from .scheduled import told
from .shelves import Kept

Author = Literal["human", "project", "llm"]
EXAMPLES = "examples_curated/"


@dataclass(frozen=True)
class Subject:
    """One kernel in a comparison."""

    id: str
    task: str
    author: Author
    who: str
    """Model, package or "curated"."""
    digest: str
    found: Measurements = field(default_factory=Measurements)
    trouble: str = ""
    """Why there is no program to compare."""


@dataclass(frozen=True)
class Row:
    """One kernel in one measured setting."""

    kernel: str
    author: str
    digest: str
    gpu: str
    shape: str
    dtype: str
    us: str
    tflops: str
    cublas: str
    """Plain GEMM's time over the kernel's: 100 % is as fast as the product alone."""
    compiled: str
    """Time over torch.compile's (the better of its modes)."""
    best_peer: str
    floor: str
    schedule: str
    """What it ran with, and where that came from; empty where the record does not say."""
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    subjects: tuple[Subject, ...]
    rows: tuple[Row, ...]
    same: tuple[tuple[str, ...], ...]
    """Ids of kernels that are the same program."""
    verdicts: tuple[str, ...]
    """Who wins where, as far as it was measured."""
    not_measured: tuple[str, ...]
    gaps: tuple[Gap, ...]
    """The same in parts, as far as it is about peers and settings."""
    peers: tuple[dict[str, str], ...]
    """Every measured variant that is not one of the kernels."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kernels": [
                {
                    "id": s.id,
                    "task": s.task,
                    "author": s.author,
                    "who": s.who,
                    "digest": s.digest,
                    "measured": len(s.found.records),
                }
                for s in self.subjects
            ],
            "rows": [vars(row) for row in self.rows],
            "same_program": [list(ids) for ids in self.same],
            "verdicts": list(self.verdicts),
            "not_measured": list(self.not_measured),
            "gaps": [vars(gap) for gap in self.gaps],
            "peers": list(self.peers),
        }


# subjects -------------------------------------------------------------------------------------------------------------


def gather(texts: Sequence[str], *, folders: Iterable[Path], runs: Path) -> tuple[Subject, ...]:
    """The kernels that these names stand for: a task stands for its example and every kept kernel; a lone kernel brings the
    example of its task. Raises `UnknownSubject`."""
    folders = tuple(folders)
    found: list[Subject] = []
    for text in texts:
        found += _subjects(text, folders, runs)
    if len(texts) == 1 and len(found) == 1 and found[0].author != "project":
        found += _examples(found[0].task)
    return tuple({subject.id: subject for subject in found}.values())


def _subjects(text: str, folders: tuple[Path, ...], runs: Path) -> list[Subject]:
    try:
        card = task.find(text)
    except UnknownTask as unknown:
        name = text.removeprefix(EXAMPLES)
        if name in examples_curated.catalog():
            return [of_example(name)]
        try:
            return [of_kept(kernels.find(text, folders=folders, runs=runs))]
        except UnknownSubject as error:
            raise kernels.of_any_kind(text, error, unknown.near) from None
    kept = [_of_entry(e) for e in kernels.entries(folders) if e.task == card.id]
    found = [*_examples(card.id), *kept]
    if not found:
        raise UnknownSubject(text, kinds="task with a kernel", hint=f"`coda-agent author {card.id}` writes one")
    return found


def _examples(task_id: str) -> list[Subject]:
    return [of_example(task_id)] if task_id in examples_curated.catalog() else []


def of_example(example_id: str) -> Subject:
    """A curated example."""
    try:
        digest = examples_curated.load(example_id).program.digest
    except CodaError as error:
        return Subject(f"{EXAMPLES}{example_id}", example_id, "project", "curated here", "", trouble=error.what)
    found = measured.of_example(digest)
    return Subject(f"{EXAMPLES}{example_id}", example_id, "project", "curated here", digest, found)


def of_kept(kept: Kept) -> Subject:
    """A kept kernel or an attempt of a run; its numbers are those of the program that its folder holds."""
    digest, complaint = recorded_digest(kept)
    author: Author = "human" if kept.provenance.get("author") == "human" or not kept.provenance else "llm"
    who = str(kept.provenance.get("model") or "author not recorded")
    found = measured.of_kernel(kept, None, digest) if digest else Measurements()
    return Subject(kept.id, kept.task, author, who, digest, found, complaint[0] if complaint else "")


def _of_entry(entry: authored_kernels.Entry) -> Subject:
    """One of many: where it is damaged it says so, and the others are compared."""
    try:
        return of_kept(kernels.read(entry.path))
    except KernelDamaged as error:
        return Subject(entry.id, entry.task, "llm", entry.model, "", trouble=error.what)


# comparing ------------------------------------------------------------------------------------------------------------


def compare(subjects: Sequence[Subject]) -> Comparison:
    """One table, and sentences for what is not in it."""
    rows = tuple(_row(s, record) for s in subjects for record in current(s.found.records).values())
    gaps, present = _gaps(subjects)
    return Comparison(
        subjects=tuple(subjects),
        rows=tuple(sorted(rows, key=lambda r: (r.gpu, r.shape, r.dtype, r.kernel))),
        same=tuple(_same(subjects)),
        verdicts=tuple(_verdicts(subjects)),
        not_measured=(*_not_measured(subjects), *by_size(gaps, present), *_people(subjects)),
        gaps=gaps,
        peers=tuple(_peers(subjects)),
    )


def _row(subject: Subject, record: BenchRecord) -> Row:
    mine = record.of(record.kernel)
    rates = {m.name: m.median for m in record.measured}
    flops = record.floor.flops
    words = {c.peer: c for c in record.compared}
    best_mode = max((words[n] for n in COMPILED if n in words), key=lambda c: c.ratio, default=None)
    top = record.best_peer
    verdict = f"SUSPECT: {record.suspicion}" if record.suspicion else (top.word if top else "no peer")
    how = f"protocol {protocol(record)}" if protocol(record) != DEFAULT else ""
    noisy = mine.p20 > 0 and mine.p80 / mine.p20 > NOISY
    return Row(
        kernel=subject.id,
        author=f"{subject.author}: {subject.who}",
        digest=subject.digest[:12],
        gpu=measured.gpu(record),
        shape=measured.shape(record.dims),
        dtype=record.dtype,
        us=f"{_three(mine.median * 1e6)} ({_three(mine.p20 * 1e6)} to {_three(mine.p80 * 1e6)})",
        tflops=_three(flops / mine.median / 1e12) if flops else "",
        cublas=f"{rates['cublas'] / mine.median:.0%}" if "cublas" in rates else "not measured",
        compiled=f"×{best_mode.ratio:.3f}" if best_mode else "not measured",
        best_peer=f"{top.peer} ×{top.ratio:.3f}" if top else "none",
        floor=f"{record.floor.seconds / mine.median:.0%}",
        schedule=told(record),
        verdict=", ".join(text for text in (verdict, "NOISY" if noisy else "", how) if text),
    )


def _same(subjects: Sequence[Subject]) -> Iterator[tuple[str, ...]]:
    by_digest: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.digest:
            by_digest.setdefault(subject.digest, []).append(subject.id)
    yield from (tuple(ids) for ids in by_digest.values() if len(ids) > 1)


def _verdicts(subjects: Sequence[Subject]) -> Iterator[str]:
    for subject in subjects:
        for (_, how), record in current(subject.found.records).items():
            top = record.best_peer
            if top is not None and not record.suspicion:
                where = f"{measured.shape(record.dims)}, {record.dtype}, {measured.gpu(record)}"
                where += f", protocol {how}" if how != DEFAULT else ""
                yield f"{where}: {subject.id} is {_against(top.word)} {top.peer}, the best measured peer (×{top.ratio:.3f} of its time)"
    for at, one in enumerate(subjects):
        for two in subjects[at + 1 :]:
            if one.digest != two.digest:
                yield from _pair(one, two)


def _pair(one: Subject, two: Subject) -> Iterator[str]:
    for pair in shared(one, two):
        found, where = pair.found, f"{pair.shape}, {pair.dtype}, {pair.gpu}"
        ratio = f"×{found.ratio:.3f} of its time, {found.low:.3f} to {found.high:.3f}"
        yield f"{where}: {one.id} is {_against(found.word)} {two.id} ({ratio}, through {found.peer} of either run)"


@dataclass(frozen=True)
class Shared:
    """Two kernels in a setting in which both were measured: time of one over time of the other."""

    gpu: str
    shape: str
    dtype: str
    found: Between


def shared(one: Subject, two: Subject) -> Iterator[Shared]:
    """Every setting in which both were measured beside a common peer."""
    theirs = newest(two.found.records)
    for at, mine in newest(one.found.records).items():
        other = theirs.get(at)
        if other is None or mine.suspicion or other.suspicion:
            continue
        found = between(mine, mine.of(mine.kernel), other, other.of(other.kernel))
        if found is not None:
            yield Shared(*at, found)


def regression(subjects: Sequence[Subject], percent: float) -> tuple[list[str], bool]:
    """Where the first kernel is slower than another by more than this, and whether anything could be compared at all."""
    slower, compared = [], False
    first, *rest = subjects
    for other in rest:
        if first.digest and first.digest == other.digest:
            compared = True
        for pair in shared(first, other):
            compared = True
            if pair.found.ratio > 1 + percent / 100:
                where = f"{pair.shape}, {pair.dtype}, {pair.gpu}"
                slower.append(f"{first.id} takes ×{pair.found.ratio:.3f} of the time of {other.id} at {where}")
    return slower, compared


def _not_measured(subjects: Sequence[Subject]) -> Iterator[str]:
    for subject in subjects:
        if subject.trouble:
            yield f"{subject.id}: {subject.trouble}"
        elif not subject.found.records:
            yield f"{subject.id}: no GPU benchmark of this kernel is recorded"
        for sentence in subject.found.set_aside:
            yield f"{subject.id}: set aside: {sentence}"
        counting = current(subject.found.records).values()
        if older := len(subject.found.records) - len(counting):
            yield f"{subject.id}: {older} older record(s) of the same settings are not shown"


def _gaps(subjects: Sequence[Subject]) -> tuple[tuple[Gap, ...], dict[str, list[str]]]:
    """What each setting lacks, and who was measured in it."""
    records = [(s, r) for s in subjects for r in current(s.found.records).values()]
    gpus, dtypes = ({part(r) for _, r in records} for part in (measured.gpu, lambda r: r.dtype))

    def where(record: BenchRecord) -> str:
        also = [text for text, several in ((record.dtype, dtypes), (measured.gpu(record), gpus)) if len(several) > 1]
        return ", ".join((measured.shape(record.dims), *also))

    present: dict[str, list[str]] = {}
    gaps: list[Gap] = []
    for subject, record in records:
        present.setdefault(where(record), []).append(subject.id)
        for peer, why in record.absent.items():
            gaps.append(Gap(where(record), peer, why, beside=subject.id, task=subject.task))
    digests = {s.id: s.digest for s in subjects}
    for at, ids in present.items():
        same = {digests[i] for i in ids}  # a record of either is one of both
        of = {s.task for s in subjects if s.id in ids}  # a kernel of another task has sizes of its own
        for subject in subjects:
            if subject.found.records and subject.digest not in same and subject.task in of:
                gaps.append(Gap(at, subject.id, NOT_HERE))
    return tuple(gaps), present


def _people(subjects: Sequence[Subject]) -> Iterator[str]:
    if not any(s.author == "human" for s in subjects):
        yield (
            "a human-written kernel: none of these is, and none of another package was measured beside them"
            if not _human_peers(subjects)
            else "a human-written kernel of the same interface: those measured are the packages' own, as peers"
        )


def _human_peers(subjects: Sequence[Subject]) -> bool:
    return any(m.author == "human" for s in subjects for r in s.found.records for m in r.measured if m.name != r.kernel)


def _peers(subjects: Sequence[Subject]) -> Iterator[dict[str, str]]:
    for subject in subjects:
        for timing in measured.timings(subject.found):
            if timing.against:
                yield {"beside": subject.id, **timing.shown()}


def _against(word: str) -> str:
    return {"faster": "faster than", "slower": "slower than"}.get(word, "not to be told from")


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:.3g}"
    power = math.floor(math.log10(float(f"{value:.2e}")))  # rounded first: 99.99 has the digits of 100
    return f"{value:.{max(0, 2 - power)}f}"
