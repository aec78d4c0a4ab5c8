"""Parts of tiles that generated kernels call: splitting, segments, and the two halves of every statistic.

    scalar halves spread          an operand that may live on the device; left and right columns; a segment over its columns
    segment_*  wide_segment       fold groups of columns: of a power of two by reshaping, of any size by masking
    *_part                        what one tile contributes to a statistic of its rows (or columns)
    combine_*                     what the finisher makes of the contributions, in a fixed order

A statistic of kind X has one or two planes of fp32 in the workspace, each (slots, length): slot by slot, so that reading
and writing run along the vector. `combine_*` read SLOTS slots at a time.
"""

# Triton functions: arguments are tensors of the kernel language, which have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, type-arg"

from __future__ import annotations

import triton
import triton.language as tl

SLOTS = tl.constexpr(16)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def scalar(x, DTYPE: tl.constexpr):
    """A number, or a 0-d tensor that is read on the device."""
    if x.dtype.is_ptr():
        return tl.load(x).to(DTYPE)
    else:
        return tl.cast(x, DTYPE)


@triton.jit
def halves(x):
    """The left and the right columns; registers are renamed, nothing moves."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def unpaired(x):
    """The even and the odd columns."""
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def paired(x, y):
    """x in the even columns, y in the odd ones."""
    z = tl.join(x, y)
    return tl.reshape(z, (z.shape[0], z.shape[1] * 2))


# segments ---------------------------------------------------------------------------------------------------------


@triton.jit
def spread(x, SIZE: tl.constexpr):
    """(R, G) to (R, G·SIZE): every number SIZE times."""
    wide = tl.broadcast_to(tl.expand_dims(x, 2), (x.shape[0], x.shape[1], SIZE))
    return tl.reshape(wide, (x.shape[0], x.shape[1] * SIZE))


@triton.jit
def fold(x, FOLD: tl.constexpr, AXIS: tl.constexpr):
    """Sum, max or absmax along one axis; the last two pass over NaN."""
    if FOLD == "sum":
        return tl.sum(x, axis=AXIS)
    elif FOLD == "max":
        return tl.max(tl.where(x == x, x, -INFINITY), axis=AXIS)
    else:
        return tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=AXIS)


@triton.jit
def segment(x, SIZE: tl.constexpr, FOLD: tl.constexpr):
    """(R, G·SIZE) to (R, G); SIZE is a power of two."""
    return fold(tl.reshape(x, (x.shape[0], x.shape[1] // SIZE, SIZE)), FOLD, 2)


@triton.jit
def wide_segment(x, SIZE: tl.constexpr, FOLD: tl.constexpr):
    """Fold groups of SIZE columns, any SIZE, and leave each result in all columns of its group."""
    group = tl.arange(0, x.shape[1]) // SIZE
    result = x
    for g in range((x.shape[1] + SIZE - 1) // SIZE):
        inside = (group == g)[None, :]
        if FOLD == "max":
            folded = fold(tl.where(inside, x, -INFINITY), FOLD, 1)
        else:
            folded = fold(tl.where(inside, x, 0.0), FOLD, 1)
        result = tl.where(inside, folded[:, None], result)
    return result


# what one tile contributes ----------------------------------------------------------------------------------------


@triton.jit
def fold_part(x, ok, FOLD: tl.constexpr, AXIS: tl.constexpr):
    """Sum, max or absmax over what is inside the matrix."""
    if FOLD == "max":
        return fold(tl.where(ok, x, -INFINITY), FOLD, AXIS)
    else:
        return fold(tl.where(ok, x, 0.0), FOLD, AXIS)


@triton.jit
def logsumexp_part(x, ok):
    """The largest number of each row and Σ exp(x - largest); an infinite largest is not subtracted."""
    largest = tl.max(tl.where(ok & (x == x), x, -INFINITY), axis=1)
    base = tl.where(tl.abs(largest) < INFINITY, largest, 0.0)
    return largest, tl.sum(tl.where(ok, tl.exp(x - base[:, None]), 0.0), axis=1)


@triton.jit
def moments_part(x, ok, count):
    """Mean and squared deviations of `count` numbers in each row."""
    mean = tl.sum(tl.where(ok, x, 0.0), axis=1) / tl.maximum(count, 1).to(tl.float32)
    away = tl.where(ok, x - mean[:, None], 0.0)
    return mean, tl.sum(away * away, axis=1)


@triton.jit
def select_part(x, wanted, first, count):
    """x[i, wanted[i]] of the rows whose wanted column is among the `count` from `first` on, and which rows those are."""
    mine = (wanted >= first) & (wanted < first + count)
    local = tl.where(mine, wanted - first, -1).to(tl.int32)
    here = tl.arange(0, x.shape[1])[None, :] == local[:, None]
    return tl.sum(tl.where(here, x, 0.0), axis=1), mine


# what the finisher makes of them ----------------------------------------------------------------------------------


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
def combine_logsumexp(largest, sums, slots, length, at, ok):
    """log Σ exp from the parts of `logsumexp_part`, as PyTorch for infinities and NaN."""
    top = combine(largest, slots, length, at, ok, "max")
    base = tl.where(tl.abs(top) < INFINITY, top, 0.0)
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        m = plane(largest, first, slots, length, at, ok, -INFINITY)
        factor = tl.exp(tl.where(tl.abs(m) < INFINITY, m - base[None, :], 0.0))
        total += plane(sums, first, slots, length, at, ok, 0.0) * factor
    return base + tl.log(tl.sum(total, axis=0))


@triton.jit
def moments_mean(means, slots, length, at, ok, columns, STEP: tl.constexpr):
    """The mean of `columns` numbers from the means of slots of STEP; NaN over nothing."""
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        total += plane(means, first, slots, length, at, ok, 0.0) * slot_counts(first, columns, STEP)
    return tl.sum(total, axis=0) / tl.cast(columns, tl.float32)


@triton.jit
def moments_variance(means, squares, slots, length, at, ok, columns, STEP: tl.constexpr):
    """Biased variance: deviations inside the slots plus those between them (Chan, Golub and LeVeque)."""
    mean = moments_mean(means, slots, length, at, ok, columns, STEP)
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        count = slot_counts(first, columns, STEP)
        away = plane(means, first, slots, length, at, ok, 0.0) - mean[None, :]
        total += plane(squares, first, slots, length, at, ok, 0.0) + tl.where(count > 0.0, away * away * count, 0.0)
    return tl.sum(total, axis=0) / tl.cast(columns, tl.float32)


@triton.jit
def slot_counts(first, columns, STEP: tl.constexpr):
    """How many columns each of SLOTS slots has, as a column of fp32."""
    slot = first + tl.arange(0, SLOTS)
    return tl.minimum(tl.maximum(columns - slot * STEP, 0), STEP).to(tl.float32)[:, None]
