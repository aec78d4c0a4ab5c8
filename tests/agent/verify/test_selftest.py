"""The judge judged: every known cheat that can be expressed is caught, and no honest kernel is refused."""

from __future__ import annotations

import pytest

from agent.verify import selftest

pytestmark = [pytest.mark.interp, pytest.mark.usefixtures("the_same_seeds")]


@pytest.mark.timeout(900)
def test_the_quick_self_test_misses_nothing_and_refuses_nobody() -> None:
    found = selftest.run(quick=True)
    assert found.missed == ()
    assert found.false_rejections == ()
    assert found.ok
    assert len(found.exploits) >= 60
    assert len(found.controls) >= 10
