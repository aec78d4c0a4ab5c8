"""Rounding at random: what scatters is what may be wrong, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from coda.numerics import exact, response, within
from coda.stochastic import FP32, FP64, LAST_BIT, rounding, spread

pytestmark = pytest.mark.interp


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_operation_that_rounds_is_off_by_one_rounding_and_no_other() -> None:
    x = drawn(40, 8).abs() + 2
    with rounding(FP32, 1):
        rounded = x + 1.0
        same = [x.mT, x[:, 2:], torch.where(x > 3, x, 0), torch.maximum(x, x.mT.mT), x.abs(), torch.cat([x, x])]
        whole = (x > 3).sum()
    off = ((rounded - (x + 1)) / (x + 1)).abs()
    assert float(off.max()) == pytest.approx(FP32, rel=1e-6)
    assert float(off.min()) == pytest.approx(FP32, rel=1e-6)
    assert all(torch.isin(y, torch.cat([x.flatten(), torch.zeros(1, dtype=x.dtype)])).all() for y in same)
    assert int(whole) == int((x > 3).sum())
    assert torch.equal(x + 1.0, x + 1.0)  # outside it nothing happens


def test_the_spread_of_a_product_is_that_of_its_roundings() -> None:
    a, b = drawn(64, 100, seed=1), drawn(100, 64, seed=2)
    right = {"y": a @ b}
    found = spread(lambda x: {"y": x["a"] @ x["b"]}, {"a": a, "b": b}, right, seed=3)["y"]
    expected = FP32 * (2 * (a.square() @ b.square()) + right["y"].square()).sqrt()  # both factors, and the result
    assert 0.9 < float((found.square().mean() / expected.square().mean()).sqrt()) < 1.1


def loss(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    logits = inputs["x"]
    return {"loss": torch.logsumexp(logits, 1) - logits[:, 0]}


def test_a_small_difference_of_large_values_is_as_uncertain_as_they_are() -> None:
    x = torch.full((1, 2), 40.0, dtype=torch.float64)
    x[0, 1] = 20.0  # the loss is about 2e-9, of numbers of 40
    right = loss({"x": x})
    found = spread(loss, {"x": x}, right, seed=1)["loss"]
    assert float(right["loss"]) < 1e-8
    assert 0.1 * 40 * FP32 < float(found) < 10 * 40 * FP32


def test_what_its_inputs_do_not_move_still_scatters() -> None:
    def unit(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        x = inputs["x"]
        return {"y": x / x.square().sum(1, keepdim=True).sqrt()}

    x = torch.full((1, 1), 3.0, dtype=torch.float64)
    right = unit({"x": x})
    assert float(response(unit, {"x": x}, right, seed=1)["y"]) < 1e-12
    assert float(spread(unit, {"x": x}, right, seed=1)["y"]) > 0.3 * FP32


def test_at_a_jump_the_spread_is_the_jump_and_a_zero_is_not_quite_one() -> None:
    def step(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"y": torch.where(inputs["x"] > 0, 1.0, 0.0)}

    x = torch.tensor([[0.0, 1.0, -1.0]], dtype=torch.float64)
    found = spread(step, {"x": x}, step({"x": x}), seed=1, unit=FP64, draws=32)["y"]
    assert float(found[0, 0]) > 0.3
    assert float(found[0, 1:].abs().max()) == 0


def test_the_same_seed_gives_the_same_spread_and_another_one_about_the_same() -> None:
    x = drawn(30, 50)
    one, two, three = (spread(loss, {"x": x}, loss({"x": x}), seed=s)["loss"] for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert 0.7 < float(one.norm() / three.norm()) < 1.4


def test_what_is_stored_coarsely_or_is_no_number_adds_nothing() -> None:
    def coarse(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"q": inputs["x"].half(), "n": inputs["x"] / 0.0}

    x = drawn(4, 4).float()
    found = spread(coarse, {"x": x}, {"q": x.double(), "n": x.double()}, seed=1, unit=LAST_BIT)
    assert float(found["q"].abs().max()) == 0
    assert float(found["n"].abs().max()) == 0


# in the rules -----------------------------------------------------------------------------------------------------------


def normed_loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The loss behind a norm: what a row of one element is divided by is itself."""
    logits = (x / x.square().mean(1, keepdim=True).sqrt()) @ w
    return torch.logsumexp(logits, 1) - logits[:, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_honest_loss_of_one_token_passes_for_every_seed_and_a_wrong_one_fails(dtype: str) -> None:
    """Without the spread one such loss in twenty was refused: of so few inputs the changes sometimes cancel."""
    kind, refused, missed = getattr(torch, dtype), 0, 0
    for seed in range(200):
        x, w = (drawn(*shape, seed=2 * seed + at).to(kind) for at, shape in enumerate([(1, 1), (1, 2)]))
        wide = {"x": x.double(), "w": w.double()}
        of = lambda i: {"y": normed_loss(i["x"], i["w"])}  # noqa: E731
        right = of(wide)
        noise, own = response(of, wide, right, seed=seed)["y"], spread(of, wide, right, seed=seed)["y"]
        trusted = normed_loss(x.float(), w.float()).double().float()
        halves = (x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True))) @ w.float()
        honest = (halves.exp().sum(1).log() - halves[:, 0]).float()
        judged = {"working": dtype, "noise": noise, "spread": own, "length": 2}
        refused += not within(honest, trusted, right["y"], **judged).ok
        missed += within((right["y"] * 1.5 + 0.5).float(), trusted, right["y"], **judged).ok
    assert (refused, missed) == (0, 0)


def test_an_ordinary_output_is_allowed_no_more_for_its_spread() -> None:
    a, b = drawn(64, 128, seed=1).float(), drawn(128, 80, seed=2).float()
    of = lambda i: {"y": i["a"] @ i["b"]}  # noqa: E731
    wide = {"a": a.double(), "b": b.double()}
    right = of(wide)
    noise, own = response(of, wide, right, seed=1)["y"], spread(of, wide, right, seed=1)["y"]
    without = within(a @ b, a @ b, right["y"], working="float32", noise=noise, length=128)
    found = within(a @ b, a @ b, right["y"], working="float32", noise=noise, spread=own, usual=own, length=128)
    assert found == without


def test_the_spread_of_a_trusted_kernel_counts_only_so_far() -> None:
    """One that is off by far more than fp32 is, is a poor one; one per cent still fails."""
    right = drawn(64, 80)
    trusted, poor = right.float(), torch.full_like(right, 0.5)
    wrong = (right * 1.01).float()
    assert not within(wrong, trusted, right, working="float32", usual=poor).ok
    assert within((right * (1 + 2.0**-11)).float(), trusted, right, working="float32", usual=poor).ok
    assert not within((right * (1 + 2.0**-11)).float(), trusted, right, working="float32").ok


def test_fp64_itself_may_be_too_coarse_for_a_loss() -> None:
    """Two honest formulas of one loss near zero differ by what fp64 rounds; another formula differs by more."""
    x = torch.full((1, 2), 30.0, dtype=torch.float64)
    x[0, 1] = 1.0
    right = loss({"x": x})["loss"]
    honest = torch.log1p(torch.exp(x[:, 1] - x[:, 0]))
    own = spread(loss, {"x": x}, {"loss": right}, seed=1, unit=FP64)["loss"]
    assert not exact(honest, right).ok
    assert exact(honest, right, spread=own).ok
    assert not exact(honest + 1e-9, right, spread=own).ok
    assert math.isfinite(float(own))
