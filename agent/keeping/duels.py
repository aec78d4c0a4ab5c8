"""Who is how fast at one task and size: times by side, and what may be concluded from them.

    Row        one task in one measured setting: the times of each side, the floor, the plain GEMM
    Time       one side's time
    Duel       one side against another: ratio, interval, and the word that they support
    rows_of    every Row of a task, from the records of its kernels
    tallies    geometric means, wins, losses and draws per size
    size_of    the family of sizes that a setting belongs to

The sides: `llm`, kernels written through the tool; `project`, the curated example; `human`, kernels that people wrote in a named
package, or through the tool; `compile`, torch.compile in its better mode. Of several kernels of a side the best at that setting
counts, for every side alike.

A row is anchored in one run. What was measured in another run only is carried over by its ratio to a peer of both, with the
intervals of both, and is marked: clocks differ between runs. Equal digests are the same program, which nobody wins. A record that
needs a person's look (`SUSPECT`) is shown and wins nothing. Neighbours: `ratios` has the rules, `leaderboard` does this for the whole
bank, `compare` for kernels that a person names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coda.bench.peers import COMPILED
from coda.bench.record import BenchRecord, Measured
from coda.bench.timing import NOISE

from . import measured
from .compare import Subject
from .ratios import Setting, between, common, newest, within, word
from .scheduled import told

Side = Literal["llm", "human", "project", "compile"]
Word = Literal["faster", "slower", "no difference", "same program"]
SIDES: tuple[Side, ...] = ("llm", "human", "project", "compile")
SIDE_NAMES: dict[Side, str] = {"llm": "LLM", "human": "human", "project": "project", "compile": "torch.compile"}
CEILING = "cublas"
SMALL_M = 4096
"""Fewer rows than this are a family of sizes of their own: the GEMM does not fill the GPU."""
WIDTH = 1024
"""A length from which on it is a model's width, and not a number of experts or heads."""
ALL = "all sizes"


@dataclass(frozen=True)
class Time:
    """One side in one setting. Microseconds."""

    who: str
    """A kernel's id, a package's name, or torch.compile's mode."""
    us: float
    low: float
    high: float
    through: str = ""
    """The peer by which it was carried over from another run; empty where it was measured in this one."""
    schedule: str = ""
    """What a kernel ran with, and where that came from; empty for a peer, and where the record does not say."""


@dataclass(frozen=True)
class Duel:
    """`subject` against `against`: the other's time over the subject's, so that above 1 the subject is the faster one."""

    subject: Side
    against: Side
    ratio: float
    low: float
    high: float
    word: Word
    """How the subject does."""


@dataclass(frozen=True)
class Row:
    """One task in one measured setting."""

    task: str
    gpu: str
    dtype: str
    dims: Mapping[str, int]
    size: str
    times: Mapping[Side, Time]
    floor_us: float
    bound: str
    cublas_us: float | None
    """Of the plain GEMM in the same run."""
    flops: int
    bytes: int
    bandwidth: float
    gemm_flops: float | None
    duels: tuple[Duel, ...]
    same_program: bool
    """Whether the model's kernel is the curated one."""
    suspicion: tuple[str, ...]
    """Of the kernels' records."""
    notes: tuple[str, ...]
    """What was measured and could not be put beside the rest."""

    @property
    def shape(self) -> str:
        """As in every table."""
        return measured.shape(self.dims)

    @property
    def anchor(self) -> Side:
        """Whose run the times are of."""
        return next(side for side in ("llm", "project", "human") if side in self.times)

    def duel(self, subject: Side, against: Side) -> Duel | None:
        """That one, where both were measured."""
        return next((d for d in self.duels if (d.subject, d.against) == (subject, against)), None)


@dataclass(frozen=True)
class Tally:
    """One side against another over the tasks of one size."""

    gpu: str
    dtype: str
    size: str
    subject: Side
    against: Side
    geomean: float | None
    """Of the other's time over the subject's, over different programs; None where every program is the same."""
    wins: int
    losses: int
    draws: int
    same: int

    @property
    def count(self) -> int:
        """Settings in all."""
        return self.wins + self.losses + self.draws + self.same


@dataclass(frozen=True)
class _Entry:
    """One variant of one run."""

    who: str
    record: BenchRecord
    variant: Measured

    @classmethod
    def of(cls, subject: Subject, record: BenchRecord) -> _Entry:
        return cls(subject.id, record, record.of(record.kernel))

    @property
    def schedule(self) -> str:
        """Of one of our kernels: a peer's configuration is its package's business."""
        return told(self.record) if self.variant.name == self.record.kernel else ""

    @property
    def doubtful(self) -> bool:
        """Whether this is a kernel whose time is beyond belief. What else ran beside such a kernel is not in doubt."""
        return bool(self.record.suspicion) and self.variant.name == self.record.kernel


# rows -----------------------------------------------------------------------------------------------------------------


def rows_of(task: str, kept: Sequence[Subject], example: Subject | None) -> Iterator[Row]:
    """One row per setting in which a kernel of the task was measured."""
    subjects = [*kept, *([example] if example is not None else [])]
    for setting in dict.fromkeys(at for s in subjects for at in newest(s.found.records)):
        model = _best(_of_models(kept, example, setting))
        own = _best(_Entry.of(example, r) for r in _at(example, setting)) if example is not None else None
        people = [_Entry.of(s, r) for s in kept if s.author == "human" for r in _at(s, setting)]
        anchor = model or own or _best(people)
        if anchor is not None:
            yield _row(task, anchor, model, own, people, same=_same(kept, example, model))


def _at(subject: Subject, setting: Setting) -> Iterator[BenchRecord]:
    """The subject's record of this setting that counts."""
    record = newest(subject.found.records).get(setting)
    if record is not None:
        yield record


def _of_models(kept: Sequence[Subject], example: Subject | None, setting: Setting) -> Iterator[_Entry]:
    """Every model's kernel here. One that is the curated program was measured where that was."""
    for subject in kept:
        if subject.author == "llm":
            own = [_Entry.of(subject, r) for r in _at(subject, setting)]
            same = example is not None and subject.digest == example.digest
            yield from own or ([_Entry.of(subject, r) for r in _at(example, setting)] if example and same else [])


def _best(entries: Iterable[_Entry]) -> _Entry | None:
    """The one nearest to the floor of its own run; one beyond belief only where there is no other."""
    return max(entries, key=lambda e: (not e.record.suspicion, e.record.floor.seconds / e.variant.median), default=None)


def _same(kept: Sequence[Subject], example: Subject | None, model: _Entry | None) -> bool:
    digests = {s.id: s.digest for s in kept}
    return model is not None and example is not None and digests[model.who] == example.digest


def _row(
    task: str, anchor: _Entry, model: _Entry | None, own: _Entry | None, people: Sequence[_Entry], *, same: bool
) -> Row:
    record = anchor.record
    runs = [e.record for e in (model, own) if e is not None] or [record]
    entries = _opponents(record, runs, people)
    notes: list[str] = []
    if own is not None:
        entries["project"] = own
    if model is not None:
        entries["llm"] = model
    times: dict[Side, Time] = {}
    for side in SIDES:
        if side in entries and (time := carried(record, entries[side])) is not None:
            times[side] = time
        elif side in entries:
            notes.append(f"{entries[side].who}: measured in another run, without a peer that ran in both")
    ceiling = next((m.median * 1e6 for m in record.measured if m.name == CEILING), None)
    return Row(
        task=task,
        gpu=measured.gpu(record),
        dtype=record.dtype,
        dims=dict(record.dims),
        size=size_of(record.dims),
        times=times,
        floor_us=record.floor.seconds * 1e6,
        bound=record.floor.bound,
        cublas_us=ceiling,
        flops=record.floor.flops,
        bytes=record.floor.bytes,
        bandwidth=record.bandwidth,
        gemm_flops=record.gemm_flops,
        duels=tuple(_duels(model, own, runs, people, same=same)),
        same_program=same,
        suspicion=tuple(
            dict.fromkeys(f"{e.who}: {e.record.suspicion}" for e in (model, own, *people) if e and e.doubtful)
        ),
        notes=tuple(notes),
    )


def _opponents(anchor: BenchRecord, runs: Sequence[BenchRecord], people: Sequence[_Entry]) -> dict[Side, _Entry]:
    """The best human kernel, one beyond belief only where there is no other, and torch.compile's best mode. A peer may have raced
    with several candidates; it counts where it ran beside the anchor, else where it ran."""
    found: dict[Side, dict[str, list[_Entry]]] = {"human": {e.who: [e] for e in people}, "compile": {}}
    for record in sorted(runs, key=lambda r: r is not anchor):  # stable: the anchor's own first
        here: dict[tuple[Side, str], list[_Entry]] = {}
        for m in record.measured:
            peer = m.peer or m.name
            side: Side | None = "human" if m.author == "human" else "compile" if peer in COMPILED else None
            if side is not None and m.name not in (record.kernel, NOISE):
                here.setdefault((side, peer), []).append(_Entry(peer, record, m))
        for (side, peer), entries in here.items():
            found[side].setdefault(peer, entries)
    best: dict[Side, _Entry] = {}
    for side, named in found.items():
        fit = [(t.us, e) for entries in named.values() for e in entries if (t := carried(anchor, e)) is not None]
        if fit:
            best[side] = min(fit, key=lambda pair: (pair[1].doubtful, pair[0]))[1]
    return best


# comparing ------------------------------------------------------------------------------------------------------------


def carried(anchor: BenchRecord, entry: _Entry) -> Time | None:
    """A variant's time by the clock of the anchor's run; None where the two runs have no peer in common."""
    if entry.record is anchor:
        m = entry.variant
        return Time(entry.who, m.median * 1e6, m.low * 1e6, m.high * 1e6, schedule=entry.schedule)
    peer = common(anchor, entry.record)
    if peer is None:
        return None
    found, here = within(entry.record, entry.variant, entry.record.of(peer)), anchor.of(peer)
    us, low, high = found.ratio * here.median, found.low * here.low, found.high * here.high
    return Time(entry.who, us * 1e6, low * 1e6, high * 1e6, through=peer, schedule=entry.schedule)


def _duels(
    model: _Entry | None, own: _Entry | None, runs: Sequence[BenchRecord], people: Sequence[_Entry], *, same: bool
) -> Iterator[Duel]:
    """The model's kernel against every side, and the curated one against those that neither is."""
    for side, entry in (("llm", model), ("project", own)):
        if entry is None or entry.doubtful:
            continue
        for against, other in _opponents(entry.record, runs, people).items():
            if (found := _duel(side, entry, against, other)) is not None:  # type: ignore[arg-type]
                yield found
        if side == "llm" and own is not None and not own.doubtful:
            if same:
                yield Duel("llm", "project", 1.0, 1.0, 1.0, "same program")
            elif (found := _duel("llm", entry, "project", own)) is not None:
                yield found


def _duel(side: Side, entry: _Entry, against: Side, other: _Entry) -> Duel | None:
    """The rule of a single run (`coda.bench.timing.compare`) on its own word, or on intervals carried over."""
    record = entry.record
    if other.doubtful:
        return None
    if other.record is record:
        mine = within(record, entry.variant, other.variant)
        said = next((c.word for c in record.compared if (c.variant or c.peer) == other.variant.name), None)
        told = said or word(mine.low, mine.high, record.noise_floor)
        return Duel(side, against, 1 / mine.ratio, 1 / mine.high, 1 / mine.low, told)  # type: ignore[arg-type]
    found = between(record, entry.variant, other.record, other.variant)
    if found is None:
        return None
    return Duel(side, against, 1 / found.ratio, 1 / found.high, 1 / found.low, found.word)


# sizes and sums -------------------------------------------------------------------------------------------------------


def size_of(dims: Mapping[str, int]) -> str:
    """Few rows: "M = 512". Else the width of the model, the smallest of the other lengths that can be one."""
    rows = dims.get("M", 0)
    if 0 < rows < SMALL_M:
        return f"M = {rows}"
    wide = [n for name, n in dims.items() if name != "M" and n >= WIDTH]
    return str(min(wide, default=max(dims.values(), default=0)))


def size_key(size: str) -> tuple[bool, int]:
    """Widths first, then few rows, each by its number; all together last."""
    return not size.isdecimal(), int("".join(c for c in size if c.isdigit()) or 1 << 62)


def tallies(rows: Sequence[Row]) -> tuple[Tally, ...]:
    """Per GPU, dtype, size and pair of sides; with all sizes together where there are several."""
    groups: dict[tuple[str, str, str, Side, Side], list[Duel]] = {}
    sizes: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        sizes.setdefault((row.gpu, row.dtype), set()).add(row.size)
        for duel in row.duels:
            for size in (row.size, ALL):
                groups.setdefault((row.gpu, row.dtype, size, duel.subject, duel.against), []).append(duel)
    found = [_tally(key, duels) for key, duels in groups.items() if key[2] != ALL or len(sizes[key[0], key[1]]) > 1]
    return tuple(
        sorted(found, key=lambda t: (t.gpu, t.dtype, SIDES.index(t.subject), SIDES.index(t.against), size_key(t.size)))
    )


def _tally(key: tuple[str, str, str, Side, Side], duels: Sequence[Duel]) -> Tally:
    told = [d for d in duels if d.word != "same program"]
    mean = math.exp(math.fsum(math.log(d.ratio) for d in told) / len(told)) if told else None
    words = [d.word for d in duels]
    return Tally(
        *key,
        geomean=mean,
        wins=words.count("faster"),
        losses=words.count("slower"),
        draws=words.count("no difference"),
        same=words.count("same program"),
    )
