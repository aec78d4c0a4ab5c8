"""What the finisher makes of the contributions of all tiles to a statistic, in plain Triton and in a fixed order.

    plane                             SLOTS slots of one plane of the workspace
    combine combine_logsumexp         sum, max, absmax; log Σ exp from largest numbers and sums
    combine_moments                   mean and variance from the means and squared deviations of slots
    merge_logsumexp scale_to          two contributions into one: in the finisher, and of the parts of a tile
    slot_counts                       how many columns each slot has

A statistic of rows has one or two planes of fp32 in the workspace, each (tiles_n, M): tile by tile, so that reading and
writing run along the vector; one of columns has (tiles_m, columns). SLOTS of them are read at a time.
"""

# Triton functions: arguments are tensors of the kernel language, which have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, type-arg"

from __future__ import annotations

import triton
import triton.language as tl

from coda.backends.finishing.maths import INFINITY

SLOTS = tl.constexpr(32)


@triton.jit
def plane(base, first, slots, length, at, ok, other):
    """SLOTS slots from `first` on, at these positions; `other` beyond the last slot."""
    slot = first + tl.arange(0, SLOTS)
    place = slot.to(tl.int64)[:, None] * length + at[None, :]
    return tl.load(base + place, mask=(slot < slots)[:, None] & ok[None, :], other=other)


@triton.jit
def combine(base, slots, length, at, ok, FOLD: tl.constexpr):
    """Sum, max or absmax over the slots."""
    if FOLD == "sum":
        total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
        for first in range(0, slots, SLOTS):
            total += plane(base, first, slots, length, at, ok, 0.0)
        return tl.sum(total, axis=0)
    elif FOLD == "max":
        top = tl.full((SLOTS, at.shape[0]), -INFINITY, tl.float32)
        for first in range(0, slots, SLOTS):
            top = tl.maximum(top, plane(base, first, slots, length, at, ok, -INFINITY))
        return tl.max(top, axis=0)
    else:
        top = tl.zeros((SLOTS, at.shape[0]), tl.float32)
        for first in range(0, slots, SLOTS):
            top = tl.maximum(top, plane(base, first, slots, length, at, ok, 0.0))
        return tl.max(top, axis=0)


@triton.jit
def merge_logsumexp(top, total, top_2, total_2):
    both = tl.maximum(top, top_2)
    return both, total * scale_to(top, both) + total_2 * scale_to(top_2, both)


@triton.jit
def scale_to(top, new):
    """What a sum relative to `top` is multiplied with to be relative to `new`; infinite ones are not subtracted."""
    return tl.exp(tl.where((tl.abs(top) < INFINITY) & (tl.abs(new) < INFINITY), top - new, 0.0))


@triton.jit
def combine_logsumexp(largest, sums, slots, length, at, ok):
    """log Σ exp from the parts of `logsumexp_part`, as PyTorch for infinities and NaN."""
    top = tl.full((SLOTS, at.shape[0]), -INFINITY, tl.float32)
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        m = plane(largest, first, slots, length, at, ok, -INFINITY)
        top, total = merge_logsumexp(top, total, m, plane(sums, first, slots, length, at, ok, 0.0))
    every = tl.max(top, axis=0)
    base = tl.where(tl.abs(every) < INFINITY, every, 0.0)
    return base + tl.log(tl.sum(total * scale_to(top, every[None, :]), axis=0))


@triton.jit
def combine_moments(means, squares, slots, length, at, ok, columns, STEP: tl.constexpr):
    """Mean and biased variance of `columns` numbers from the means and squared deviations of slots of STEP; NaN over nothing.

    Deviations inside the slots plus those between them (Chan, Golub and LeVeque 1979). Sums are kept, not means: a mean with
    an infinity is one.
    """
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    away = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    count = tl.zeros((SLOTS, 1), tl.float32)
    for first in range(0, slots, SLOTS):
        number = slot_counts(first, columns, STEP)
        mean = plane(means, first, slots, length, at, ok, 0.0)
        between = apart(mean - total / tl.maximum(count, 1.0), count * number / tl.maximum(count + number, 1.0))
        away += plane(squares, first, slots, length, at, ok, 0.0) + between
        total += mean * number
        count += number
    of = tl.cast(columns, tl.float32)
    mean = tl.sum(total, axis=0) / of
    away += apart(total / tl.maximum(count, 1.0) - mean[None, :], count)
    return mean, tl.sum(away, axis=0) / of


@triton.jit
def apart(distance, weight):
    """What two means that lie so far apart add to the squared deviations; nothing without a weight, also where one is infinite."""
    return tl.where(weight > 0.0, distance * distance * weight, 0.0)


@triton.jit
def slot_counts(first, columns, STEP: tl.constexpr):
    """How many columns each of SLOTS slots has, as a column of fp32."""
    slot = first + tl.arange(0, SLOTS)
    return tl.minimum(tl.maximum(columns - slot * STEP, 0), STEP).to(tl.float32)[:, None]
