"""Parts of tiles that generated kernels call: splitting, pairs, segments, and what a tile contributes to statistics.

    tile_at slice_of              where in the matrix a tile lies; which blocks of K a slice has
    to_slab summed                a slice's share of a product into the workspace; the shares of all slices into one
    halves spread                 left and right columns; a segment over its columns
    unpaired paired               even and odd columns by reshaping: numbers move between threads
    unpacked packed pairs_at      the same through integers that hold two columns: nothing moves
    segment_*  wide_segment       fold groups of columns: of a power of two by reshaping, of any size by masking
    *_part                        what one part of a tile contributes to a statistic of its rows (or columns)
    merge_*                       what all parts of a tile contribute to a statistic of its rows

What the finisher makes of the contributions of all tiles, and how they lie in the workspace, is in `finishing.partials`.
"""

# Triton functions: arguments are tensors of the kernel language, which have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, type-arg"

from __future__ import annotations

import triton
import triton.language as tl

from coda.backends.finishing.maths import INFINITY, INTERPRETED, LOG2_E, fma, to_bf16


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


@triton.jit
def tile_at(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: neighbours in time share rows of A and columns of B in L2."""
    group = tile // (GROUP * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    rest = tile % (GROUP * tiles_n)
    return group * GROUP + rest % height, rest // height


@triton.jit
def slice_of(slice, blocks, SLICES: tl.constexpr):
    """The first block of K of a slice, and the one behind its last; the first slices have one more where it must be."""
    each, more = blocks // SLICES, blocks % SLICES
    first = slice * each + tl.minimum(slice, more)
    return first, first + each + tl.where(slice < more, 1, 0)


@triton.jit
def to_slab(slabs, acc, slice, row0, col0, M, lead):
    """The accumulator of one tile over one slice: whole rows of the tile, since a slab's rows are as long as those of tiles."""
    rows = row0 + tl.arange(0, acc.shape[0])
    columns = col0 + tl.arange(0, acc.shape[1])
    row = slice.to(tl.int64) * M + rows
    tl.store(slabs + row[:, None] * lead + columns[None, :], acc, mask=(rows < M)[:, None])


@triton.jit
def summed(slabs, row0, col0, M, lead, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr):
    """The sum of a tile over all slices, in their order; from L2, where another kernel has just written them.

    Nothing is masked, so that all slices are under way at a time: rows below the matrix are its last one once more, columns
    beside it whatever lies there, and neither is stored or counted.
    """
    rows = tl.minimum(row0 + tl.arange(0, ROWS), M - 1)
    columns = col0 + tl.arange(0, COLUMNS)
    place = slabs + rows.to(tl.int64)[:, None] * lead + columns[None, :]
    acc = tl.load(place, cache_modifier=".cg")
    for _ in tl.static_range(1, SLICES):
        place += tl.cast(M, tl.int64) * lead
        acc += tl.load(place, cache_modifier=".cg")
    return acc


# two neighbouring columns as one integer: they keep the shape and the layout of a tile of half the width ------------


@triton.jit
def pairs_at(pointers, PACKED: tl.constexpr):
    """Pointers to the integers that hold two elements each."""
    return pointers.to(tl.pointer_type(PACKED), bitcast=True)


@triton.jit
def unpacked(x, DTYPE: tl.constexpr):
    """The even and the odd columns, in fp32."""
    if DTYPE == "bfloat16":
        return (x << 16).to(tl.float32, bitcast=True), (x & -65536).to(tl.float32, bitcast=True)
    elif DTYPE == "float32":
        return x.to(tl.int32).to(tl.float32, bitcast=True), (x >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        even, odd = x.to(tl.int16), (x >> 16).to(tl.int16)
        return even.to(tl.float16, bitcast=True).to(tl.float32), odd.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def packed(even, odd, DTYPE: tl.constexpr):
    """fp32 columns, rounded to DTYPE, two by two."""
    if DTYPE == "float32":
        low, high = even.to(tl.int32, bitcast=True), odd.to(tl.int32, bitcast=True)
        return (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
    elif INTERPRETED:
        if DTYPE == "bfloat16":
            low, high = to_bf16(even), to_bf16(odd)
        else:
            low, high = even.to(tl.float16), odd.to(tl.float16)
        low, high = low.to(tl.int16, bitcast=True), high.to(tl.int16, bitcast=True)
        return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    elif DTYPE == "bfloat16":
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [odd, even], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [odd, even], dtype=tl.int32, is_pure=True, pack=1
        )


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
    if INTERPRETED:
        largest = tl.max(tl.where(ok & (x == x), x, -INFINITY), axis=1)
    else:
        largest = tl.max(tl.where(ok, x, -INFINITY), axis=1)  # the hardware's max passes over NaN
    base = tl.where(tl.abs(largest) < INFINITY, largest, 0.0) * LOG2_E
    # 2^(x·log2 e - base): one rounding of the base, shared by all terms, as small as that of base itself
    total = tl.sum(tl.where(ok, tl.exp2(fma(x, LOG2_E, -base[:, None])), 0.0), axis=1)
    # of numbers beyond 2^30 or so that rounding is more than an exponent holds, and nothing but the largest counts
    lost = (tl.abs(largest) < INFINITY) & ((total == 0.0) | (total == INFINITY))
    return largest, tl.where(lost, 1.0, total)


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


# parts of one tile into one -----------------------------------------------------------------------------------------


@triton.jit
def merge(x, y, FOLD: tl.constexpr):
    if FOLD == "sum":
        return x + y
    else:
        return tl.maximum(x, y)


@triton.jit
def merge_moments(mean, squares, mean_2, squares_2, columns, FIRST: tl.constexpr, STEP: tl.constexpr):
    """FIRST columns (of `columns` there are) and the STEP behind them (Chan, Golub and LeVeque)."""
    n = tl.minimum(tl.maximum(columns, 0), FIRST).to(tl.float32)
    m = tl.minimum(tl.maximum(columns - FIRST, 0), STEP).to(tl.float32)
    share = m / tl.maximum(n + m, 1.0)
    away = mean_2 - mean
    some = m > 0.0
    mean = tl.where(some, mean + away * share, mean)
    return mean, tl.where(some, squares + squares_2 + away * away * (n * share), squares)
