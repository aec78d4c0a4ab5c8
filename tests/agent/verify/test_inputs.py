"""Draws, distributions, seeds, and the sizes at which candidates are tried."""

from __future__ import annotations

import random

import pytest
import torch

from agent.errors import InvalidTask
from agent.task import Input, Result, Shape, Task, cards, load
from agent.verify.inputs import DRAWS, draw, run_seed, subseed, upcast
from agent.verify.sizes import MAX_ELEMENTS, Rules, distinct_dims, hidden, small_shapes

pytestmark = pytest.mark.interp


def task(
    *inputs: Input, shapes: tuple[dict[str, int], ...] = ({"M": 8, "N": 16, "K": 4}, {"M": 7, "N": 6, "K": 3})
) -> Task:
    families = ("smoke", "ragged", "ragged")
    return Task(
        id="t", title="t", aliases=(), family="t", difficulty=1, inputs=inputs, outputs=(Result("y", ("M",)),), reference=dict,
        baseline=dict, shapes=tuple(Shape(f, d, "test") for f, d in zip(families, shapes, strict=False)),  # type: ignore[arg-type]
    )  # fmt: skip


DIMS = {"M": 400, "N": 64, "K": 256}
EVERY = task(
    Input("a", ("M", "K"), role="a"), Input("b", ("K", "N"), draw="weight", role="b"), Input("g", ("N",), draw="gain"),
    Input("r", ("M",), draw="rstd", dtype="float32"), Input("p", ("M",), draw="positive", dtype="float32"),
    Input("t", ("M",), draw="index", dtype="int64"), Input("cs", ("M", "N"), draw="angles"),
    Input("f", ("N//2",), draw="frequencies", dtype="float32"), Input("pos", ("M",), draw="positions", dtype="int64"),
    Input("s", ("M",), draw="small", dtype="float32"), Input("eps", (), default=1e-6),
)  # fmt: skip


def test_draws_are_what_they_say() -> None:
    x = draw(EVERY, DIMS, seed=1)
    assert x["a"].std().item() == pytest.approx(1, abs=0.05)
    assert (x["a"] @ x["b"]).std().item() == pytest.approx(1, abs=0.1)
    assert x["g"].mean().item() == pytest.approx(1, abs=0.1)
    assert float(x["r"].min()) > 0
    assert float(x["p"].min()) >= 0.5
    assert torch.allclose(x["cs"][:, 0::2] ** 2 + x["cs"][:, 1::2] ** 2, torch.ones(400, 32, dtype=torch.float64))
    assert bool((x["f"].diff() < 0).all())
    assert bool((x["pos"].diff() == 1).all())
    assert float(x["s"].abs().max()) < 1
    assert x["eps"] == 1e-6
    assert {i.draw for i in EVERY.inputs} >= DRAWS.keys() - {"normal"}


def test_one_row_in_eight_has_an_index_outside() -> None:
    t = draw(EVERY, DIMS, seed=2)["t"]
    outside = t[(t < 0) | (t >= 64)]
    assert 0.06 < len(outside) / 400 < 0.2
    assert set(outside.tolist()) == {-100, 64, 69}


def test_dtypes_follow_the_one_under_test_and_values_are_rounded_once() -> None:
    x, wide = draw(EVERY, DIMS, seed=3, dtype="bfloat16"), draw(EVERY, DIMS, seed=3)
    assert (x["a"].dtype, x["g"].dtype, x["r"].dtype, x["t"].dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
        torch.int64,
    )
    assert wide["r"].dtype is torch.float64
    assert torch.equal(x["a"], wide["a"].bfloat16())
    assert torch.equal(upcast(x)["a"], x["a"].double())


def test_distributions_change_the_data_alone() -> None:
    normal, large, small, heavy = (
        draw(EVERY, DIMS, seed=4, distribution=d) for d in ("normal", "large", "small", "heavy")
    )
    assert torch.equal(large["a"], normal["a"] * 8)
    assert torch.equal(small["a"], normal["a"] * 1e-2)
    assert torch.equal(heavy["a"], normal["a"] ** 3)
    assert torch.equal(large["b"], normal["b"])
    with pytest.raises(InvalidTask, match="no distribution"):
        draw(EVERY, DIMS, seed=4, distribution="typical")
    with pytest.raises(InvalidTask, match="no draw"):
        draw(task(Input("a", ("M",), draw="zeros")), DIMS, seed=4)


def test_seeds_are_fresh_and_reproduce_everything() -> None:
    assert len({run_seed() for _ in range(50)}) == 50
    assert subseed(1, "a", 2) == subseed(1, "a", 2) != subseed(1, "a", 3)
    one, two, other = draw(EVERY, DIMS, seed=5), draw(EVERY, DIMS, seed=5), draw(EVERY, DIMS, seed=6)
    assert torch.equal(one["a"], two["a"])
    assert not torch.equal(one["a"], other["a"])
    assert not torch.equal(one["a"][:64, :64], one["b"][:64, :64])


def test_rules_come_from_the_shapes() -> None:
    rules = Rules.of(task(shapes=({"M": 8, "N": 128, "K": 128}, {"M": 7, "N": 192, "K": 192})))
    assert (rules.step, rules.same) == ({"M": 1, "N": 64, "K": 64}, {"K": "N"})
    assert rules.complete({"M": 5, "N": 100, "K": 3}) == {"M": 5, "N": 128, "K": 128}
    fixed = Rules.of(task(shapes=({"M": 8, "N": 128, "K": 16},)))
    assert fixed.complete({"M": 5, "N": 1, "K": 3}) == {"M": 8, "N": 128, "K": 16}


@pytest.mark.parametrize("task_id", cards())
def test_hidden_sizes_differ_from_run_to_run_and_keep_the_rules(task_id: str) -> None:
    found, rules = load(task_id), Rules.of(load(task_id))
    seen = set()
    for seed in range(12):
        for what, dims in hidden(found, random.Random(seed)):
            assert set(dims) == set(rules.step), what
            assert all(v >= 1 and v % rules.step[n] == 0 for n, v in dims.items())
            product = 1
            for v in dims.values():
                product *= v
            assert product <= MAX_ELEMENTS
            seen.add(tuple(sorted(dims.items())))
    assert len(seen) > 24
    assert all(max(d.values()) <= 2048 for _, d in small_shapes(found))
    for dims in distinct_dims(found):
        assert len(set(dims.values())) == len(dims) - len(rules.same)
