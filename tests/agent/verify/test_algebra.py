"""The formula gate: every way of writing the right formula passes, every wrong one fails with a word and a pattern."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from agent.records import Status
from agent.task import Gradient, Task, cards, load
from agent.verify import algebra, exploits, sizes
from agent.verify.inputs import run_seed
from agent.verify.subject import Subject, task_ref

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


def subject(source: str = exploits.HONEST, task: Task = SWIGLU) -> Subject:
    space: dict[str, Any] = {}
    exec(compile(source, "kernel.py", "exec"), space)
    return Subject(space["kernel"].program, task)


def checked(old: str = "", new: str = "", task: Task = SWIGLU) -> algebra.Findings:
    assert not old or old in exploits.HONEST
    return algebra.check(subject(exploits.HONEST.replace(old, new) if old else exploits.HONEST, task), seed=run_seed())


def test_the_honest_kernel_passes_with_evidence() -> None:
    found = checked()
    assert (found.status, found.failures) == (Status.PASS, [])
    assert found.cases >= 18
    assert found.worst.keys() == {"dz", "h", "zdz"}
    assert max(found.worst.values()) < 1e-10
    assert found.checks.keys() == {"linear dz", "linear zdz", "gradient dz"}


@pytest.mark.parametrize(
    ("old", "new", "output", "pattern"),
    [
        ("pair(dg, du)", "pair(du, dg)", "dz", "even and odd swapped"),
        ("pair(dg, du)", "pair(-dg, -du)", "dz", "sign"),
        ("(s + y * (1 - s))", "s", "dz", "every other of the columns"),
        ('"h": y * u', '"h": 2 * y * u', "h", "factor 2"),
        ('"h": y * u', '"h": 0 * y', "h", "zeros"),
        ('"h": y * u', '"h": y * u + 1', "h", "constant offset"),
        ("row_sum(g * dg + u * du)", "row_sum(g * dg + u * du) / columns()", "zdz", "extra 1/N"),
    ],
)
def test_wrong_formulas_fail_with_their_pattern(old: str, new: str, output: str, pattern: str) -> None:
    found = checked(old, new)
    assert found.status is Status.WRONG_VALUES
    assert pattern in {f["pattern"] for f in found.failures if f["output"] == output}


def test_a_shape_that_is_special_cased_is_found_by_ragged_sizes() -> None:
    found = checked('"h": y * u', '"h": where(row_index() < rows() // 32 * 32, y * u, 0.0)')
    assert found.status is Status.WRONG_VALUES
    assert {f["where"] for f in found.failures} <= {"ragged", "near", "far", "tiny"}
    assert "last partial tile of rows" in {f["pattern"] for f in found.failures}


def test_what_is_wrong_for_large_values_only_is_found_by_distributions() -> None:
    found = checked("dg, du =", "s = where(abs(g) < 6.0, s, 0.5)\n    dg, du =")
    assert found.status is Status.WRONG_VALUES
    assert "heavy" in {f["distribution"] for f in found.failures}


def test_nan_is_its_own_word() -> None:
    assert checked('"h": y * u', '"h": y * u + (g - g) / (g - g)').status is Status.NONFINITE


def test_a_kernel_that_rejects_allowed_sizes_fails() -> None:
    found = checked(
        '"h": y * u', '"h": y * u + 0 * segment_sum(y, 4)'.replace("segment_sum", "coda.primitives.segment_sum")
    )
    assert found.status is Status.RUNTIME_ERROR


def _task(**changes: Any) -> Task:
    assert SWIGLU.gradient is not None
    return dataclasses.replace(SWIGLU, **changes)


def test_calculus_needs_no_reference() -> None:
    """A reference and a kernel that agree on a wrong gradient are both found wrong by finite differences."""

    def wrong(dy: torch.Tensor, w2_t: torch.Tensor, z: torch.Tensor) -> dict[str, torch.Tensor]:
        right = SWIGLU.reference(dy, w2_t, z)
        dz = right["dz"].clone()
        dz[:, 1::2] *= 0.999
        gate, up = z[:, 0::2], z[:, 1::2]
        return {**right, "dz": dz, "zdz": (gate * dz[:, 0::2] + up * dz[:, 1::2]).sum(1)}

    found = checked("acc * y\n", "acc * y * 0.999\n", _task(reference=wrong))
    assert found.status is Status.WRONG_VALUES
    assert found.failures[0]["pattern"] == "not a gradient"


def test_a_gradient_is_linear_in_the_upstream() -> None:
    def squared(dy: torch.Tensor, w2_t: torch.Tensor, z: torch.Tensor) -> dict[str, torch.Tensor]:
        right = SWIGLU.reference(dy, w2_t, z)
        return {**right, "zdz": right["zdz"] ** 2}

    found = checked("row_sum(g * dg + u * du)}", "row_sum(g * dg + u * du) ** 2}", _task(reference=squared))
    assert found.status is Status.WRONG_VALUES
    assert found.failures[0]["pattern"] == "not linear"


def test_statistics_are_recomputed_for_finite_differences() -> None:
    task = load("rms_backward")
    assert isinstance(task.gradient, Gradient)
    inputs = algebra.draws.draw(task, {"M": 5, "N": 6, "K": 4}, seed=1)
    again = task.gradient.consistent(dict(inputs))
    assert not torch.equal(again["rstd"], inputs["rstd"])
    assert torch.equal(again["h"], inputs["h"])


def test_time_is_bounded() -> None:
    found = algebra.check(subject(), seed=1, seconds=0.0)
    assert found.status is Status.TIMEOUT


def test_a_task_whose_reference_refuses_every_size_is_at_fault() -> None:
    def refuses(**_: Any) -> dict[str, torch.Tensor]:
        raise ValueError("no")

    assert checked(task=_task(reference=refuses)).status is Status.INVALID_SPEC


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (TypeError("no such operand"), Status.INVALID_SPEC),
        (KeyError("h"), Status.INVALID_SPEC),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.INFRA_ERROR),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Status.INFRA_ERROR),
    ],
)
def test_what_the_reference_raises_is_never_the_candidates(error: Exception, word: Status) -> None:
    def fails(**_: Any) -> dict[str, torch.Tensor]:
        raise error

    found = checked(task=_task(reference=fails))
    assert (found.status, found.cases) == (word, 0)
    assert "the reference of swiglu_backward fails" in found.reason


def test_the_worker_answers_plain_json() -> None:
    import json

    payload = {"program": subject().program.to_json(), "task": task_ref(SWIGLU), "seed": 3, "seconds": 60}
    answer = algebra.work(json.loads(json.dumps(payload)))
    assert json.loads(json.dumps(answer, allow_nan=False))["status"] == "PASS"
    assert answer["evidence"]["cases"] > 10


@pytest.mark.parametrize("source", [s for s in exploits.SOURCES if s.id.startswith("X46")], ids=lambda s: s.id)
def test_no_position_and_no_size_may_be_special(source: exploits.Source) -> None:
    found = algebra.check(subject(source.text), seed=run_seed())
    assert found.status is Status.WRONG_VALUES
    if source.id != "X46a":  # right wherever the task's small sizes are: only the long ones tell
        assert {f["where"] for f in found.failures} <= {"long", "far"}


@pytest.mark.parametrize("task_id", cards())
def test_long_sizes_are_accepted_by_every_task_of_the_bank(task_id: str) -> None:
    """Every benchmark length of every dim is there, one is beyond, and the references take the cheapest and the longest."""
    task = load(task_id)
    shapes = sizes.long_shapes(task, random.Random(run_seed()))
    for name in task.shapes[0].dims:
        lengths = {dims[name] for dims in shapes}
        own = {s.dims[name] for s in task.shapes_of("benchmark")}
        assert own <= lengths
        assert max(lengths) > max(own)
    assert all(sizes.largest_tensor(task, dims) <= sizes.LONG_ELEMENTS for dims in shapes)
    for dims in (shapes[0], max(shapes, key=lambda d: sizes.largest_tensor(task, d))):
        assert algebra.reference(task, algebra.draws.draw(task, dims, seed=1))
