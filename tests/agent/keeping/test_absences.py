"""Hundreds of sentences about what was not timed become a few, and none is lost."""

from __future__ import annotations

import pytest

from agent.keeping.absences import FAILED, NO_KERNEL, Missing, absences, reasons

pytestmark = pytest.mark.null


def test_reasons_are_put_together_by_peer_and_kind_the_most_useful_first() -> None:
    found = absences(
        {
            ("liger", "not applicable: liger-kernel has no kernel for the mathematics of a"): ["a"],
            ("liger", "not applicable: liger-kernel has no kernel for the mathematics of b"): ["b"],
            ("cublas", "not applicable: the task has no GEMM"): ["a"],
            ("liger", "not installed: pip install liger-kernel"): ["c", "d"],
            ("eager", "not asked for"): ["a", "b"],
            ("max-autotune", "not asked for"): ["a", "b"],
            ("cutedsl", "a: backend 'cutedsl': no lowering here\n  hint: backend='auto'"): ["a"],
            ("cutedsl", "crashed"): ["b"],
        }
    )
    assert [(one.peer, one.why, one.tasks) for one in found] == [
        ("cutedsl", FAILED, ("a (no lowering here)", "b (crashed)")),
        ("liger", "not installed: pip install liger-kernel", ("c", "d")),
        ("eager, max-autotune", "not asked for", ("a", "b")),
        ("cublas", "the task has no GEMM", ("a",)),
        ("liger", NO_KERNEL, ("a", "b")),
    ]


def test_what_is_missing_is_put_together_by_reason_the_commonest_first() -> None:
    found = reasons([Missing("a", "x"), Missing("a", "y", of="a/k"), Missing("b", "y", of="b/k")])
    assert list(found.items()) == [("y", ("a/k", "b/k")), ("x", ("a",))]
