"""The functions that this backend writes as PTX: their text is interpreted here in fp32, step by step, and compared with fp64.

The hardware's 2^x and 1/x are approximations; they are tried rounded, and off by all that they may be, both ways.
"""

from __future__ import annotations

import itertools
import re

import pytest
import torch

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import configs
from coda.backends.finishing import approximations

pytestmark = [
    pytest.mark.interp,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # CUTLASS's own
    pytest.mark.skipif(
        bool(configs.versions_wrong()), reason=configs.versions_wrong() or "the pinned packages are here"
    ),
]

TINY = 2.0**-126


def moved(x: torch.Tensor, places: int) -> torch.Tensor:
    """`places` units in the last place further; small results are zero, as `.ftz` makes them."""
    y = torch.where(x.isfinite(), (x.view(torch.int32) + places).view(torch.float32), x)
    return torch.where(x.abs() < TINY, 0.0, y)


def number(text: str, registers: dict[str, torch.Tensor]) -> torch.Tensor:
    if text.startswith("0f"):
        bits = int(text[2:], 16)
        return torch.tensor(bits - 2**32 if bits >= 2**31 else bits, dtype=torch.int32).view(torch.float32)
    return registers[text]


def interpret(text: str, x: torch.Tensor, exp2: int = 0, rcp: int = 0) -> torch.Tensor:
    """What a block of PTX makes of fp32 numbers. An instruction that is not known here is a `KeyError`."""
    meaning = {
        "abs.f32": torch.abs,
        "mov.f32": torch.clone,
        "mul.rn.f32": torch.mul,
        "add.rn.f32": torch.add,
        "sub.rn.f32": torch.sub,
        "fma.rn.f32": lambda a, b, c: (a.double() * b.double() + c.double()).float(),
        "max.NaN.f32": torch.maximum,
        "ex2.approx.ftz.f32": lambda a: moved(a.double().exp2().float(), exp2),
        "rcp.approx.ftz.f32": lambda a: moved(a.double().reciprocal().float(), rcp),
        "copysign.f32": lambda sign, size: size.copysign(sign),
        "setp.ge.f32": torch.ge,
    }
    registers = {"$1": x}
    for line in re.sub(r"\.reg[^;]*;", "", text.strip("{} \n")).split(";"):
        words = line.replace(",", " ").split()
        if not words:
            continue
        guard = registers[words.pop(0)[1:]] if words[0].startswith("@") else None
        operation, to, *args = words
        value = meaning[operation](*(number(a, registers) for a in args))
        registers[to] = value if guard is None else torch.where(guard, value, registers[to])
    return registers["$0"]


def bits(first: float, last: float, step: int) -> torch.Tensor:
    """Every `step`-th fp32 number between two positive ones."""
    low, high = (torch.tensor(x, dtype=torch.float32).view(torch.int32).item() for x in (first, last))
    return torch.arange(int(low), int(high) + 1, step, dtype=torch.int32).view(torch.float32)


def text(name: str) -> str:
    from coda.backends.cutedsl import maths

    return str(getattr(maths, name))


@pytest.mark.parametrize(
    ("name", "exact", "last", "rounded", "most"),
    [
        ("ERF", torch.erf, 1e38, 3.9e-7, 5.1e-7),
        ("TANH", torch.tanh, 1e38, 2.3e-7, 6.0e-7),
        ("EXP_NONPOSITIVE", torch.exp, 87.3, 3.7e-7, 6.1e-7),
    ],
)
def test_relative_errors_are_those_that_are_stated(name, exact, last, rounded, most):
    x = torch.cat([bits(1e-30, 2.0**-8, 40009), bits(2.0**-8, 16.0, 211), bits(16.0, last, 10007)])
    x = -x if name == "EXP_NONPOSITIVE" else torch.cat([x, -x])
    wanted = exact(x.double())
    for exp2, rcp in itertools.product((-2, 0, 2), (-1, 0, 1) if "rcp" in text(name) else (0,)):
        error = ((interpret(text(name), x, exp2, rcp).double() - wanted) / wanted).abs()
        worst = int(error.argmax())
        assert float(error.max()) <= (rounded if exp2 == rcp == 0 else most), (exp2, rcp, float(x[worst]))


@pytest.mark.parametrize(("name", "exact"), [("ERF", torch.erf), ("TANH", torch.tanh)])
def test_odd_functions_end_at_one_and_keep_zeros_and_nan(name, exact):
    x = torch.tensor([0.0, -0.0, 20.0, -20.0, 3e38, -3e38, torch.inf, -torch.inf, torch.nan, 1e-42, -1e-42])
    got = interpret(text(name), x)
    torch.testing.assert_close(got, exact(x), rtol=1e-6, atol=2e-45, equal_nan=True)
    assert torch.equal(got.signbit()[:8], x.signbit()[:8])
    assert torch.equal(got[2:8].abs(), torch.ones(6))


def test_the_tail_of_erf_is_exactly_one():
    """0.5·(1 + erf) is then exactly 0 far to the left, and GELU with it."""
    x = bits(4.0, 1e30, 40009)
    for exp2 in (-2, 0, 2):
        assert bool((interpret(text("ERF"), x, exp2) == 1).all())


def test_exponentials_of_what_is_never_positive():
    x = torch.tensor([0.0, -0.0, -87.0, -88.0, -89.0, -1e30, -torch.inf, torch.nan])
    got = interpret(text("EXP_NONPOSITIVE"), x)
    assert got[:2].tolist() == [1.0, 1.0]
    assert got[3:7].tolist() == [0.0] * 4
    assert bool(got[7].isnan())


def test_coefficients_are_fp32_numbers():
    """Rounded once, here and not by each compiler."""
    for c in (*approximations.ERF_FAR, *approximations.ERF_NEAR, *approximations.TANH_NEAR, approximations.LN2):
        assert float(torch.tensor(c, dtype=torch.float32)) == c
