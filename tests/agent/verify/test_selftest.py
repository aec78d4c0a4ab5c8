"""The judge judged: every known cheat that can be expressed is caught, and no honest kernel is refused."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from agent.verify import selftest
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
