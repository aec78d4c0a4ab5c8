"""Races on a fake clock: words, candidates, audits, protocols. What races is in `test_entering.py` and `test_entrants.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from agent.records import GateRecord, Status
from agent.task import load
from agent.verify import bench, exploits, racing
from agent.verify.blame import Blamed
from agent.verify.judge import Limits, Options, Run
from coda.bench.record import BenchRecord
from coda.bench.timing import Sample

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


class Clock:
    def __init__(self, seed: int = 0) -> None:
        self.rng, self.takes = random.Random(seed), 1.0

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(self.takes * (1 + self.rng.gauss(0, 0.005)), 1e-5)

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]:
        return [self.time(lambda at=at: call(at)) for at in range(runs)]  # type: ignore[misc]


Answer = tuple[Status, str, BenchRecord | None]


def raced(
    kernels: Mapping[str, float],
    others: Mapping[str, float],
    *,
    wrong_at: int | None = None,
    ceiling: float | None = 5e-4,
    peer: str = "",
    protocol: racing.Protocol = "default",
) -> Answer:
    clock = Clock()
    sets = [{"x": torch.full((4,), float(i + 1))} for i in range(3)]
    calls = 0

    def variant(seconds: float, *, kernel: bool = False) -> racing.Variant:
        def call(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            nonlocal calls
            calls += kernel
            clock.takes = seconds
            return {"y": inputs["x"] * (3 if kernel and wrong_at is not None and calls >= wrong_at else 2)}

        return call

    contest = racing.Race(
        task="t", program_digest="d", dims={"M": 4}, kernels={n: variant(s, kernel=True) for n, s in kernels.items()},
        others={n: variant(s) for n, s in others.items()}, ceiling=variant(ceiling) if ceiling else None, flops=10**9,
        traffic=10**6, bandwidth=4e12, absent={"liger": "not installed"},
        environment={"gpu": "a GPU", "driver": "1"}, peer_of=dict.fromkeys(others, peer) if peer else {},
    )  # fmt: skip
    check: racing.Check = lambda at, out: None if torch.equal(out["y"], sets[at]["x"] * 2) else "wrong"  # noqa: E731
    return racing.race(contest, sets, check, clock, rounds=25, seed=1, protocol=protocol)


@pytest.mark.parametrize(
    ("kernel", "peers", "word"),
    [
        (0.8e-3, {"eager": 2e-3, "compile": 1e-3}, Status.PASS),
        (1e-3, {"eager": 1.5e-3, "compile": 1e-3}, Status.NO_DIFFERENCE),
        (1.2e-3, {"eager": 2e-3, "compile": 1e-3}, Status.SLOWER),  # twice as fast as eager does not help
        (0.4e-3, {"eager": 0.7e-3}, Status.SUSPECT),  # below the GEMM alone
        (0.9e-3, {"eager": 2e-3}, Status.SUSPECT),  # more than twice the best known
    ],
)
def test_the_word_is_about_the_best_peer(kernel: float, peers: dict[str, float], word: Status) -> None:
    status, reason, record = raced({"triton": kernel}, peers)
    assert status is word, reason
    assert record is not None
    assert record.best_peer is not None
    assert record.best_peer.peer == min(peers, key=lambda n: peers[n])
    assert BenchRecord.from_json(record.to_json()) == record
    assert record.absent == {"liger": "not installed"}
    assert {m.author for m in record.measured} == {"candidate", "tool"}


def test_the_fastest_candidate_stands_for_its_peer() -> None:
    _, reason, record = raced({"triton": 1e-3}, {"quack[a]": 1.4e-3, "quack[b]": 1.1e-3}, peer="quack")
    assert record is not None
    (only,) = record.compared
    assert (only.peer, only.variant) == ("quack", "quack[b]")
    assert only.ratio == pytest.approx(1 / 1.1, rel=0.02)
    assert "against quack[b]" in reason
    assert {m.name: m.peer for m in record.measured if m.peer} == {"quack[a]": "quack", "quack[b]": "quack"}
    assert {m.author for m in record.measured if m.peer} == {"human"}


def test_the_published_protocol_gives_means_of_thirty_runs() -> None:
    status, _, record = raced({"triton": 0.9e-3}, {"compile": 1e-3}, protocol="paper")
    assert status is Status.PASS
    assert record is not None
    assert record.protocol["name"] == "paper"
    assert not record.protocol["interleaved"]
    assert {len(m.samples) for m in record.measured} == {30}
    kernel = record.of("triton")
    assert kernel.mean == pytest.approx(0.9e-3, rel=0.01)
    assert 0 < kernel.deviation < 0.02 * kernel.mean
    assert BenchRecord.from_json(record.to_json()) == record


def test_the_best_backend_counts() -> None:
    _, _, record = raced({"triton": 1.2e-3, "cutedsl": 0.9e-3}, {"compile": 1e-3})
    assert record is not None
    assert record.kernel == "cutedsl"


@pytest.mark.parametrize("at", [4, 10, 20])
def test_timed_outputs_are_audited(at: int) -> None:
    caught = [raced({"triton": 0.9e-3}, {"compile": 1e-3}, wrong_at=at)[0] for _ in range(3)]
    assert set(caught) == {Status.WRONG_VALUES}


def test_the_environment_of_the_numbers_is_in_the_record() -> None:
    _, _, record = raced({"triton": 0.9e-3}, {"compile": 1e-3})
    assert record is not None
    assert record.environment == {"gpu": "a GPU", "driver": "1"}


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Blamed(Status.INVALID_SPEC, "the reference of t fails"), Status.INVALID_SPEC),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.INFRA_ERROR),
    ],
)
def test_what_is_not_the_kernels_fault_is_the_word_of_its_shape(error: Exception, word: Status) -> None:
    def shape() -> racing.Answer:
        raise error

    assert bench.blamed(shape)[0] is word
    with pytest.raises(ZeroDivisionError):
        bench.blamed(lambda: 1 / 0)  # type: ignore[arg-type,return-value]


def test_without_a_peer_nothing_is_claimed() -> None:
    status, reason, record = raced({"triton": 1e-3}, {}, ceiling=None)
    assert status is Status.NO_DIFFERENCE
    assert "no peer" in reason
    assert record is not None
    assert record.gemm_flops is None


def test_one_word_for_all_shapes() -> None:
    assert racing.together([Status.PASS, Status.NO_DIFFERENCE]) is Status.PASS
    assert racing.together([Status.PASS, Status.SLOWER]) is Status.SLOWER
    assert racing.together([Status.NO_DIFFERENCE]) is Status.NO_DIFFERENCE
    assert racing.together([Status.NOT_RUN, Status.PASS]) is Status.NOT_RUN
    assert racing.together([Status.PASS, Status.SUSPECT, Status.WRONG_VALUES]) is Status.SUSPECT


def test_without_a_gpu_it_does_not_run() -> None:
    run = Run(exploits.HONEST, SWIGLU, Options(), Limits(), {})
    assert bench.gate(run) == GateRecord.not_run("bench", "no GPU")
