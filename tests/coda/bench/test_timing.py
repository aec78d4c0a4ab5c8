"""Timing with a fake clock: what the words need, and what they must not say."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from coda.bench.timing import (
    NOISE,
    NOISY,
    GpuBusy,
    Sample,
    compare,
    compare_means,
    gpu_lock,
    longer_backlog,
    measure,
    measure_published,
    summary,
)

pytestmark = pytest.mark.null


class FakeClock:
    """A device whose clock drifts and jitters; the timed call says how long it takes."""

    def __init__(self, seed: int, jitter: float = 0.01, drift: float = 0.0) -> None:
        self.rng, self.jitter, self.drift, self.calls = random.Random(seed), jitter, drift, 0

    def time(self, call: Callable[[], Any]) -> Sample:
        seconds = call()
        self.calls += 1
        return Sample(seconds * (1 + self.rng.gauss(0, self.jitter)) * (1 + self.drift * self.calls), 1e-5)


def takes(seconds: float, seen: list[int] | None = None) -> Callable[[int], float]:
    def call(at: int) -> float:
        if seen is not None:
            seen.append(at)
        return seconds

    return call


def test_the_same_kernel_twice_is_no_difference() -> None:
    """X35: in at least 95 % of runs, also while the clock drifts."""
    words = []
    for seed in range(100):
        timings = measure({"a": takes(1e-3), "b": takes(1e-3)}, FakeClock(seed, drift=2e-4), rounds=25, seed=seed)
        words.append(timings.compare("b", "a").word)
    assert words.count("no difference") >= 95


@pytest.mark.parametrize(("factor", "word"), [(0.9, "faster"), (1.1, "slower")])
def test_a_tenth_is_seen_every_time(factor: float, word: str) -> None:
    for seed in range(40):
        timings = measure(
            {"a": takes(1e-3), "b": takes(1e-3 * factor)}, FakeClock(seed, drift=2e-4), rounds=25, seed=seed
        )
        found = timings.compare("b", "a")
        assert found.word == word
        assert found.low <= found.ratio <= found.high
        assert found.ratio == pytest.approx(factor, rel=0.02)


def test_a_difference_below_the_clocks_tick_is_none() -> None:
    assert compare([1.0e-6] * 20, [1.9e-6] * 20).word == "no difference"
    assert compare([10.0e-6] * 20, [19.0e-6] * 20).word == "faster"


def test_noise_of_the_run_widens_the_floor() -> None:
    quiet = measure({"a": takes(1e-3)}, FakeClock(1, jitter=0.001), rounds=25)
    loud = measure({"a": takes(1e-3)}, FakeClock(1, jitter=0.2), rounds=25)
    assert quiet.floor < 0.01 < loud.floor
    low, high = quiet.summary("a"), loud.summary("a")
    assert low.p80 / low.p20 < NOISY < high.p80 / high.p20


def test_every_variant_is_timed_once_per_round_in_changing_order() -> None:
    order: list[str] = []

    class Order(FakeClock):
        def time(self, call: Callable[[], Any]) -> Sample:
            order.append(call())
            return Sample(1.0, 0.0)

    timings = measure({n: (lambda at, n=n: n) for n in "abc"}, Order(0), rounds=12, warmup=0, seed=3)  # type: ignore[misc]
    rounds = [tuple(order[i : i + 4]) for i in range(0, len(order), 4)]
    assert all(sorted(r) == ["a", "a", "b", "c"] for r in rounds)  # the first one twice: A/A
    assert len(set(rounds)) > 3
    assert {len(s) for s in timings.samples.values()} == {12}
    assert set(timings.samples) == {"a", "b", "c", NOISE}


def test_warm_up_calls_cannot_be_counted_on() -> None:
    counts = set()
    for seed in range(20):
        seen: list[int] = []
        measure({"a": takes(1.0, seen)}, FakeClock(0), rounds=3, warmup=2, seed=seed)
        counts.add(len(seen))
    assert len(counts) > 1


def test_an_outlier_does_not_move_the_median() -> None:
    samples = [Sample(1e-3, 1e-5)] * 24 + [Sample(1.0, 1e-5)]
    found = summary(samples)
    assert found.median == found.low == found.p80 == 1e-3
    assert len(found.samples) == 25


def test_one_measurement_per_gpu(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))
    with gpu_lock(0, timeout_s=1):
        with gpu_lock(1, timeout_s=1):
            pass
        with pytest.raises(GpuBusy, match="another process"), gpu_lock(0, timeout_s=0.05):
            pass
    with gpu_lock(0, timeout_s=0.05):
        pass


def test_the_backlog_covers_the_host() -> None:
    assert longer_backlog(0.5e-3, 1e-3) is None
    assert longer_backlog(1.5e-3, 1e-3) == 3e-3
    assert longer_backlog(0.8e-3, 1e-3) == 1.6e-3
    assert longer_backlog(1.0, 1e-3) == 0.02  # a call that waits for the device
    assert longer_backlog(1.0, 0.02) is None
    assert longer_backlog(1.0, 0) is None  # not wanted


class Bursts(FakeClock):
    """Calls in a row."""

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]:
        return [self.time(lambda at=at: call(at)) for at in range(runs)]  # type: ignore[misc]


def test_the_published_protocol_times_each_variant_by_itself() -> None:
    order: list[str] = []

    def variant(name: str, seconds: float) -> Callable[[int], float]:
        def call(at: int) -> float:
            order.append(name)
            return seconds

        return call

    found = measure_published({"a": variant("a", 1e-3), "b": variant("b", 1.1e-3)}, Bursts(1), runs=30, warmup=5)
    assert order == ["a"] * 35 + ["b"] * 35 + ["a"] * 35
    assert {name: len(s) for name, s in found.samples.items()} == {"a": 30, "b": 30, NOISE: 30}
    assert not found.paired
    assert found.compare("a", "b").word == "faster"
    assert found.compare("b", "a").word == "slower"


def test_drift_between_variants_is_noise_of_the_published_protocol() -> None:
    """It does not interleave, so a clock that drifts must not make a difference of the same kernel."""
    words = []
    for seed in range(40):
        same = {"a": takes(1e-3), "b": takes(1e-3)}
        words.append(measure_published(same, Bursts(seed, drift=2e-4), runs=30).compare("b", "a").word)
    assert words.count("no difference") >= 38


def test_means_are_compared_with_the_deviations_of_both() -> None:
    rng = random.Random(2)
    quiet = [1e-3 * (1 + rng.gauss(0, 0.001)) for _ in range(30)]
    loud = [1.03e-3 * (1 + rng.gauss(0, 0.2)) for _ in range(30)]
    assert compare_means(quiet, [x * 1.03 for x in quiet]).word == "faster"
    assert compare_means(quiet, loud).word == "no difference"
    found = compare_means(quiet, loud)
    assert found.low < found.ratio < found.high
