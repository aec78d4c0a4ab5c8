"""Which record of a kernel counts, and what may be concluded from two runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import board_support as board
import pytest

from agent.keeping import measured, ratios
from coda.bench import plots
from coda.bench.record import BenchRecord, now

pytestmark = pytest.mark.null


def record(times: dict[str, float] | None = None, **more: Any) -> BenchRecord:
    dated = more.pop("measured_at", "")
    named = more.pop("protocol", "default")
    (found,) = measured.records(board.record("rms_scale", "1" * 64, times or {"triton": 100, "compile": 120}, **more))
    assert isinstance(found, BenchRecord)
    return dataclasses.replace(found, measured_at=dated, protocol={**found.protocol, "name": named})


OLD, NEW = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"


def test_the_newest_counts_wherever_it_lies() -> None:
    full = record({"triton": 100, "compile": 120, "quack": 110, "cublas": 90}, measured_at=OLD)
    fresh = record({"triton": 90, "compile": 120}, measured_at=NEW)
    for order in ((full, fresh), (fresh, full)):
        assert list(ratios.newest(order).values()) == [fresh]


def test_without_a_date_it_is_old_and_of_several_the_fullest_counts_then_the_last() -> None:
    full, bare = record({"triton": 100, "compile": 120, "quack": 110}), record({"triton": 90, "compile": 120})
    last = record({"triton": 80, "compile": 120, "quack": 110})
    assert list(ratios.newest([full, bare]).values()) == [full]
    assert list(ratios.newest([bare, full, last]).values()) == [last]
    dated = record({"triton": 70, "compile": 120}, measured_at=OLD)
    assert list(ratios.newest([dated, full, bare]).values()) == [dated]


def test_another_protocol_never_takes_the_place_of_the_default_one() -> None:
    usual, paper = record(measured_at=OLD), record({"triton": 60, "compile": 70}, protocol="paper", measured_at=NEW)
    assert list(ratios.newest([usual, paper]).values()) == [usual]
    assert ratios.newest([paper]) == {}
    assert {how for _, how in ratios.current([usual, paper])} == {"default", "paper"}


def test_a_record_has_the_time_at_which_it_was_made_and_old_ones_have_none() -> None:
    whole = record(measured_at=now())
    assert BenchRecord.from_json(whole.to_json()) == whole
    assert record().measured_at == ""
    with pytest.raises(ValueError, match="2026-11-29T19:40:18Z"):
        dataclasses.replace(whole, measured_at="yesterday")


def test_two_runs_meet_in_a_common_peer_with_both_intervals_and_the_larger_noise() -> None:
    one, two = record({"triton": 100, "compile": 120}), record({"triton": 190, "compile": 240}, noise=0.01)
    found = ratios.between(one, one.of("triton"), two, two.of("triton"))
    assert found is not None
    assert (found.peer, found.floor, found.word) == ("compile", 0.01, "slower")
    assert found.ratio == pytest.approx(100 / 120 * 240 / 190)
    assert found.low < found.ratio < found.high
    lonely = record({"triton": 100, "quack": 120})
    assert ratios.between(one, one.of("triton"), lonely, lonely.of("triton")) is None


def test_the_picture_has_the_kernels_own_empty_epilogue() -> None:
    """A faster one of a backend that lost is another mainloop's ceiling."""
    times = {"triton": 100, "cublas": 100, "triton, empty epilogue": 120, "cutedsl, empty epilogue": 80}
    assert plots._above(record(times), "empty epilogue") == pytest.approx(20)
