"""What a wrong result looks like: the class of a failure, for feedback that teaches without giving the answer away.

    describe   candidate and right answer of one case -> Pattern: the shape of the mistake, its size, how much is wrong

A pattern names the mistake ("factor 2", "even and odd columns swapped", "only the last partial tile"), never a value, a size or
a seed: an author who learns those could fit them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coda.numerics import ALIKE

from ..task import Dims

TILES = (256, 128, 64, 32, 16)
ONE_ROUNDING = 1 / 8
"""Of the tolerance at which two results are alike: 2^-p, as `coda.numerics.alike` is 2^(3-p)."""


@dataclass(frozen=True)
class Pattern:
    """One failing output."""

    pattern: str
    """A short stable name."""
    text: str
    """The same in a sentence's worth of words."""
    magnitude: str
    """Of the error, relative to the size of the output: "about 1e-2"."""
    fraction: float
    """Of the elements that are wrong, rounded to one digit."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"pattern": self.pattern, "text": self.text, "magnitude": self.magnitude, "fraction": self.fraction}


def describe(
    got: torch.Tensor,
    right: torch.Tensor,
    *,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, torch.Tensor] | None = None,
    dims: Dims | None = None,
    name: str = "",
    tolerance: float = ALIKE,
) -> Pattern:
    """The first pattern that fits. `tolerance` is larger for results in a short dtype."""
    if got.shape != right.shape:
        return Pattern("shape", f"it has {got.ndim} dimensions of the wrong size", "", 1.0)
    got, right = got.detach().double(), right.detach().double()
    bad = torch.isfinite(got) != torch.isfinite(right)
    if bool(bad.any()):
        kind = (
            "NaN" if bool(torch.isnan(got).any()) else "infinity" if bool(torch.isinf(got).any()) else "a finite number"
        )
        text = f"{kind} where the reference has none{_where(bad)}"
        return Pattern("non-finite", text, "", _fraction(bad))
    got, right = got.nan_to_num(0, 0, 0), right.nan_to_num(0, 0, 0)
    scale = float(right.abs().max()) if right.numel() else 0.0
    wrong = (got - right).abs() > tolerance * max(scale, 1e-300)
    size = float((got - right).abs().max()) if got.numel() else 0.0
    magnitude = _magnitude(size, scale)
    for pattern, text in _candidates(got, right, wrong, inputs or {}, outputs or {}, dims or {}, name, tolerance):
        return Pattern(pattern, text, magnitude, _fraction(wrong))
    return Pattern("values", f"wrong values{_where(wrong)}{_unnamed(got, right)}", magnitude, _fraction(wrong))


def _candidates(
    got: torch.Tensor,
    right: torch.Tensor,
    wrong: torch.Tensor,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor],
    dims: Dims,
    name: str,
    tolerance: float,
) -> Iterator[tuple[str, str]]:
    def same(x: torch.Tensor) -> bool:
        return x.shape == got.shape and _close(got, x, tolerance)

    if _close(got, right, tolerance * ONE_ROUNDING):
        yield (
            "precision",
            "right but for its precision: something is rounded, or cancels, where eager PyTorch is more exact",
        )
    if not bool(got.any()) and bool(right.any()):
        yield "zeros", "all zeros: one of its factors is zero, or the term that it consists of is missing"
    if same(-right):
        yield "sign", "the sign is flipped"
    yield from _known_tensors(same, inputs, outputs, name)
    yield from _factor(got, right, dims, tolerance)
    for pattern, text, change in REARRANGEMENTS:
        if any(same(x) and not _close(x, right, tolerance) for x in change(right)):
            yield pattern, text
    if right.numel() > 1 and _constant(got - right, right, tolerance):
        yield "constant offset", "off by the same amount everywhere: a term is missing or extra"
    region = _region(wrong)
    if region and region[0].startswith(("last partial", "every other")):
        yield region
    yield from _vector_factors(got, right, tolerance)
    if region:
        yield region


def _known_tensors(
    same: Callable[[torch.Tensor], bool], inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor], name: str
) -> Iterator[tuple[str, str]]:
    for other, value in outputs.items():
        if other != name and same(value.double()):
            yield "wrong output", f"it holds what output {other!r} should hold"
    for other, value in inputs.items():
        if isinstance(value, torch.Tensor) and same(value.double()):
            yield "pass-through", f"it is input {other!r} unchanged"


def _close(x: torch.Tensor, y: torch.Tensor, tolerance: float) -> bool:
    if not x.numel():
        return True
    scale = float(y.abs().max())
    return scale > 0 and float((x - y).abs().max()) <= tolerance * scale


def _factor(got: torch.Tensor, right: torch.Tensor, dims: Dims, tolerance: float) -> Iterator[tuple[str, str]]:
    square = float((right * right).sum())
    if right.numel() < 2 or square == 0:
        return
    factor = float((got * right).sum()) / square
    if factor == 0 or not math.isfinite(factor) or not _close(got, factor * right, tolerance):
        return
    for text, value in _known_factors(dims):
        if abs(factor / value - 1) <= max(tolerance, 1e-9) * 4:
            yield text
            return
    about = f"{factor:.2g}"
    size = "within 5 % of 1" if about == "1" else f"about {about}"
    yield f"factor {about}", f"every element is off by one constant factor, {size}"


def _known_factors(dims: Dims) -> Iterator[tuple[tuple[str, str], float]]:
    """(pattern, text) with its value: small numbers first, then the task's own sizes, by name."""
    simple = {"2": 2.0, "1/2": 0.5, "4": 4.0, "1/4": 0.25, "-2": -2.0, "-1/2": -0.5, "√2": math.sqrt(2), "1/√2": math.sqrt(0.5),
              "ln 2": math.log(2), "1/ln 2": 1 / math.log(2)}  # fmt: skip
    for spelled, value in simple.items():
        yield (f"factor {spelled}", f"every element is {spelled} times what it should be"), value
    for name, size in dims.items():
        for count, spelled in ((size, name), (2 * size, f"2{name}"), (size / 2, f"{name}/2")):
            if count > 1:
                yield (f"missing 1/{spelled}", f"a factor 1/{spelled} is missing: a sum where a mean is wanted"), count
                yield (
                    (f"extra 1/{spelled}", f"there is one factor 1/{spelled} too many: a mean where a sum is wanted"),
                    1 / count,
                )
                yield (f"missing 1/√{spelled}", f"a factor 1/√{spelled} is missing"), math.sqrt(count)


Rearrange = Callable[[torch.Tensor], list[torch.Tensor]]


def _halves(x: torch.Tensor) -> list[torch.Tensor]:
    c = x.shape[-1]
    return [torch.cat([x[..., c // 2 :], x[..., : c // 2]], -1)] if c % 2 == 0 and c > 2 else []


def _even_odd(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)] if x.shape[-1] % 2 == 0 else []


def _interleaving(x: torch.Tensor) -> list[torch.Tensor]:
    """Halves where pairs are wanted, and the other way round."""
    if x.ndim < 2 or x.shape[-1] % 2 or x.shape[-1] <= 2:
        return []
    return [torch.cat([x[..., 0::2], x[..., 1::2]], -1), torch.stack(x.chunk(2, -1), -1).flatten(-2)]


def _transposed(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.mT] if x.ndim == 2 and x.shape[0] == x.shape[1] else []


def _rolled(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.roll(by, axis) for axis in range(x.ndim) for by in (1, -1) if x.shape[axis] > 2]


def _negated_half(x: torch.Tensor) -> list[torch.Tensor]:
    """One of each pair has the wrong sign."""
    if x.shape[-1] % 2:
        return []
    sign = torch.ones_like(x)
    sign[..., 0::2] = -1
    return [x * sign, x * -sign]


REARRANGEMENTS: tuple[tuple[str, str, Rearrange], ...] = (
    ("even and odd swapped", "even and odd columns are swapped", _even_odd),
    ("transposed halves", "the left and right half of the columns are swapped", _halves),
    ("interleaving", "halves where interleaved pairs are wanted, or the other way round", _interleaving),
    ("transposed", "it is transposed", _transposed),
    ("sign of one of each pair", "every other column has the wrong sign", _negated_half),
    ("shifted", "it is shifted by one row or column", _rolled),
)


def _constant(x: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    return float(x.max() - x.min()) <= tolerance * max(float(right.abs().max()), float(x.abs().max()))


def _vector_factors(got: torch.Tensor, right: torch.Tensor, tolerance: float) -> Iterator[tuple[str, str]]:
    """One factor per row, or one per column: a vector that is missing, extra, or of the other axis."""
    if got.ndim != 2 or min(got.shape) < 3:
        return
    for axis, what in ((1, "row"), (0, "column")):
        square = (right * right).sum(axis, keepdim=True)
        factor = (got * right).sum(axis, keepdim=True) / square.clamp_min(1e-300)
        if _close(got, factor * right, tolerance):
            yield (
                f"factor per {what}",
                f"each {what} is off by a factor of its own: a vector along that axis is missing or extra",
            )
            return


def _region(wrong: torch.Tensor) -> tuple[str, str] | None:
    """Where the wrong elements are, if not everywhere."""
    if not bool(wrong.any()) or bool(wrong.all()):
        return None
    axes = [("rows", 0)] if wrong.ndim == 1 else [("rows", 0), ("columns", wrong.ndim - 1)]
    for what, axis in axes:
        others = tuple(a for a in range(wrong.ndim) if a != axis)
        hit = wrong.any(others) if others else wrong
        if not bool(hit.all()):
            return _stretch(hit, what)
    return None


def _stretch(hit: torch.Tensor, what: str) -> tuple[str, str] | None:
    length, where = len(hit), hit.nonzero()[:, 0]
    first, last, count = int(where[0]), int(where[-1]), len(where)
    if (
        2 * count <= length
        and bool((where % 2 == where[0] % 2).all())
        and count > 2
        and last - first == 2 * (count - 1)
    ):
        return f"every other of the {what}", f"only {'odd' if first % 2 else 'even'} {what} are wrong"
    for tile in TILES:
        if length > tile and length % tile and first >= length - length % tile:
            return f"last partial tile of {what}", f"only the last, partial tile of {what} is wrong"
    if first == 0 and last == 0:
        return f"first of the {what}", f"only the first of the {what} is wrong"
    if last == length - 1 and last - first + 1 == count:
        return f"trailing {what}", f"only the last {what} are wrong, from some {what[:-1]} on"
    if last - first + 1 == count:
        return f"some {what}", f"only one stretch of {what} is wrong"
    return f"some {what}", f"only some {what} are wrong, the others are right"


def _unnamed(got: torch.Tensor, right: torch.Tensor) -> str:
    """Of a mistake without a name: how large it is in words, and whether a position matters."""
    error = got - right
    square, size = float((error * error).sum()), float((right * right).sum())
    if size == 0:
        return ""
    off = math.sqrt(square / size)
    return f", off by {next(word for limit, word in SIZES if off < limit)}{_positions(error, right)}"


SIZES = (
    (1e-3, "far less than a per cent: a constant, a rounding or a small term"),
    (1e-2, "less than a per cent: a constant or a small term"),
    (7e-2, "a few per cent: a small term or a factor near one"),
    (0.5, "some ten per cent: a term is missing, extra or weighted wrongly"),
    (2.0, "about as much as the values themselves: the main term is wrong"),
    (math.inf, "many times the values themselves: a missing normalisation, or the wrong operand"),
)
"""RMS of the error over that of the values, below each limit: words, never numbers that could be fitted."""
PARTS = 4
"""Stretches of an axis whose errors are compared."""


def _positions(error: torch.Tensor, right: torch.Tensor) -> str:
    """Whether the relative error is another one in another stretch of rows or columns."""
    axes = [("row", 0), ("column", error.ndim - 1)] if error.ndim > 1 else [("row", 0)]
    long = [(what, axis) for what, axis in axes if error.shape[axis] >= 4 * PARTS]
    uneven = [what for what, axis in long if _uneven(error, right, axis)]
    if uneven:
        return f"; the error depends on the position of the {' and of the '.join(uneven)}"
    return f"; it is alike along {' and '.join(f'{what}s' for what, _ in long)}" if long else ""


def _uneven(error: torch.Tensor, right: torch.Tensor, axis: int) -> bool:
    ratios = [
        float(e.norm()) / max(float(r.norm()), 1e-300)
        for e, r in zip(error.tensor_split(PARTS, axis), right.tensor_split(PARTS, axis), strict=True)
    ]
    return max(ratios) > 3 * min(ratios)


def _where(wrong: torch.Tensor) -> str:
    region = _region(wrong)
    return f" ({region[1]})" if region else ""


def _fraction(wrong: torch.Tensor) -> float:
    return float(f"{float(wrong.double().mean()):.1g}") if wrong.numel() else 0.0


def _magnitude(error: float, scale: float) -> str:
    if scale == 0:
        return "where the reference is zero"
    ratio = error / scale
    return f"about 1e{math.floor(math.log10(ratio) + 0.5):d}" if ratio > 0 else "none"
