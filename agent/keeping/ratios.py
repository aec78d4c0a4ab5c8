"""Time over time, within a run and between two, and which record of a kernel counts: what every comparison of records shares.

    setting   GPU, shape and dtype of a record
    newest    of each setting the record that counts: the newest one by the default protocol
    current   the same for every protocol, for those who show all of them
    within    two variants of one run
    common    what ties two runs together
    between   two variants of two runs, through that
    word      what an interval and a noise floor support

Clocks differ between runs, so two runs meet only in their ratios to a peer that both ran against. Neighbours: `compare` and
`duels` conclude from these, `measured` reads the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coda.bench.record import BenchRecord, Measured

from . import measured

Word = Literal["faster", "slower", "no difference"]
Setting = tuple[str, str, str]
"""GPU, shape, dtype."""
DEFAULT = "default"
"""The protocol whose times may stand for a kernel: another one measures in another way, so its times are not these times."""
COMMON = ("max-autotune", "compile", "eager", "cublas")
"""Peers through which two runs are compared, best first."""


# which record counts --------------------------------------------------------------------------------------------------


def protocol(record: BenchRecord) -> str:
    """Its name; records from before there was a second one have none."""
    return str(record.protocol.get("name", DEFAULT))


def setting(record: BenchRecord) -> Setting:
    """What two records must have in common to be compared."""
    return measured.gpu(record), measured.shape(record.dims), record.dtype


def current(records: Iterable[BenchRecord]) -> dict[tuple[Setting, str], BenchRecord]:
    """By setting and protocol the newest record. Those without a date are older than all with one; among them the one with the
    most variants counts, then the last."""
    found: dict[tuple[Setting, str], BenchRecord] = {}
    for record in records:
        key = setting(record), protocol(record)
        if key not in found or _age(record) >= _age(found[key]):
            found[key] = record
    return found


def newest(records: Iterable[BenchRecord]) -> dict[Setting, BenchRecord]:
    """By setting the record that counts, where there is one of the default protocol."""
    return {at: record for (at, how), record in current(records).items() if how == DEFAULT}


def _age(record: BenchRecord) -> tuple[str, int]:
    return record.measured_at, len(record.measured)


# ratios ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """Time of one variant over that of another."""

    ratio: float
    low: float
    high: float

    def over(self, other: Ratio) -> Ratio:
        """Of two ratios to the same peer; as far apart as both intervals allow."""
        return Ratio(self.ratio / other.ratio, self.low / other.high, self.high / other.low)


@dataclass(frozen=True)
class Between:
    """Two variants of two runs."""

    peer: str
    """What ties the runs together."""
    ratio: float
    low: float
    high: float
    floor: float
    """The larger noise floor of the two runs."""

    @property
    def word(self) -> Word:
        """How the first one does."""
        return word(self.low, self.high, self.floor)


def within(record: BenchRecord, mine: Measured, theirs: Measured) -> Ratio:
    """Within one run: of the run's pairs where it compared these two, else (it compares with no ceiling) of the two medians."""
    if mine.name == theirs.name:
        return Ratio(1.0, 1.0, 1.0)
    for first, second, turned in ((mine, theirs, False), (theirs, mine, True)):
        paired = next((c for c in record.compared if (c.variant or c.peer) == second.name), None)
        if paired is not None and first.name == record.kernel:
            if turned:
                return Ratio(1 / paired.ratio, 1 / paired.high, 1 / paired.low)
            return Ratio(paired.ratio, paired.low, paired.high)
    return Ratio(mine.median / theirs.median, mine.low / theirs.high, mine.high / theirs.low)


def common(one: BenchRecord, two: BenchRecord) -> str | None:
    """The best peer that ran in both."""
    names = {m.name for m in one.measured} & {m.name for m in two.measured}
    return next((name for name in COMMON if name in names), None)


def between(one: BenchRecord, mine: Measured, two: BenchRecord, theirs: Measured) -> Between | None:
    """Of two runs; None where they have no peer in common."""
    peer = common(one, two)
    if peer is None:
        return None
    found = within(one, mine, one.of(peer)).over(within(two, theirs, two.of(peer)))
    return Between(peer, found.ratio, found.low, found.high, max(one.noise_floor, two.noise_floor))


def word(low: float, high: float, floor: float) -> Word:
    """The rule of a single run (`coda.bench.timing.compare`): only what lies beyond noise and interval is a difference."""
    return "faster" if high < 1 - floor else "slower" if low > 1 + floor else "no difference"
