"""Who is faster: from pairs of one run, through a common peer between two, never between equal programs or beyond belief."""

from __future__ import annotations

import math
from typing import Any

import board_support as board
import pytest

from agent.keeping import measured
from agent.keeping.compare import Subject
from agent.keeping.duels import ALL, rows_of, size_of, tallies
from agent.keeping.measured import Measurements

pytestmark = pytest.mark.null

LLM, OWN = "1" * 64, "2" * 64


def subject(name: str, author: str, digest: str, *records: dict[str, Any]) -> Subject:
    found = [r for r in measured.records(list(records)) if not isinstance(r, str)]
    assert len(found) == len(records)
    return Subject(name, "rms_scale", author, "somebody", digest, Measurements(tuple(found)))  # type: ignore[arg-type]


def rec(digest: str, times: dict[str, float], **more: Any) -> dict[str, Any]:
    return board.record("rms_scale", digest, times, **more)


def llm(times: dict[str, float], *, digest: str = LLM, name: str = "rms_scale/m", **more: Any) -> Subject:
    return subject(name, "llm", digest, rec(digest, times, **more))


def own(times: dict[str, float], **more: Any) -> Subject:
    return subject("examples_curated/rms_scale", "project", OWN, rec(OWN, times, author="project", **more))


def only(kept: list[Subject], example: Subject | None = None) -> Any:
    (row,) = rows_of("rms_scale", kept, example)
    return row


def test_within_a_run_its_own_words_decide_and_the_best_of_each_side_counts() -> None:
    row = only([llm({"triton": 100, "quack": 96, "liger": 130, "compile": 120, "max-autotune": 100.1, "cublas": 90})])
    assert {side: (t.who, round(t.us, 1)) for side, t in row.times.items()} == {
        "llm": ("rms_scale/m", 100.0),
        "human": ("quack", 96.0),
        "compile": ("max-autotune", 100.1),
    }
    human, compiled = row.duel("llm", "human"), row.duel("llm", "compile")
    assert (human.word, round(human.ratio, 3)) == ("slower", 0.96)
    assert human.low < human.ratio < human.high
    assert compiled.word == "no difference"  # within the noise floor
    assert (row.cublas_us, row.anchor) == (pytest.approx(90), "llm")


def test_a_peer_races_with_several_candidates_and_its_fastest_is_the_peers() -> None:
    record = rec(LLM, {"triton": 100, "quack 1": 120, "quack 2": 90, "compile": 130})
    for m in record["measured"]:
        if m["name"].startswith("quack"):
            m |= {"author": "human", "peer": "quack", "note": "packs its weight outside"}
    (fast,) = (c for c in record["compared"] if c["peer"] == "quack 2")
    record["compared"] = [fast | {"peer": "quack", "variant": "quack 2"}, record["compared"][-1]]
    row = only([subject("rms_scale/m", "llm", LLM, record)])
    assert (row.times["human"].who, round(row.times["human"].us, 1)) == ("quack", 90.0)
    duel = row.duel("llm", "human")
    assert (duel.word, duel.ratio) == ("slower", pytest.approx(0.9))
    assert duel.low == pytest.approx(1 / fast["high"])


def test_the_mainloop_with_nothing_behind_it_is_nobodys_kernel() -> None:
    record = rec(LLM, {"triton": 100, "compile": 130, "triton, empty epilogue": 80})
    record["compared"].pop()
    record["measured"][-1]["author"] = "project"
    row = only([subject("rms_scale/m", "llm", LLM, record)])
    assert set(row.times) == {"llm", "compile"}
    assert row.notes == ()


def test_between_two_runs_a_common_peer_carries_over() -> None:
    """The project's run was on a clock of half the speed: its own microseconds would lose."""
    row = only([llm({"triton": 100, "compile": 120})], own({"triton": 190, "compile": 240}))
    project = row.times["project"]
    assert (round(project.us, 1), project.through) == (95.0, "compile")
    assert project.low < project.us < project.high
    assert row.times["llm"].through == row.times["compile"].through == ""
    duel = row.duel("llm", "project")
    assert (round(duel.ratio, 3), duel.word) == (0.95, "slower")


def test_the_intervals_of_both_runs_and_the_larger_noise_decide_between_them() -> None:
    row = only([llm({"triton": 100, "compile": 120}, spread=0.02)], own({"triton": 194, "compile": 240}, spread=0.02))
    assert row.duel("llm", "project").word == "no difference"
    row = only([llm({"triton": 100, "compile": 120}, noise=0.06)], own({"triton": 190, "compile": 240}))
    assert row.duel("llm", "project").word == "no difference"


def test_without_a_common_peer_nothing_is_compared_and_that_is_said() -> None:
    row = only([llm({"triton": 100, "quack": 110})], own({"triton": 190, "compile": 240}))
    assert row.duel("llm", "project") is None
    assert "project" not in row.times
    assert "compile" not in row.times
    assert row.notes == ("examples_curated/rms_scale: measured in another run, without a peer that ran in both",)


def test_equal_digests_are_the_same_program_which_nobody_wins() -> None:
    same = subject("rms_scale/m", "llm", OWN)  # never measured itself: the same program was
    row = only([same], own({"triton": 100, "compile": 120}))
    assert row.same_program
    assert row.duel("llm", "project").word == "same program"
    assert row.duel("llm", "compile").word == "faster"
    (against_project,) = (t for t in tallies([row]) if (t.subject, t.against) == ("llm", "project"))
    assert (against_project.geomean, against_project.same, against_project.wins) == (None, 1, 0)


def test_of_several_kernels_the_one_nearest_to_its_floor_counts() -> None:
    slow = llm({"triton": 130, "compile": 120, "cublas": 90}, name="rms_scale/slow")
    quick = llm(
        {"triton": 210, "compile": 240, "cublas": 180}, name="rms_scale/quick", digest="3" * 64
    )  # on a slow clock
    assert only([slow, quick]).times["llm"].who == "rms_scale/quick"


def test_what_is_beyond_belief_wins_nothing_and_is_no_opponent() -> None:
    row = only([llm({"triton": 10, "compile": 120}, suspicion="below the floor")], own({"triton": 100, "compile": 120}))
    assert {d.subject for d in row.duels} == {"project"}
    assert row.suspicion == ("rms_scale/m: below the floor",)
    believable = llm({"triton": 119, "compile": 120}, digest="3" * 64, name="rms_scale/slow")
    fast = llm({"triton": 10, "compile": 120}, suspicion="below the floor")
    assert only([fast, believable]).times["llm"].who == "rms_scale/slow"


def test_a_human_kernel_of_the_projects_run_stands_in_where_the_models_run_had_none() -> None:
    row = only([llm({"triton": 100, "compile": 120})], own({"triton": 190, "quack": 180, "compile": 240}))
    assert (row.times["human"].who, round(row.times["human"].us, 1)) == ("quack", 90.0)
    assert row.times["human"].through == "compile"
    assert row.duel("llm", "human").word == "slower"
    assert row.duel("project", "human").ratio == pytest.approx(180 / 190)


def test_a_persons_kernel_beyond_belief_wins_nothing_either() -> None:
    doubtful = subject(
        "rms_scale/p", "human", "4" * 64, rec("4" * 64, {"triton": 10, "compile": 120}, suspicion="below the floor")
    )
    model = llm({"triton": 100, "compile": 120})
    row = only([model, doubtful], own({"triton": 110, "compile": 120}))
    assert [(d.subject, d.against) for d in row.duels if "human" in (d.subject, d.against)] == []
    assert row.times["human"].who == "rms_scale/p"  # shown
    assert row.suspicion == ("rms_scale/p: below the floor",)
    believable = subject("rms_scale/q", "human", "5" * 64, rec("5" * 64, {"triton": 105, "compile": 120}))
    row = only([model, doubtful, believable])
    assert row.times["human"].who == "rms_scale/q"
    assert row.duel("llm", "human").word == "faster"


def test_only_the_default_protocol_anchors_a_row_or_is_carried_over() -> None:
    paper = rec(LLM, {"triton": 50, "compile": 120, "quack": 60, "cublas": 90})
    paper["protocol"]["name"] = "paper"
    usual = rec(LLM, {"triton": 100, "compile": 120})
    (row,) = rows_of("rms_scale", [subject("rms_scale/m", "llm", LLM, usual, paper)], None)
    assert (row.times["llm"].us, set(row.times)) == (pytest.approx(100), {"llm", "compile"})
    alone = subject("rms_scale/m", "llm", LLM, paper)
    (row,) = rows_of("rms_scale", [alone], own({"triton": 100, "compile": 120}))
    assert set(row.times) == {"project", "compile"}


def test_the_newest_record_counts_even_with_fewer_variants() -> None:
    old = rec(LLM, {"triton": 100, "compile": 120, "quack": 99, "cublas": 90})
    fresh = {**rec(LLM, {"triton": 80, "compile": 120}), "measured_at": "2026-11-30T00:00:00Z"}
    for order in ((old, fresh), (fresh, old)):
        assert only([subject("rms_scale/m", "llm", LLM, *order)]).times["llm"].us == pytest.approx(80)


def test_settings_are_not_mixed() -> None:
    kept = subject(
        "rms_scale/m",
        "llm",
        LLM,
        rec(LLM, {"triton": 100, "compile": 120}),
        rec(LLM, {"triton": 20, "compile": 10}, dims=board.SIZES["M = 512"]),
    )
    rows = list(rows_of("rms_scale", [kept], own({"triton": 100, "compile": 120}, dims=board.SIZES["8192"])))
    assert sorted((r.size, r.anchor) for r in rows) == [("4096", "llm"), ("8192", "project"), ("M = 512", "llm")]


def test_sums_are_geometric_and_count_both_directions_alike() -> None:
    def one(against: float, size: str) -> Any:
        return only([llm({"triton": 100, "quack": against}, dims=board.SIZES[size])])

    rows = [one(200, "4096"), one(50, "4096"), one(100, "8192"), one(90, "8192")]
    found = {t.size: t for t in tallies(rows)}
    assert list(found) == ["4096", "8192", ALL]
    assert found["4096"].geomean == pytest.approx(1.0)
    assert (found["4096"].wins, found["4096"].losses, found["4096"].draws) == (1, 1, 0)
    assert (found["8192"].wins, found["8192"].losses, found["8192"].draws) == (0, 1, 1)
    assert found[ALL].geomean == pytest.approx(math.prod([2, 0.5, 1, 0.9]) ** 0.25)
    assert found[ALL].count == 4


def test_sizes_are_widths_or_few_rows() -> None:
    assert size_of({"M": 4096, "N": 32768, "K": 8192}) == "8192"
    assert size_of({"M": 16384, "N": 256, "K": 4096}) == "4096"  # experts are no width
    assert size_of({"M": 512, "N": 8192, "K": 8192}) == "M = 512"
    assert size_of({"M": 16384, "N": 8192}) == "8192"
