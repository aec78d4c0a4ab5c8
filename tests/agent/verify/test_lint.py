"""The spec lint: the bank can refuse wrong kernels, and tasks that cannot are named invalid with the reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.records import Status
from agent.task import Input, Result, Shape, Task, cards, lengths, load
from agent.verify import lint
from agent.verify.blame import Blamed, blame
from agent.verify.lint import MUTANTS, LintReport, Mutant, lint_task
from agent.verify.sizes import square_shapes
from agent.verify.worker import WorkerError, WorkerOutcome

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")
Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize("task_id", cards())
def test_every_task_of_the_bank_kills_every_mutant(task_id: str) -> None:
    report = lint_task(load(task_id), seed=20261129)  # fixed, so that a run that fails can be repeated
    assert report.ok, (report.survivors, report.problems)
    assert report.killed == report.tried
    assert report.tried >= 40
    assert report.cases >= 6


def task(
    reference: Any, baseline: Any = None, outputs: tuple[Result, ...] = (Result("y", ("M", "N")),), **changes: Any
) -> Task:
    known: dict[str, Any] = {
        "inputs": (Input("a", ("M", "K"), role="a"), Input("b", ("K", "N"), draw="weight", role="b")), "outputs": outputs,
        "reference": reference, "baseline": baseline or (lambda **inputs: _rounded(reference(**inputs), inputs["a"].dtype)),
        "gradient": None, "shapes": (Shape("smoke", {"M": 32, "N": 48, "K": 16}, ""), Shape("ragged", {"M": 7, "N": 5, "K": 3}, "")),
    }  # fmt: skip
    return dataclasses.replace(SWIGLU, id="made_up", **{**known, **changes})


def _rounded(outputs: Tensors, dtype: torch.dtype) -> Tensors:
    return {n: x.to(dtype) for n, x in outputs.items()}


def product(a: torch.Tensor, b: torch.Tensor, **_: Any) -> torch.Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    return a.to(wide) @ b.to(wide)


def right(**inputs: Any) -> Tensors:
    return {"y": product(**inputs)}


def invalid(found: Task) -> LintReport:
    report = lint_task(found)
    assert report.status is Status.INVALID_SPEC
    return report


def test_a_plain_gemm_is_a_valid_task() -> None:
    assert lint_task(task(right)).ok


def test_an_output_that_is_zero_lets_zeros_pass() -> None:
    """G02: weights of zero make the answer constant."""
    report = invalid(task(lambda **x: {"y": product(**x) * 0}))
    assert any("depends on no input" in p for p in report.problems)


def test_an_output_that_is_mostly_a_constant_is_named() -> None:
    report = invalid(task(lambda **x: {"y": torch.ones_like(product(**x))}))
    assert any("constant passes" in p for p in report.problems)


def test_a_symmetric_output_lets_a_sign_flip_pass() -> None:
    def tiny_plus_even(**x: Any) -> Tensors:
        y = product(**x)
        return {"y": torch.cat([y, y], 1)}

    outputs = (Result("y", ("M", "2*N")),)
    report = invalid(task(tiny_plus_even, outputs=outputs))
    assert any("transposed halves" in s for s in report.survivors)


def test_an_ignored_input_is_named() -> None:
    inputs = (Input("a", ("M", "K"), role="a"), Input("b", ("K", "N"), role="b"), Input("c", ("M", "N")))
    report = invalid(task(right, inputs=inputs))
    assert report.problems == ("no output depends on input 'c': a kernel that ignores it passes",)


def test_a_baseline_of_something_else_is_named() -> None:
    report = invalid(task(right, baseline=lambda **x: _rounded({"y": product(**x) * 1.2}, x["a"].dtype)))
    assert any("not what the reference computes" in p for p in report.problems)
    wide = invalid(task(right, baseline=right))
    assert any("another shape or dtype" in p or "one function" in p for p in wide.problems)


def test_a_reference_that_rounds_or_is_not_finite_is_named() -> None:
    rounds = invalid(task(lambda **x: {"y": product(**x).float()}))
    assert any("rounds in between" in p for p in rounds.problems)
    infinite = invalid(task(lambda **x: {"y": product(**x) / 0 * 0}))
    assert any("not finite" in p for p in infinite.problems)
    fails = invalid(task(lambda **x: {"z": product(**x)}))
    assert any("returns no 'y'" in p for p in fails.problems)


def test_shapes_that_say_nothing_are_refused() -> None:
    report = invalid(task(right, shapes=(Shape("benchmark", {"M": 32, "N": 48, "K": 16}, ""),)))
    assert any("no smoke or no ragged" in p for p in report.problems)


def test_a_survivor_makes_the_task_invalid() -> None:
    harmless = Mutant("the right answer", lambda name, scene: scene.right[name].clone())
    report = lint_task(task(right), mutants=(*MUTANTS, harmless))
    assert report.status is Status.INVALID_SPEC
    assert report.survivors == ("y: the right answer (fp64)", "y: the right answer (bfloat16)")
    assert report.killed == report.tried - 2


def test_without_mutants_nothing_is_shown() -> None:
    assert not lint_task(task(right), mutants=()).ok


@pytest.mark.parametrize("word", ["INFRA_ERROR", "TIMEOUT", "CRASH"])
def test_a_machine_that_fails_says_nothing_about_the_task(monkeypatch: pytest.MonkeyPatch, word: Any) -> None:
    outcome = WorkerOutcome(status=word, error=WorkerError(code="c", message="no memory"), seconds=1.0)
    monkeypatch.setattr(lint, "run_worker", lambda *_, **__: outcome)
    report = lint.lint_in_worker(SWIGLU)
    assert (report.status, report.tried, report.ok) == (Status(word), 0, False)
    assert report.problems == (f"the lint ended with {word}: no memory",)


def test_a_full_memory_is_not_the_tasks_fault() -> None:
    def full(**_: Any) -> Tensors:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for changed in (task(full), task(right, full)):
        with pytest.raises((Blamed, torch.OutOfMemoryError)) as caught:
            lint_task(changed)
        assert blame(caught.value) is Status.INFRA_ERROR


def test_a_task_file_that_cannot_be_read_is_the_tasks_fault(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("TASK = nothing\n", encoding="utf-8")
    with pytest.raises(Blamed, match="the lint of broken fails") as caught:
        lint.work({"task": {"id": "broken", "folder": str(tmp_path)}, "seed": 1})
    assert caught.value.status is Status.INVALID_SPEC


def test_what_fits_square_shapes_only_always_meets_one_that_is_not_tiny() -> None:
    """A hidden shape that happens to be square is so small that no rule in bf16 can refuse what is transposed there."""
    for task_id in cards():
        found = load(task_id)
        squares = square_shapes(found)
        for output in (o for o in found.outputs if len(o.shape) == 2):
            made = [lengths(output.shape, dims) for dims in squares]
            assert any(rows == columns >= 16 for rows, columns in made) or "128" in str(output.shape), (task_id, output)
    scenes = lint._scenes(SWIGLU, seed=1)
    assert {(scene.right["h"].shape, scene.inputs["z"].shape) for scene in scenes} >= {((32, 32), (32, 64))}


def test_a_mutant_that_fits_square_shapes_only_is_refused_whatever_the_hidden_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a hidden shape of 2 by 2 in every run, where the rule in bf16 lets nearly everything through."""
    monkeypatch.setattr(lint, "hidden", lambda task, rng: [("tiny", {"M": 2, "N": 2, "K": 1})])
    chosen = tuple(m for m in MUTANTS if m.name in ("transposed", "half copied from an input"))
    for seed in range(12):
        report = lint_task(SWIGLU, seed=seed, mutants=chosen)
        assert report.ok, report.survivors
        assert any("transposed (bfloat16)" in label for label in _tried(SWIGLU, seed, chosen))


def _tried(found: Task, seed: int, mutants: tuple[Mutant, ...]) -> list[str]:
    working = lint._Working(found, seed)
    scenes = lint._scenes(found, seed)
    return [
        f"{o.name}: {m.name} (bfloat16)"
        for m in mutants
        for o in found.outputs
        if any(working.killed(m, o.name, scene) for scene in scenes)
    ]
