"""What a prompt shows of the bank: the answer, near-duplicates and plans that contain it are withheld, the rest fits a budget."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import coda
from agent import task
from agent.prompting import bank
from agent.prompting.bank import Example, choose, similarity, withhold
from agent.task import Input, Result, Task
from coda.primitives import ColVector, RowVector, row_mean, rsqrt, sigmoid, tanh

pytestmark = pytest.mark.null


@coda.epilogue
def gated(acc: Any, r: ColVector, g: RowVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """The answer."""
    y = acc * r
    return {"y": y * sigmoid(y) * g, "s": rsqrt(row_mean(y * y) + 1e-6)}


@coda.epilogue
def renamed(acc: Any, scale: ColVector, gain: RowVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """The same under other names and with another constant."""
    x = acc * scale
    return {"out_y": x * sigmoid(x) * gain, "stat": rsqrt(row_mean(x * x) + 1e-5)}


@coda.epilogue
def other(acc: Any, g: RowVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """Something else."""
    return {"y": tanh(acc) * g}


@coda.plan
def containing(x: Any, w: Any, r: Any, g: Any) -> dict[str, Any]:
    """A plan with the answer in it."""
    first = gated(x, w, r=r, g=g)
    return {"y": other(first.y, w, g=g).y, "s": first.s}


def example(name: str, program: Any, rung: int = 1, text: str = "") -> Example:
    return Example(name, rung, text or f"source of {name}\n", program)


BANK = (
    example("gated", gated.program, 3),
    example("same", dataclasses.replace(gated.program, name="same"), 2),
    example("renamed", renamed.program, 4),
    example("containing", containing.program, 5),
    example("other", other.program, 1),
)


def test_the_answer_its_equals_near_duplicates_and_containers_are_withheld() -> None:
    reasons = withhold("gated", BANK)
    assert set(reasons) == {"gated", "same", "renamed", "containing"}
    assert reasons["gated"] == "it is the task's own"
    assert reasons["same"] == "it contains the same program"
    assert reasons["renamed"] == "it contains a program that is 100 % alike"


def test_an_ingredient_of_a_plan_is_not_withheld() -> None:
    assert set(withhold("containing", BANK)) == {"containing"}


def test_a_task_without_an_example_withholds_nothing() -> None:
    assert withhold("unheard-of", BANK) == {}


def test_without_an_example_of_its_own_the_interface_is_compared() -> None:
    made = Task(
        id="unheard-of", title="t", aliases=(), family="f", difficulty=1, reference=dict, baseline=dict,
        inputs=(Input("x", ("M", "K"), role="a"), Input("w", ("K", "N"), role="b"), Input("r", ("M",)), Input("g", ("N",))),
        outputs=(Result("y", ("M", "N")), Result("s", ("M",), dtype="float32")), shapes=(),
    )  # fmt: skip
    alike = {"gated", "same", "containing"}  # `renamed` has other names, `other` one operand less
    assert withhold("unheard-of", BANK, bank.interface_of(made)) == dict.fromkeys(alike, "it has the task's interface")
    matrix = dataclasses.replace(made, inputs=(*made.inputs[:3], Input("g", ("M", "N"))))
    assert set(withhold("unheard-of", BANK, bank.interface_of(matrix))) == {
        "containing"
    }  # inputs of a plan have no kind
    assert "other" not in withhold("gated", BANK, bank.interface_of(made))  # its own example says more
    siblings = ("gelu_tanh_backward", "silu_backward", "squared_relu_backward")
    assert all("gelu_backward" in withhold(id, bank.examples(), bank.interface_of(task.load(id))) for id in siblings)


def test_asked_for_everything_is_shown() -> None:
    shown = choose("gated", BANK, show_own=True)
    assert shown.ids == ("other", "same", "gated", "renamed", "containing")
    assert shown.withheld == {}


def test_the_ladder_is_shown_from_the_bottom_as_far_as_the_budget_goes() -> None:
    bank_of_three = [example(f"e{rung}", other.program, rung, "x" * 250) for rung in (3, 1, 2)]
    each = bank_of_three[0].tokens
    assert choose("t", bank_of_three, budget=3 * each).ids == ("e1", "e2", "e3")
    shown = choose("t", bank_of_three, budget=3 * each - 1)
    assert shown.ids == ("e1", "e2")
    assert "over the budget" in shown.withheld["e3"]
    assert choose("t", bank_of_three, budget=each - 1).ids == ()


def test_the_order_of_the_bank_does_not_matter() -> None:
    assert choose("gated", BANK) == choose("gated", BANK[::-1])


def test_similarity_is_of_what_is_computed() -> None:
    assert similarity(gated.program, gated.program) == 1.0
    assert similarity(gated.program, renamed.program) == 1.0
    assert similarity(gated.program, other.program) == similarity(other.program, gated.program) < 0.5


def test_the_curated_bank_fits_the_budget_and_its_own_rules() -> None:
    everything = bank.examples()
    assert sum(e.tokens for e in everything) <= bank.BUDGET_TOKENS
    assert [e.rung for e in everything] == sorted(e.rung for e in everything)
    for id in task.cards():
        shown = choose(id, everything, interface=bank.interface_of(task.load(id)))
        assert id not in shown.ids
        own = next((e for e in everything if e.id == id), None)
        assert own is None or own.program.digest not in {e.program.digest for e in shown.examples}
        assert len(shown.examples) >= len(everything) - 3  # withholding is no pretext for an empty prompt


def test_what_the_rule_means_for_the_curated_bank() -> None:
    def withheld(id: str) -> set[str]:
        return set(choose(id, bank.examples()).withheld)

    assert withheld("rms_swiglu") == {"rms_swiglu"}  # gemm_swiglu is a relative, not a near-duplicate
    assert withheld("residual_rms") == {"residual_rms", "residual_rms_linear"}  # the plan contains it
    assert withheld("residual_rms_linear") == {"residual_rms_linear"}
