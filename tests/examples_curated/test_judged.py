"""Every curated example that solves a task, of the bank or of `tasks/` here, passes the judge, as any candidate would."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import examples_curated
from agent import task as tasks
from agent.records import GATES, Status
from agent.verify.judge import Options, judge

pytestmark = [pytest.mark.interp, pytest.mark.usefixtures("the_same_seeds")]


FOLDER = pathlib.Path(__file__).parent / "tasks"
"""Tasks of examples that solve none of the bank's."""
JUDGED = tuple(i for i in tasks.cards() if i in examples_curated.catalog())


@pytest.mark.parametrize("task_id", JUDGED)
def test_an_example_passes_every_gate_that_needs_no_gpu(task_id: str) -> None:
    options = Options(device=False, backends=("triton",))  # the suite of cutedsl builds them for that backend
    verdict = judge(examples_curated.source(task_id), tasks.load(task_id), options=options)
    refused = {g.name: f"{g.status}: {g.reason}" for g in verdict.gates if g.status.refuses}
    assert not refused
    assert verdict.status is Status.PASS
    assert [g.name for g in verdict.not_run] == ["bench"]
    assert verdict.program_digest == examples_curated.load(task_id).program.digest


@pytest.mark.parametrize("task_id", tasks.cards(FOLDER))
def test_an_example_without_a_task_of_the_bank_is_judged_against_one_of_its_own(task_id: str) -> None:
    assert task_id in examples_curated.catalog()
    assert task_id not in tasks.cards()
    # A softmax is exp(x - lse): all errors of a row are the one rounding of its lse, which is a lottery against eager's.
    # `test_values` holds that example to a bound instead.
    gates: Any = GATES if task_id != "neighbour_softmax" else ("static", "trace", "algebra", "compile")
    verdict = judge(
        examples_curated.source(task_id),
        tasks.load(task_id, FOLDER),
        options=Options(gates=gates, device=False, backends=("triton",)),
    )
    refused = {g.name: f"{g.status}: {g.reason}" for g in verdict.gates if g.status.refuses}
    assert not refused
    assert verdict.status is (Status.PASS if "numerics" in gates else Status.NOT_RUN)
    assert [g.name for g in verdict.not_run] == [g for g in GATES if g == "bench" or g not in gates]
    assert verdict.program_digest == examples_curated.load(task_id).program.digest
