"""Names for mistakes: each is recognised, and none gives a value, a size or a seed away."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

from agent.verify.patterns import describe
from coda import numerics

pytestmark = pytest.mark.interp

M, N = 70, 96
RIGHT = torch.randn(M, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1


def tail(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    x = x.clone()
    if rows:
        x[-rows:] = 7
    if columns:
        x[:, -columns:] = 7
    return x


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (lambda x: 2 * x, "factor 2"),
        (lambda x: x / 2, "factor 1/2"),
        (lambda x: x * math.log(2), "factor ln 2"),
        (lambda x: x * N, "missing 1/N"),
        (lambda x: x / M, "extra 1/M"),
        (lambda x: x * math.sqrt(N), "missing 1/√N"),
        (lambda x: x * 1.37, "factor 1.4"),
        (lambda x: -x, "sign"),
        (lambda x: 0 * x, "zeros"),
        (lambda x: x + 3, "constant offset"),
        (lambda x: torch.cat([x[:, N // 2 :], x[:, : N // 2]], 1), "transposed halves"),
        (lambda x: x.reshape(M, -1, 2).flip(-1).flatten(1), "even and odd swapped"),
        (lambda x: torch.cat([x[:, 0::2], x[:, 1::2]], 1), "interleaving"),
        (lambda x: torch.stack(x.chunk(2, 1), -1).flatten(1), "interleaving"),
        (lambda x: x.roll(1, 0), "shifted"),
        (lambda x: x * torch.arange(1, M + 1)[:, None], "factor per row"),
        (lambda x: x * torch.arange(1, N + 1), "factor per column"),
        (lambda x: tail(x, M % 64, 0), "last partial tile of rows"),
        (lambda x: tail(x, 0, N % 64), "last partial tile of columns"),
        (lambda x: tail(x, 20, 0), "trailing rows"),
        (lambda x: torch.where(torch.arange(N) % 2 == 0, x + 1, x), "every other of the columns"),
        (lambda x: torch.where(torch.arange(M)[:, None] % 7 == 3, x + 1, x), "some rows"),
        (lambda x: torch.where(torch.arange(M)[:, None] == 0, x + 1, x), "first of the rows"),
        (lambda x: x + torch.randn(M, N, dtype=torch.float64), "values"),
        (lambda x: torch.where(x > 1, math.nan, x), "non-finite"),
    ],
)
def test_a_mistake_has_a_name(change: Callable[[torch.Tensor], torch.Tensor], pattern: str) -> None:
    found = describe(change(RIGHT), RIGHT, dims={"M": M, "N": N})
    assert found.pattern == pattern
    assert not re.search(rf"\b({M}|{N}|{M % 64}|{N % 64})\b", found.text)
    assert 0 < found.fraction <= 1


def test_pairs_of_signs_and_transposes() -> None:
    sign = torch.ones(N, dtype=torch.float64)
    sign[1::2] = -1
    assert describe(RIGHT * sign, RIGHT).pattern == "sign of one of each pair"
    square = RIGHT[:64, :64]
    assert describe(square.T.contiguous(), square).pattern == "transposed"


def test_other_tensors_are_recognised() -> None:
    other = torch.randn(M, N, dtype=torch.float64)
    assert describe(other, RIGHT, inputs={"residual": other}).text == "it is input 'residual' unchanged"
    assert describe(other, RIGHT, outputs={"y": RIGHT, "z": other}, name="y").pattern == "wrong output"


def test_magnitude_is_an_order() -> None:
    noise = torch.randn(M, N, dtype=torch.float64)
    noise *= float(RIGHT.abs().max()) * 1e-3 / float(noise.abs().max())
    assert describe(RIGHT + noise, RIGHT).magnitude == "about 1e-3"
    assert describe(RIGHT, RIGHT * 0).magnitude == "where the reference is zero"
    assert describe(RIGHT[0], RIGHT).pattern == "shape"


def test_what_is_right_but_for_its_precision_is_no_factor() -> None:
    rounded = (RIGHT * 1.0001).half().double()
    assert describe(rounded, RIGHT, tolerance=numerics.alike("float16")).pattern == "precision"
    off = describe(RIGHT * 1.01, RIGHT, tolerance=numerics.alike("bfloat16"))
    assert off.pattern.startswith("factor")
    assert off.text == "every element is off by one constant factor, within 5 % of 1"


def test_vectors_and_empty_tensors_do_not_fail() -> None:
    assert describe(RIGHT[:, 0] * 2, RIGHT[:, 0]).pattern == "factor 2"
    assert describe(RIGHT[:0], RIGHT[:0]).fraction == 0
    assert describe(torch.ones(1), torch.zeros(1)).pattern == "values"


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (1e-4, "far less than a per cent"),
        (5e-3, "less than a per cent"),
        (0.03, "a few per cent"),
        (0.2, "some ten per cent"),
        (1.0, "about as much as the values themselves"),
        (30.0, "many times the values"),
    ],
)
def test_a_mistake_without_a_name_has_a_size_in_words(off: float, words: str) -> None:
    noise = torch.randn(M, N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = describe(RIGHT + off * noise, RIGHT)
    assert found.pattern == "values"
    assert f"off by {words}" in found.text
    assert found.text.endswith("it is alike along rows and columns")
    assert not re.search(r"\d", found.text)


@pytest.mark.parametrize(("axis", "what"), [(0, "row"), (1, "column")])
def test_a_mistake_without_a_name_says_whether_a_position_matters(axis: int, what: str) -> None:
    noise = torch.randn(M, N, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    along = torch.linspace(0.01, 1, RIGHT.shape[axis], dtype=torch.float64)
    grows = along[:, None] if axis == 0 else along
    text = describe(RIGHT + noise * grows, RIGHT).text
    assert text.endswith(f"; the error depends on the position of the {what}")
