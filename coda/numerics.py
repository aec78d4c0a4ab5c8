"""How wrong a kernel may be: the only tolerance rule of the project.

    exact     fp64 against fp64: the same formula up to the order of operations (gate `algebra`, tests of rewrites)
    within    a working dtype against fp64, allowed a multiple of what a trusted kernel gets wrong (gate `numerics`, bench, tuner)
    roughly   the same for a package's kernel that is only raced: it may round where that package rounds
    response  how far one rounding of every input moves each output: the conditioning that `within` allows for
    alike     two results are the same as far as naming a mistake goes, in a working dtype

The constants below are every other limit that the judge compares numbers with; none is written down elsewhere. Everything is
compared in chunks of rows, so that checking needs little memory.

`within` asks, per output and per block of rows of at least 64 elements, with errors against an fp64 reference of the *same
rounded inputs*, for both of these, never for "one or the other":

    max error ≤ 2   · trusted max error + 1 ulp of the block's largest value + max(L  · max response, 4 · max spread)
    RMS error ≤ 1.5 · trusted RMS error + ¼ ulp of the block's RMS           + max(√L · RMS response, 3 · RMS spread)

    trusted   What the trusted kernel gets wrong in the block, and at least its usual error: that in an average block of the same
              output, relative to the block's size. It counts only up to a cap per working dtype (of a coarser stored one, as
              fp8), so a poor baseline cannot loosen the rule: a result wrong by 1 % always fails in bf16.
    L         The longest contraction or reduction.
    response  Of the block, and the block's share of the whole output's. For a plain GEMM it is about 2^-24·√Σ(ab)², so the last
              term is what summing K products in fp32 in any order costs: at most K·2^-24·Σ|a||b|, as a random walk in the RMS.
              Behind an epilogue the same arrives scaled by its derivative, which is what measuring the response gives.
    spread    What one rounding of every intermediate value does as well, measured by rounding them at random (`stochastic.py`).
              It is larger only where the response is blind: in a quotient that does not move with its inputs, a loss of few
              elements whose changes happen to cancel. The trusted kernel's formula has a spread in fp32 too (a probability near
              one that is found from its logarithm is as uncertain as that is), which counts up to the larger of 2^-10 of the
              block's size and 2^-16 of the output's. So an ordinary output is allowed no more for either.

Outputs to which that does not apply as it stands:

    - One of less than a block is no sample: the cap is wider by the scatter of so few errors, and relative to what cancels in
      them, 2^24 times the response or spread; the trusted kernel's own error counts whole.
    - One that is 0 everywhere and moves with no input has no scale at all: `CANCELLED`. A block in which more is left passes too if
      it is near what the trusted kernel leaves, as with x - cast(x): the distance from that is then the error, in the RMS at most a
      quarter of it and one changed sign, since the last bits of a sum decide which way a value is rounded.
    - Positions of NaN and of each infinity must be those of the reference rounded to the stored dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

BLOCK = 64
"""Elements that a block has at least."""
CHUNK = 1 << 22
"""Elements that are compared at a time."""
EXACT = 1e-9
"""Of `exact`: relative to the largest value of the block."""
EXACT_OUTPUT = 1e-13
"""Of `exact`: relative to the largest value of the whole output, for blocks that cancel to nothing."""
UNMOVED = 1e-12
"""Of `exact`, for an output that an input is suspected not to reach: a changed input must move it by more."""
DIFFERENCE = 2e-6
"""What a directional derivative by central differences may be off by, relative to |output|·|direction|: truncation is about
the square of the step, 1e-5."""
LINEAR = 1e-9
"""What f(u + 3v) may be off by from f(u) + 3·f(v), relative to its largest value."""
CANCELLED = 2.0**-20
"""What a kernel may leave of an output that is 0 on all its elements and does not move with the inputs, such as the log of a
probability among one: 16 roundings in fp32 of numbers of the size of 1. Nothing else gives such an output a scale."""
LEFT_MAX, LEFT_RMS = 2.0, 0.25
"""How far what a rounding leaves may be from what it leaves the trusted kernel, relative to that; the RMS beside one of the largest
errors."""
FAR = 0.05
"""A baseline whose values are further than this from the reference's, relative to their size, computes something else."""
ALIKE = 1e-6
"""Two fp64 results are the same, as far as naming a mistake goes."""
MAX_FACTOR, RMS_FACTOR = 2.0, 1.5
MAX_ULPS, RMS_ULPS = 1.0, 0.25
CAP_MAX, CAP_RMS = 4.0, 1.0
"""How much of the trusted kernel's error counts, in units of 2^-p of the working dtype (of a coarser stored one) and of the
block's size."""
CAP_BITS = 20
"""Of those units: no finer, since a trusted fp32 kernel is off by many roundings wherever it sums or takes exponentials, and its
own error in one block is one draw of many."""
SPREAD_MAX, SPREAD_RMS = 4.0, 3.0
"""How many times what random roundings do one kernel's own may do: a few deviations of a sum of few errors."""
SPREAD_EXACT = 64.0
"""Of `exact`, where fp64 itself is too coarse for the reference: times the spread of one rounding, sums of many among it."""
POOR, POOR_OUTPUT = 2.0**-10, 2.0**-16
"""Up to where a trusted kernel's own spread counts, relative to the block's size and to that of the whole output."""
PROBE = 1e-6
"""Of `exact` on inputs of any magnitude: further than fp32 could show. A branch that is wrong is wrong by more."""
PEER_FACTOR = 4.0
"""Of `roughly`: times the trusted kernel's error and one rounding more. Refusing a peer for a rounding would flatter us; another
mathematics is off by many times this."""

PRECISION = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
"""Bits of the significand, the hidden one included."""

Why = Literal["", "shape", "dtype", "nonfinite", "values"]


@dataclass(frozen=True)
class Comparison:
    """What one output's comparison found. Errors are of the worst block; allowances are that block's."""

    ok: bool
    why: Why
    """The first thing that is wrong; empty when nothing is."""
    blocks: int
    bad_blocks: int
    bad_rows: tuple[int, int] | None
    """First row of the first bad block, one past the last row of the last."""
    max_error: float
    max_allowed: float
    rms_error: float
    rms_allowed: float
    trusted_max: float | None
    """The trusted kernel's errors in the same block."""
    trusted_rms: float | None
    scale: float
    """RMS of the reference's finite values."""
    detail: str = ""

    @property
    def ratio(self) -> float:
        """The worst block's error over its allowance: at most 1 where it passes."""
        if self.why not in ("", "values"):
            return math.inf
        return max(_ratio(self.max_error, self.max_allowed), _ratio(self.rms_error, self.rms_allowed))

    @property
    def excess(self) -> str:
        """ "RMS error 7e-06 where 2e-06 is allowed": what is too large in the worst block, the largest error first."""
        is_max = self.max_error > self.max_allowed
        how, error, allowed = (
            ("largest", self.max_error, self.max_allowed) if is_max else ("RMS", self.rms_error, self.rms_allowed)
        )
        return f"{how} error {error:.3g} where {allowed:.3g} is allowed"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; infinities become None."""
        numbers = (
            "max_error",
            "max_allowed",
            "rms_error",
            "rms_allowed",
            "trusted_max",
            "trusted_rms",
            "scale",
            "ratio",
        )
        plain = {name: _finite(getattr(self, name)) for name in numbers}
        return {
            "ok": self.ok,
            "why": self.why,
            "blocks": self.blocks,
            "bad_blocks": self.bad_blocks,
            **plain,
            "detail": self.detail,
        }


def _finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def _ratio(error: float, allowed: float) -> float:
    if error <= allowed:
        return error / allowed if allowed > 0 else 0.0
    return error / allowed if allowed > 0 else math.inf


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def alike(working: str) -> float:
    """The relative difference at which two results in a working dtype still count as one value, to name a mistake."""
    return 2.0 ** (3 - PRECISION[working])


def exact(
    candidate: torch.Tensor,
    reference: torch.Tensor,
    *,
    relative: float = EXACT,
    spread: torch.Tensor | None = None,
) -> Comparison:
    """Whether two fp64 results are the same up to the order of operations.

    `spread` is that of the reference in fp64, where it matters: a difference of values that are almost equal is mostly rounding.
    """
    if candidate.shape != reference.shape:
        return _refused("shape", f"got {tuple(candidate.shape)}, expected {tuple(reference.shape)}")
    whole = _scale(reference)
    largest = max((float(_abs_max(r)) for (r,) in _chunks(reference)), default=0.0)
    worst = _Worst()
    spread = _nothing(reference) if spread is None else spread
    for first, rows, (c, r, s) in _blocks(candidate, reference, spread):
        worst.nonfinite(first, rows, _masks_differ(c, r))
        c, r = _plain(c), _plain(r)
        error = (c - r).abs().amax(1)
        allowed = relative * r.abs().amax(1) + EXACT_OUTPUT * largest + SPREAD_EXACT * s.amax(1)
        worst.add(first, rows, error, allowed, error * 0, allowed, None, None)
    return worst.result(whole)


def within(
    candidate: torch.Tensor,
    trusted: torch.Tensor,
    reference: torch.Tensor,
    *,
    working: str,
    noise: torch.Tensor | None = None,
    spread: torch.Tensor | None = None,
    usual: torch.Tensor | None = None,
    length: int = 1,
) -> Comparison:
    """Whether `candidate` is as right as `trusted` is, given fp64 `reference` values, the `response` (noise) of the output, the
    `spread` of the reference and, as `usual`, that of the trusted kernel's formula in fp32.

    `working` is the dtype under test ("bfloat16"), which may differ from the output's own; `length` is the longest
    contraction or reduction. Raises `ValueError` where trusted and reference differ in shape: that is no candidate's fault.
    """
    if trusted.shape != reference.shape:
        raise ValueError(f"trusted {tuple(trusted.shape)} and reference {tuple(reference.shape)} differ in shape")
    if candidate.shape != reference.shape:
        return _refused("shape", f"got {tuple(candidate.shape)}, expected {tuple(reference.shape)}")
    if candidate.dtype is not trusted.dtype:
        return _refused("dtype", f"got {dtype_name(candidate.dtype)}, expected {dtype_name(trusted.dtype)}")
    stored = dtype_name(candidate.dtype)
    noise = _nothing(reference) if noise is None else noise
    spread = _nothing(reference) if spread is None else spread
    usual = _nothing(reference) if usual is None else usual
    whole, noisy = _scale(reference), _scale(noise)
    unit = 2.0 ** -min(PRECISION[working], PRECISION[stored], CAP_BITS)
    few = CAP_RMS * _scatter(reference.numel())
    normal = torch.finfo(candidate.dtype).smallest_normal  # below it a dtype's precision is absolute
    usual_max, usual_rms = _usual(trusted, reference, unit)
    left = CANCELLED if whole == 0 and noisy == 0 else 0.0
    worst = _Worst()
    for first, rows, (c, t, r, z, s, u) in _blocks(candidate, trusted, reference, noise, spread, usual):
        worst.nonfinite(first, rows, _masks_differ(*_as_stored(c, r, stored)))
        finite = torch.isfinite(r) & torch.isfinite(c)
        r = torch.where(finite, r, 0)
        size_max, size_rms = r.abs().amax(1), _rms(r)
        error = torch.where(finite, c - r, 0)
        other = _trusted_error(t, r, finite)
        z, s, u = _plain(z), _plain(s), _plain(u)
        s_max = s.amax(1).maximum(u.amax(1).minimum((POOR * size_max).clamp_min(POOR_OUTPUT * whole)))
        s_rms = _rms(s).maximum(_rms(u).minimum((POOR * size_rms).clamp_min(POOR_OUTPUT * whole)))
        scale_max, scale_rms = size_max, size_rms
        if r.numel() < BLOCK:  # a few sums may cancel to anything: then what they are sums of is the scale
            moved = z.abs().maximum(s) * 2.0**24
            scale_max, scale_rms = size_max.maximum(moved.amax(1)), size_rms.maximum(_rms(moved))
        cap_max, cap_rms = CAP_MAX * unit * scale_max.clamp_min(normal), few * unit * scale_rms.clamp_min(normal)
        t_max = torch.minimum(other.amax(1).maximum(usual_max * scale_max), cap_max)
        t_rms = torch.minimum(_rms(other).maximum(usual_rms * scale_rms), cap_rms)
        if r.numel() < BLOCK:  # nor can so few errors show that the trusted kernel is poor
            t_max, t_rms = _at_least(t_max, other.amax(1)), _at_least(t_rms, _rms(other))
        share = noisy * size_rms / whole if whole > 0 else torch.zeros_like(size_rms)
        z_max, z_rms = length * (z.abs().amax(1) + share), math.sqrt(length) * (_rms(z) + share)
        floor_max = left + MAX_ULPS * _ulps(size_max, stored) + z_max.maximum(SPREAD_MAX * s_max)
        floor_rms = left + RMS_ULPS * _ulps(size_rms, stored) + z_rms.maximum(SPREAD_RMS * s_rms)
        if left:
            t = _plain(torch.where(finite, t, 0))
            more = error.abs().amax(1) > left
            error = torch.where(more[:, None], error - t, error)
            turned = LEFT_MAX * t.abs().amax(1)
            near = LEFT_RMS * _rms(t) + turned / math.sqrt(t.shape[1])
            t_max, floor_max = torch.where(more, 0, t_max), floor_max + torch.where(more, turned, 0)
            t_rms, floor_rms = torch.where(more, 0, t_rms), floor_rms + torch.where(more, near, 0)
        worst.add(
            first, rows, error.abs().amax(1), MAX_FACTOR * t_max + floor_max, _rms(error), RMS_FACTOR * t_rms + floor_rms,
            other.amax(1), _rms(other),
        )  # fmt: skip
    return worst.result(whole)


def roughly(candidate: torch.Tensor, trusted: torch.Tensor, reference: torch.Tensor, *, working: str) -> Comparison:
    """Whether `candidate` computes the same: RMS error per block of rows ≤ 4 · (that of `trusted`, at least its usual one,
    + one rounding to `working` of the block's RMS), without a cap; numbers that are not finite in the same places."""
    if candidate.shape != reference.shape:
        return _refused("shape", f"got {tuple(candidate.shape)}, expected {tuple(reference.shape)}")
    unit, stored = 2.0 ** -PRECISION[working], dtype_name(candidate.dtype)
    _, usual = _usual(trusted, reference, unit)
    worst = _Worst()
    for first, rows, (c, t, r) in _blocks(candidate, trusted, reference):
        worst.nonfinite(first, rows, _masks_differ(*_as_stored(c, r, stored)))
        finite = torch.isfinite(r) & torch.isfinite(c)
        r = torch.where(finite, r, 0)
        error, other = torch.where(finite, c - r, 0), _plain(_trusted_error(t, r, finite))
        size = _rms(r)
        allowed = PEER_FACTOR * (_rms(other).maximum(usual * size) + unit * size)
        unlimited = torch.full_like(allowed, math.inf)
        worst.add(first, rows, error.abs().amax(1), unlimited, _rms(error), allowed, other.amax(1), _rms(other))
    return worst.result(_scale(reference))


def _nothing(like: torch.Tensor) -> torch.Tensor:
    """Zeros of that shape that take no memory."""
    return torch.zeros((), dtype=torch.float64, device=like.device).expand(like.shape)


def _usual(trusted: torch.Tensor, reference: torch.Tensor, unit: float) -> tuple[float, float]:
    """The trusted kernel's error in an average block, relative to the block's size, each counted up to the cap.

    Errors inside a block may depend on each other (a row behind a narrow GEMM shares its few rounded inputs), so in single
    blocks the trusted kernel is lucky. An output of less than a block has no average: there the cap itself counts.
    """
    if reference.numel() < BLOCK:
        return CAP_MAX * unit, CAP_RMS * _scatter(reference.numel()) * unit
    count, total_max, total_rms = 0, 0.0, 0.0
    for _, _, (t, r) in _blocks(trusted, reference):
        finite = torch.isfinite(r)
        r = torch.where(finite, r, 0)
        other = _trusted_error(t, r, finite)
        size_max, size_rms = r.abs().amax(1), _rms(r)
        seen = size_rms > 0
        count += int(seen.sum())
        total_max += float((other.amax(1)[seen] / size_max[seen]).clamp_max(CAP_MAX * unit).sum())
        total_rms += float((_rms(other)[seen] / size_rms[seen]).clamp_max(CAP_RMS * unit).square().sum())
    return (total_max / count, math.sqrt(total_rms / count)) if count else (0.0, 0.0)


def _scatter(elements: int) -> float:
    """How far above its expectation the RMS of so few elements may lie: three deviations. Of a block it is as good as none."""
    return 1 + 3 / math.sqrt(max(elements, 1)) if elements < BLOCK else 1.0


def _at_least(allowed: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """The larger of both, where the error is a number."""
    return torch.where(torch.isfinite(error), allowed.maximum(error), allowed)


def _trusted_error(t: torch.Tensor, r: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Infinite where the trusted kernel has no number, so that the cap decides."""
    return torch.where(finite, t - r, 0).nan_to_num(math.inf, math.inf, math.inf).abs()


def response(
    reference: Callable[[Mapping[str, Any]], Mapping[str, torch.Tensor]],
    inputs: Mapping[str, Any],
    values: Mapping[str, torch.Tensor],
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """How far each output moves when every floating input is off by 2^-24 of itself, up or down at random.

    `inputs` and `values` (the reference's outputs for them) are fp64.
    """
    moved = {}
    for name, x in inputs.items():
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            generator = torch.Generator(device=x.device).manual_seed(seed)
            signs = torch.randint(0, 2, x.shape, generator=generator, device=x.device, dtype=torch.int8)
            moved[name] = x * (1 + (signs.to(x.dtype) * 2 - 1) * 2.0**-24)
            seed += 1
        else:
            moved[name] = x
    return {name: (value - values[name]).abs() for name, value in reference(moved).items()}


# blocks ---------------------------------------------------------------------------------------------------------------


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 1) if x.ndim == 0 else x[:, None] if x.ndim == 1 else x.flatten(1)


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of every tensor, in fp64, a few at a time."""
    matrices = [_matrix(x) for x in tensors]
    rows, columns = matrices[0].shape
    step = max(1, CHUNK // max(columns, 1))
    for first in range(0, rows, step):
        yield tuple(x[first : first + step].to(torch.float64) for x in matrices)


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[int, int, tuple[torch.Tensor, ...]]]:
    """(first row, rows per block, the tensors as (blocks, elements) in fp64).

    A block is the fewest whole rows with at least `BLOCK` elements. What is left at the end is taken together with the rows
    before it, so that no block is smaller while the output is not.
    """
    matrices = [_matrix(x) for x in tensors]
    rows, columns = matrices[0].shape
    if not rows or not columns:
        return
    per = min(-(-BLOCK // columns), rows)
    step = max(1, CHUNK // (columns * per)) * per
    whole = rows - rows % per
    for first in range(0, whole, step):
        last = min(first + step, whole)
        yield first, per, tuple(x[first:last].to(torch.float64).reshape(-1, per * columns) for x in matrices)
    if whole < rows:
        yield rows - per, per, tuple(x[rows - per :].to(torch.float64).reshape(1, -1) for x in matrices)


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(1).sqrt()


def _abs_max(x: torch.Tensor) -> torch.Tensor:
    return _plain(x).abs().amax() if x.numel() else x.new_zeros(())


def _plain(x: torch.Tensor) -> torch.Tensor:
    """With zeros where a value is not finite."""
    return x.nan_to_num(0, 0, 0)


def _scale(x: torch.Tensor) -> float:
    """RMS of the finite values."""
    total = sum(float(_plain(c).square().sum()) for (c,) in _chunks(x))
    return math.sqrt(total / max(x.numel(), 1))


def _ulps(x: torch.Tensor, dtype: str) -> torch.Tensor:
    size = x.clamp_min(torch.finfo(getattr(torch, dtype)).smallest_normal)
    return torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - PRECISION[dtype])


def _masks_differ(c: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Per block, whether NaN or an infinity is where the other has none."""
    if bool(torch.isfinite(c).all()) and bool(torch.isfinite(r).all()):
        return torch.zeros(len(c), dtype=torch.bool, device=c.device)
    differs = torch.isnan(c) != torch.isnan(r)
    differs |= torch.isposinf(c) != torch.isposinf(r)
    return (differs | (torch.isneginf(c) != torch.isneginf(r))).any(1)


def _as_stored(c: torch.Tensor, r: torch.Tensor, stored: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidate and reference as far as masks are concerned: the reference overflows where the stored dtype does.

    Where that is within a few roundings of overflowing, either is right. fp8 stores saturate.
    """
    largest = torch.finfo(getattr(torch, stored)).max
    slack = 2.0 ** (2 - PRECISION[stored])
    finite = torch.isfinite(r)
    edge = finite & (r.abs() > largest * (1 - slack)) & (r.abs() < largest * (1 + slack))
    if not stored.startswith("float8"):
        r = torch.where(finite & (r.abs() > largest), torch.sign(r) * math.inf, r)
    return torch.where(edge, 0, c), torch.where(edge, 0, r)


def _refused(why: Why, detail: str) -> Comparison:
    return Comparison(False, why, 0, 0, None, math.inf, 0.0, math.inf, 0.0, None, None, 0.0, detail)


class _Worst:
    """Gathers blocks and keeps the worst one."""

    def __init__(self) -> None:
        self.blocks = self.bad = 0
        self.rows: tuple[int, int] | None = None
        self.has_nonfinite = False
        self.worst: tuple[float, ...] = (-1.0, 0.0, 0.0, 0.0, 0.0, math.nan, math.nan)

    def _mark(self, first: int, last: int, count: int) -> None:
        self.bad += count
        self.rows = (min(first, self.rows[0]), max(last, self.rows[1])) if self.rows else (first, last)

    def nonfinite(self, first: int, rows: int, differs: torch.Tensor) -> None:
        if bool(differs.any()):
            self.has_nonfinite = True
            where = differs.nonzero()[:, 0]
            self._mark(first + int(where[0]) * rows, first + (int(where[-1]) + 1) * rows, int(differs.sum()))

    def add(
        self,
        first: int,
        rows: int,
        max_error: torch.Tensor,
        max_allowed: torch.Tensor,
        rms_error: torch.Tensor,
        rms_allowed: torch.Tensor,
        t_max: torch.Tensor | None,
        t_rms: torch.Tensor | None,
    ) -> None:
        tiny = 5e-324
        ratio = torch.maximum(max_error / max_allowed.clamp_min(tiny), rms_error / rms_allowed.clamp_min(tiny))
        bad = (max_error > max_allowed) | (rms_error > rms_allowed)
        self.blocks += len(ratio)
        if bool(bad.any()):
            where = bad.nonzero()[:, 0]
            self._mark(first + int(where[0]) * rows, first + (int(where[-1]) + 1) * rows, int(bad.sum()))
        at = int(ratio.argmax())
        if float(ratio[at]) > self.worst[0]:
            picked = (max_error, max_allowed, rms_error, rms_allowed)
            self.worst = (
                float(ratio[at]),
                *(float(x[at]) for x in picked),
                math.nan if t_max is None else float(t_max[at]),
                math.nan if t_rms is None else float(t_rms[at]),
            )

    def result(self, scale: float) -> Comparison:
        _, max_error, max_allowed, rms_error, rms_allowed, t_max, t_rms = self.worst
        why: Why = "nonfinite" if self.has_nonfinite else "values" if self.bad else ""
        detail = "NaN or infinity where the reference has none, or the other way round" if self.has_nonfinite else ""
        return Comparison(
            not why, why, self.blocks, self.bad, self.rows, max_error, max_allowed, rms_error, rms_allowed,
            None if math.isnan(t_max) else t_max, None if math.isnan(t_rms) else t_rms, scale, detail,
        )  # fmt: skip
