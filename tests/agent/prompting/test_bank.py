"""What a prompt shows of the bank: the answer, near-duplicates and plans that contain it are withheld, the rest fits a budget."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import authored_kernels
import coda
from agent import task
from agent.prompting import bank, needs
from agent.prompting.bank import Example, choose, similarity, withhold
from agent.task import Input, Result, Shape, Task
from coda.primitives import NAMES, ColVector, RowVector, row_mean, rsqrt, sigmoid, tanh
from examples_curated.idioms import IDIOMS

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
    return Example(name, rung, text or f'"""Source of {name}."""\n', program)


BANK = (
    example("gated", gated.program, 3),
    example("same", dataclasses.replace(gated.program, name="same"), 2),
    example("renamed", renamed.program, 4),
    example("containing", containing.program, 5),
    example("other", other.program, 1),
)


EVERYTHING = bank.examples()


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


def made(**changes: Any) -> Task:
    """A task with the interface of `gated`."""
    values: dict[str, Any] = {
        "id": "unheard-of", "title": "t", "aliases": (), "family": "f", "difficulty": 1, "reference": dict, "baseline": dict,
        "inputs": (
            Input("x", ("M", "K"), role="a"), Input("w", ("K", "N"), role="b"), Input("r", ("M",)), Input("g", ("N",)),
        ),
        "outputs": (Result("y", ("M", "N")), Result("s", ("M",), dtype="float32")),
        "shapes": (Shape("smoke", {"M": 4, "N": 8, "K": 2}, "r"),),
    }  # fmt: skip
    return Task(**(values | changes))


def test_who_gives_the_tasks_results_is_withheld_whatever_the_operands() -> None:
    gives = dict.fromkeys(("gated", "same"), "it gives the task's results")
    assert withhold("unheard-of", BANK, bank.interface_of(made())) == gives | {
        "containing": "it has the task's interface"  # a plan with the same inputs and outputs
    }
    more = (*made().inputs, Input("h", ("M", "N")))
    assert withhold("unheard-of", BANK, bank.interface_of(made(inputs=more))) == gives | {
        "containing": "it gives the task's results"  # through the program in it
    }


def test_results_are_names_with_dimensions_and_widths() -> None:
    def kept(*outputs: Result) -> set[str]:
        return {"gated", "same", "other"} - set(withhold("t", BANK, bank.interface_of(made(outputs=outputs))))

    tile, statistic = Result("y", ("M", "N")), Result("s", ("M",), dtype="float32")
    assert kept(tile, statistic) == {"other"}
    assert kept(tile) == {"gated", "same"}  # one result of several is an ingredient, the only one is the answer
    assert kept(Result("y", ("M", "N//2")), statistic) == {"gated", "same", "other"}
    assert kept(tile, Result("s", ("N",), dtype="float32")) == {"gated", "same", "other"}
    assert kept(tile, statistic, Result("z", ("M", "N"))) == {"gated", "same", "other"}


def test_a_pointwise_is_no_answer_to_a_task_with_a_gemm() -> None:
    shown = choose("fp8_block_scale", bank.examples(), interface=bank.interface_of(task.load("fp8_block_scale")))
    assert "mx_quantize" in shown.ids  # the same outputs, of a matrix that is there


def test_asked_for_everything_is_shown() -> None:
    shown = choose("gated", BANK, show_own=True)
    assert shown.ids == ("other", "same", "gated", "renamed", "containing")
    assert shown.withheld == {}


def test_the_ladder_is_shown_from_the_bottom_as_far_as_the_budget_goes() -> None:
    bank_of_three = [example(f"e{rung}", other.program, rung, f'"""{"x" * 250}"""') for rung in (3, 1, 2)]
    each = bank_of_three[0].tokens
    assert each == 64
    assert choose("t", bank_of_three, budget=3 * each).ids == ("e1", "e2", "e3")
    shown = choose("t", bank_of_three, budget=3 * each - 1)
    assert shown.ids == ("e1", "e2")
    assert "over the budget" in shown.withheld["e3"]
    assert shown.tokens == 2 * each
    assert choose("t", bank_of_three, budget=each - 1).ids == ()


def test_what_the_task_needs_comes_before_the_bottom_of_the_ladder() -> None:
    teaching = '"""T."""\nfrom coda.primitives import {}\n'
    these = [
        example("low", other.program, 1, teaching.format("exp")),
        example("both", other.program, 4, teaching.format("erf, tanh")),
        example("one", other.program, 3, teaching.format("erf")),
        example("twin", other.program, 2, teaching.format("sign")),
        example("elder", other.program, 5, teaching.format("sign")),
    ]
    wants = bank.interface_of(made(needs=("erf", "tanh", "sign", "cos")))
    each = max(e.tokens for e in these)
    two = choose("t", these, budget=2 * each, interface=wants)
    assert two.ids == ("twin", "both")  # the most first, of equals the lower rung; shown in ladder order
    assert two.untaught == ("cos",)
    assert choose("t", these, budget=3 * each, interface=wants).ids == ("low", "twin", "both")
    assert choose("t", these, budget=each, interface=wants).untaught == ("cos", "sign")


def test_the_order_of_the_bank_does_not_matter() -> None:
    assert choose("gated", BANK) == choose("gated", BANK[::-1])


def test_similarity_is_of_what_is_computed() -> None:
    assert similarity(gated.program, gated.program) == 1.0
    assert similarity(gated.program, renamed.program) == 1.0
    assert similarity(gated.program, other.program) == similarity(other.program, gated.program) < 0.5


def test_what_the_rule_means_for_the_curated_bank() -> None:
    def withheld(id: str) -> set[str]:
        return set(choose(id, EVERYTHING, interface=bank.interface_of(task.load(id), EVERYTHING)).withheld)

    gated, turned = {"gemm_swiglu", "rms_swiglu"}, {"gemm_rope", "rms_rope", "qk_norm_rope"}
    assert [withheld(i) for i in ("gemm_swiglu", "rms_swiglu", "gemm_geglu", "gemm_reglu")] == [gated] * 4
    assert [withheld(i) for i in ("gemm_rope", "rms_rope", "gemm_rope_positions", "head_norm_rope")] == [turned] * 4
    assert [withheld(i) for i in ("swiglu_backward", "geglu_backward", "reglu_backward")] == [{"swiglu_backward"}] * 3
    assert [withheld(i) for i in ("gelu_backward", "silu_backward")] == [{"gelu_backward"}] * 2
    assert withheld("residual_rms") == {"residual_rms", "residual_layernorm", "residual_rms_linear"}
    assert withheld("residual_rms_linear") == {"residual_rms_linear"}  # its ingredients may be seen
    assert withheld("cross_entropy_z_loss") == {"softcap_cross_entropy"}  # its loss has the same terms


@pytest.mark.parametrize("id", task.cards())
def test_all_that_a_task_needs_is_shown_by_an_example_that_is_not_withheld(id: str) -> None:
    t = task.load(id)
    interface = bank.interface_of(t, EVERYTHING)
    shown = choose(id, EVERYTHING, interface=interface)
    assert interface.needs
    assert shown.untaught == (), "write an example that teaches it and is not the answer"
    assert not any("budget" in why for why in shown.withheld.values())
    small = choose(id, EVERYTHING, interface=interface, budget=5_000)
    assert small.tokens <= 5_000
    assert small.untaught == (), "what is needed comes first, so a small budget holds it too"


@pytest.mark.parametrize("id", task.cards())
def test_what_a_task_declares_are_words_of_the_vocabulary_and_idioms(id: str) -> None:
    t = task.load(id)
    assert set(t.needs) <= set(NAMES) | set(IDIOMS)
    own = next((e for e in EVERYTHING if e.id == id), None)
    assert bool(t.needs) != (own is not None), "read from its example where there is one, declared where there is none"
    if own is not None:
        assert needs.tables(t) <= needs.teaches(own), "the tables promise what the example does not do"


@pytest.mark.parametrize("id", task.cards())
def test_nothing_shown_is_the_answer(id: str) -> None:
    interface = bank.interface_of(task.load(id), EVERYTHING)
    shown = choose(id, EVERYTHING, interface=interface)
    assert id not in shown.ids
    own = next((e for e in EVERYTHING if e.id == id), None)
    digests = {p.digest for e in shown.examples for p in (e.program, *getattr(e.program, "programs", ()))}
    kept = {k.digest for k in authored_kernels.catalog() if k.task == id}
    assert not digests & (kept | ({own.program.digest} if own else set()))
