"""How time is measured: one process, interleaved, cold caches, device time only.

    CudaClock   one call: flush the L2, queue a backlog so that launching is not timed, events around the call
    measure     rounds over all variants in a rotated and reversed order; the first variant twice, as the noise floor
    measure_published  the published protocol instead: each variant alone, 30 runs in a row, mean and standard deviation
    summary     median, quantiles and a bootstrap interval of one variant
    compare     the ratio of two variants, paired by round, with an interval and a word
    gpu_lock    one measurement per GPU at a time, across processes
    current_gpu the GPU of this process by its UUID, which no variable renumbers

The flush lies before the backlog and outside the events. Two variants differ only where the whole interval of their ratio
lies beyond the noise floor of the same run (the first variant against itself), and the difference of the medians is larger
than a tick of the event clock. Nothing here knows what is timed; a clock is anything with `time(call) -> Sample`.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from coda import env
from coda.errors import CodaError

TICK_S = 1.024e-6
"""Step of the event clock of older devices: smaller differences are not seen."""
MINIMUM_FLOOR = 0.005
"""The noise floor is never taken to be smaller than this."""
NOISY = 1.15
"""A variant whose p80 is more than so many times its p20 scatters too much for anything fine to be said of it."""
BOOTSTRAPS = 400
RETRIES = 4
LONGEST_BACKLOG_S = 0.02
NOISE = "A/A"
"""The first variant, once more."""

Call = Callable[[int], Any]
"""A variant; it gets the number of the round, to rotate its buffers."""
Word = Literal["faster", "slower", "no difference"]


@dataclass(frozen=True)
class Sample:
    """One call."""

    device_s: float
    host_s: float
    """From calling to return: the launch."""


class Clock(Protocol):
    """Times one call."""

    def time(self, call: Callable[[], Any]) -> Sample: ...


class BurstClock(Protocol):
    """Times calls in a row."""

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]: ...


class CudaClock:
    """Events on the current stream. Needs a CUDA device."""

    def __init__(self, *, flush_bytes: int | None = None, backlog_s: float = 1e-3) -> None:
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        cache = int(getattr(properties, "L2_cache_size", 0) or 64 << 20)
        self._torch = torch
        self._flush = torch.empty(max(flush_bytes or 3 * cache, 64 << 20) // 4, dtype=torch.int32, device="cuda")
        self._backlog_s, self._rate = backlog_s, self._cycles_per_second()

    def _cycles_per_second(self) -> float:
        """How many `_sleep` cycles a second has, measured: the clock's rate is not ours to know."""
        torch, cycles = self._torch, 4_000_000
        torch.cuda._sleep(cycles)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        seconds: float = start.elapsed_time(end) * 1e-3
        return cycles / max(seconds, 1e-6)

    def time(self, call: Callable[[], Any]) -> Sample:
        """Flush, backlog, events around the call; again with a longer backlog where the host was not done within it.

        The longer backlog stays for what follows, unless even the longest does not cover the call: that one waits for the
        device, and nobody else need wait for it.
        """
        before = self._backlog_s
        sample = self._once(call)
        for _ in range(RETRIES):
            longer = longer_backlog(sample.host_s, self._backlog_s)
            if longer is None:
                break
            self._backlog_s = longer
            sample = self._once(call)
        if sample.host_s >= 0.7 * LONGEST_BACKLOG_S:
            self._backlog_s = before
        return sample

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]:
        """So many calls in a row, each behind a flush, nothing waited for in between: the queue is the only backlog."""
        torch, marks, hosts = self._torch, [], []
        torch.cuda.synchronize()
        for at in range(runs):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._flush.zero_()
            start.record()
            host = time.perf_counter()
            call(at)
            hosts.append(time.perf_counter() - host)
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
        return [Sample(a.elapsed_time(b) * 1e-3, h) for (a, b), h in zip(marks, hosts, strict=True)]

    def _once(self, call: Callable[[], Any]) -> Sample:
        torch = self._torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        self._flush.zero_()
        torch.cuda._sleep(int(self._backlog_s * self._rate))
        start.record()
        host = time.perf_counter()
        call()
        host = time.perf_counter() - host
        end.record()
        torch.cuda.synchronize()
        return Sample(start.elapsed_time(end) * 1e-3, host)


def longer_backlog(host_s: float, backlog_s: float) -> float | None:
    """What the backlog must be for a call that takes the host so long; None where it is long enough, or not wanted (0).

    A call that outlasts it leaves gaps between its kernels, which would be timed as the kernel's own. One that waits for the
    device outlasts every backlog, so there is a longest one.
    """
    if backlog_s == 0 or host_s < 0.7 * backlog_s or backlog_s >= LONGEST_BACKLOG_S:
        return None
    return min(LONGEST_BACKLOG_S, max(2 * host_s, 1.5 * backlog_s))


class GpuBusy(CodaError):
    """Another process of ours is measuring on this GPU."""

    code = "gpu-busy"


def current_gpu() -> int | str:
    """UUID of the current CUDA device: the same whatever CUDA_VISIBLE_DEVICES is; its index where torch knows no UUID."""
    import torch

    index = torch.cuda.current_device()
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", index))


@contextlib.contextmanager
def gpu_lock(device: int | str, *, timeout_s: float) -> Iterator[None]:
    """Hold the right to measure on a GPU, by its index or UUID. Raises `GpuBusy` when it cannot be had in time."""
    import filelock

    path = env.cache_dir() / f"gpu-{device}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise GpuBusy(
            f"GPU {device} is being measured by another process", got=f"{timeout_s:g} s of waiting"
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class Summary:
    """One variant's device time in seconds."""

    median: float
    p20: float
    p80: float
    low: float
    high: float
    """95 % interval of the median."""
    host: float
    """Median host time of a call."""
    samples: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """Time of a variant over another's, paired by round."""

    ratio: float
    low: float
    high: float
    word: Word
    """Of the variant in front: faster, slower or no difference."""


@dataclass(frozen=True)
class Timings:
    """All samples of one run, by variant, in order of rounds."""

    samples: Mapping[str, tuple[Sample, ...]]
    floor: float
    """The noise floor: how far a variant's ratio with itself may lie from 1."""
    paired: bool = True
    """Whether samples of one round belong together; else means are compared instead of pairs."""

    def summary(self, name: str) -> Summary:
        """One variant."""
        return summary(self.samples[name])

    def compare(self, name: str, other: str) -> Ratio:
        """`name` against `other`."""
        mine, theirs = ([s.device_s for s in self.samples[n]] for n in (name, other))
        return (compare if self.paired else compare_means)(mine, theirs, floor=self.floor)


def measure(variants: Mapping[str, Call], clock: Clock, *, rounds: int, warmup: int = 3, seed: int = 0) -> Timings:
    """Time every variant once per round. The order is a random rotation per round, reversed in every other one."""
    names, rng = [*variants, NOISE], random.Random(seed)
    first = next(iter(variants))
    calls = {**variants, NOISE: variants[first]}
    found: dict[str, list[Sample]] = {name: [] for name in names}
    for at in range(warmup + rng.randint(0, 2)):  # nobody can count on the number of warm-up calls
        for name in variants:
            calls[name](at)
    for at in range(rounds):
        turn = rng.randrange(len(names))
        order = names[turn:] + names[:turn]
        for name in reversed(order) if at % 2 else order:
            call = calls[name]
            found[name].append(clock.time(lambda call=call, at=at: call(at)))  # type: ignore[misc]
    samples = {name: tuple(values) for name, values in found.items()}
    a, aa = ([s.device_s for s in samples[n]] for n in (first, NOISE))
    _, low, high = _interval(_ratios(aa, a), seed)
    return Timings(samples, max(MINIMUM_FLOOR, abs(low - 1), abs(high - 1)))


PUBLISHED_RUNS = 30


def measure_published(
    variants: Mapping[str, Call], clock: BurstClock, *, runs: int = PUBLISHED_RUNS, warmup: int = 5
) -> Timings:
    """The protocol of arXiv 2605.19269: each variant by itself, `runs` calls in a row with a cold L2, mean and deviation.

    Drift of the clocks between variants is not cancelled; the first variant is measured again at the end, and how far its
    mean has moved is the noise floor.
    """
    found: dict[str, tuple[Sample, ...]] = {}
    first = next(iter(variants))
    for name, call in [*variants.items(), (NOISE, variants[first])]:
        for at in range(warmup):
            call(at)
        found[name] = tuple(clock.burst(call, runs))
    a, aa = (statistics.fmean(s.device_s for s in found[n]) for n in (first, NOISE))
    return Timings(found, max(MINIMUM_FLOOR, abs(aa / a - 1)), paired=False)


def summary(samples: Sequence[Sample]) -> Summary:
    """Median, quantiles, interval."""
    values = sorted(s.device_s for s in samples)
    median, low, high = _interval(values, 0)
    host = statistics.median(s.host_s for s in samples)
    return Summary(
        median, quantile(values, 0.2), quantile(values, 0.8), low, high, host, tuple(s.device_s for s in samples)
    )


def compare(
    mine: Sequence[float], theirs: Sequence[float], *, floor: float = MINIMUM_FLOOR, tick: float = TICK_S
) -> Ratio:
    """The median ratio of paired samples, its 95 % interval, and the word that it supports."""
    ratio, low, high = _interval(_ratios(mine, theirs), len(mine))
    seen = abs(statistics.median(mine) - statistics.median(theirs)) > tick
    word: Word = "no difference"
    if seen and high < 1 - floor:
        word = "faster"
    elif seen and low > 1 + floor:
        word = "slower"
    return Ratio(ratio, low, high, word)


def compare_means(
    mine: Sequence[float], theirs: Sequence[float], *, floor: float = MINIMUM_FLOOR, tick: float = TICK_S
) -> Ratio:
    """The ratio of two means of samples that do not belong together, its 95 % interval from their deviations, and the word."""
    a, b = statistics.fmean(mine), statistics.fmean(theirs)
    ratio = a / b if b > 0 else math.inf
    spread = math.hypot(*(statistics.stdev(x) / statistics.fmean(x) / math.sqrt(len(x)) for x in (mine, theirs)))
    low, high = ratio * (1 - 1.96 * spread), ratio * (1 + 1.96 * spread)
    word: Word = "no difference"
    if abs(a - b) > tick and high < 1 - floor:
        word = "faster"
    elif abs(a - b) > tick and low > 1 + floor:
        word = "slower"
    return Ratio(ratio, low, high, word)


def _ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b if b > 0 else math.inf for a, b in zip(mine, theirs, strict=True)]


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values, the nearest one."""
    return values[min(len(values) - 1, round(share * (len(values) - 1)))]


def _interval(values: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval, the same for the same values."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    return statistics.median(values), quantile(medians, 0.025), quantile(medians, 0.975)
