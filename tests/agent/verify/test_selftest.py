"""The judge judged: every known cheat that can be expressed is caught, and no honest kernel is refused."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from agent.records import GateRecord, Status, Verdict
from agent.task import load
from agent.verify import exploits, hidden_branches, selftest
from agent.verify.judge import Options, judge
from agent.verify.selftest import Row, Trial

pytestmark = [pytest.mark.interp, pytest.mark.usefixtures("the_same_seeds")]


@pytest.mark.timeout(900)
def test_the_quick_self_test_misses_nothing_and_refuses_nobody() -> None:
    found = selftest.run(quick=True)
    assert found.missed == ()
    assert found.false_rejections == ()
    assert found.ok
    assert len(found.exploits) >= 60
    assert len(found.controls) >= 10


def test_the_short_form_says_what_it_leaves_out_and_leaves_out_no_kind_of_cheat() -> None:
    every, short = selftest.trials(), selftest.trials(short=True)
    ids = Counter(t.id for t in every)
    left = ids - Counter(t.id for t in short)
    assert ids.keys() >= selftest.LONG
    assert set(selftest.FEW) <= set(selftest.example_ids())
    assert left.keys() >= selftest.LONG
    assert [t.id for t in short] == [t.id for t in every if t.id not in left]
    kinds = {"".join(c for c in t.id if not c.islower()) for t in every if not t.control}
    assert {"".join(c for c in t.id if not c.islower()) for t in short if not t.control} == kinds
    assert sum(t.control for t in short) >= 4
    assert selftest.trials(quick=False)[0].id == every[0].id


def test_rows_come_as_they_are_decided_and_stand_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str, seconds: float) -> Trial:
        def make() -> Row:
            time.sleep(seconds)
            return Row(id=name, title=name, expected="", gate="g", status="s", ok=True)

        return Trial(name, name.startswith("C"), make)

    made = [row("X1", 0.5), row("X46c", 60), row("C01", 0.0), row("X2", 0.1)]
    monkeypatch.setattr(selftest, "_trials", lambda quick: iter(made))
    heard: list[str] = []
    found = selftest.run(short=True, jobs=3, on_row=lambda row: heard.append(row.id))
    assert heard == ["C01", "X2", "X1"]
    assert [r.id for r in found.exploits] == ["X1", "X2"]
    assert [r.id for r in found.controls] == ["C01"]
    assert found.left_out == ("X46c",)
    assert "1 left out of this short form" in found.summary()
    assert 0.5 <= found.seconds < 30


def test_what_goes_wrong_in_a_row_ends_it_without_waiting_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Row:
        raise ValueError("a bug of ours")

    waiting = [Trial(f"X{n}", False, lambda: time.sleep(0.2)) for n in range(50)]  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(selftest, "_trials", lambda quick: iter([Trial("X0", False, broken), *waiting]))
    started = time.monotonic()
    with pytest.raises(ValueError, match="a bug of ours"):
        selftest.run(jobs=1)
    assert time.monotonic() - started < 5


NOTHING: Verdict = judge("", load(exploits.TASK), options=Options(gates=()))
"""A verdict of no gate at all."""


def test_a_judge_that_accepts_everything_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_judged", lambda text, task, quick: (None, NOTHING))
    every = (*exploits.SOURCES, *hidden_branches.BRANCHES)
    rows = [selftest._source_row(s, True) for s in every if "numerics" not in s.gates]
    assert all(r.ok == (r.expected == "accepted") for r in rows)
    report = selftest.SelfTest(
        exploits=tuple(r for r in rows if r.expected != "accepted"), controls=(), absent={}, quick=True, seconds=0
    )
    assert len(report.missed) == len(report.exploits)
    assert not report.ok


def test_a_judge_that_refuses_everything_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = GateRecord(name="trace", status=Status.CRASH, reason="always", evidence={"x": 1})
    monkeypatch.setattr(selftest, "_judged", lambda text, task, quick: (refused, NOTHING))
    control = selftest._source_row(next(s for s in exploits.SOURCES if not s.gates), True)
    wrong_gate = selftest._source_row(next(s for s in exploits.SOURCES if s.gates == ("static",)), True)
    report = selftest.SelfTest(exploits=(wrong_gate,), controls=(control,), absent={}, quick=True, seconds=0)
    assert report.false_rejections == (control,)
    assert report.missed == (wrong_gate,)
    assert "accepted 0 of 1" in report.summary()


def test_races_and_the_second_wall() -> None:
    rows = [make() for make in selftest.RACES] + [selftest._unsafe_row(s) for s in exploits.UNSAFE]
    assert [r.id for r in rows if not r.ok] == []


def test_the_published_set_is_covered_or_explained() -> None:
    """The ids that the exploit matrix asks of a self-test."""
    wanted = "X01 X02 X03 X09 X12 X16 X17 X19 X23 X27 X28 X29 X35 X44 X45 X47 "
    wanted += "X49 X50 X51 X52 X55 X59 X60 X63 X64 X69 X70 X71 X76 X81 X83 X85"
    have = (
        {s.id for s in (*exploits.SOURCES, *hidden_branches.BRANCHES)}
        | {s.id for s in exploits.UNSAFE}
        | {r[0] for r in exploits.RUNNERS}
        | set(exploits.ABSENT)
    )
    have |= {"X35", "X55", "X07", "X69", "X71", "X39", "X58"}  # races and workers
    have |= {"X49"}  # tests/coda/test_numerics.py: honest kernels pass for every seed
    assert [id_ for id_ in wanted.split() if not any(h.startswith(id_) for h in have)] == []
    assert len(selftest.example_ids()) >= 10
