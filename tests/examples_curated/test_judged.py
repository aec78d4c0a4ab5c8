"""Every curated example that solves a task of the kernel suite passes the judge, as any candidate would."""

from __future__ import annotations

import itertools

import pytest

import examples_curated
from agent import task as tasks
from agent.records import Status
from agent.verify.judge import Options, judge

pytestmark = pytest.mark.interp


@pytest.fixture(autouse=True)
def _the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh in use; fixed here, so that a run that fails can be repeated."""
    seeds = itertools.count(20261129)
    for module in ("judge", "inputs"):
        monkeypatch.setattr(f"agent.verify.{module}.run_seed", lambda: next(seeds))


JUDGED = tuple(i for i in tasks.cards() if i in examples_curated.catalog())


@pytest.mark.parametrize("task_id", JUDGED)
def test_an_example_passes_every_gate_that_needs_no_gpu(task_id: str) -> None:
    verdict = judge(examples_curated.source(task_id), tasks.load(task_id), options=Options(device=False))
    refused = {g.name: f"{g.status}: {g.reason}" for g in verdict.gates if g.status.refuses}
    assert not refused
    assert verdict.status is Status.PASS
    assert [g.name for g in verdict.not_run] == ["bench"]
    assert verdict.program_digest == examples_curated.load(task_id).program.digest
