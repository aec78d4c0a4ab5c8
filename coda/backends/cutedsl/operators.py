"""Device half: our own operators for quack's front end. The functions of an element are in `maths.py`.

    SpreadRow               a row that repeats, or serves two columns with each number
    Narrow…                 vectors of integers wider than 32 bits, as int32
    Segment segment_out     a number per row and group of columns, folded before the epilogue; written as an output
    RowStatistic            sum, max or absmax of each row of a tile; what lies beyond the matrix counts as the identity
    ColumnStatistic         the same of each column
    LogSumExp               online log-sum-exp of each row; right for infinities too
    Moments                 mean and squared deviations of each row
    SelectColumn            the tile that owns the wanted column writes the value, whatever it is

quack's own sums assume that an epilogue is 0 where accumulator and tiles are zero-filled. A loaded vector is not
filled, f(0) need not be 0, and 0·inf is NaN (also of a filled zero: a row of A with an infinity is NaN beyond N), so the
statistics leave out what lies beyond: parts of a tile as a whole, at no cost, where parts divide N (or M), else by coordinate.
quack identifies a kernel by the text of the generated function and by the names and settings of operators; VERSION, a
hash of all device code, goes into both, since files below site-packages count by name alone.

Mypy leaves it alone: the code is traced by cute, whose types are not Python's.
"""  # noqa: I002
# mypy: ignore-errors

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, const_expr
from quack.compile_utils import make_fake_tensor
from quack.epilogue.ops import (
    ColVecLoad,
    ColVecReduce,
    ColVecSelect,
    EpiSmemBytes,
    GroupedColStatsBase,
    GroupedColStatsOut,
    OnlineLSEReduce,
    RowVecLoad,
    RowVecReduce,
)

from coda.backends.cutedsl import configs
from coda.backends.cutedsl.maths import integer
from coda.backends.cutedsl.moments import RunningMoments
from coda.backends.cutedsl.private import asm_f32_of_s32, select_pairs, sixteen_bits

VERSION = configs.DEVICE_CODE


class Named:
    """A function that quack identifies by name and VERSION, not by what it refers to.

    Its own fingerprint follows every global of every callee, into CUTLASS, and refuses what it meets there in 4.7.1.
    """

    def __init__(self, name: str, function: object) -> None:
        self.name, self.function = name, function

    def __call__(self, *args):
        return self.function(*args)

    def __quack_semantic_key__(self):
        return ("coda", self.name, VERSION)


# vectors ---------------------------------------------------------------------------------------------------------


class _ByElement:
    """Loads a vector number by number, of any width: quack's own loader moves 32 bits at least, of neighbours.

    `narrow`: integers that are kept as int32 in the bits of an fp32, the nearest within ±2^30.
    """

    narrow = False

    def config_key(self):
        return (self.narrow, VERSION)

    def host_fake_arg(self, key, fctx):
        return make_fake_tensor(key[0], (cute.sym_int(),), divisibility=4)

    def _kept(self, dtype):
        return Float32 if self.narrow else dtype

    def smem_bytes(self, arg_tensor, cta_tile_shape_mnk, epi_tile, warp_shape_mnk=None):
        width = self._kept(arg_tensor.element_type).width
        return EpiSmemBytes(unstaged=self._tile_size(cta_tile_shape_mnk) * (width // 8))

    def smem_struct_field(self, gemm, params):
        size = self._tile_size(gemm.cta_tile_shape_mnk)
        dtype = self._kept(getattr(params, self.name).element_type)
        return f"s_{self.name}", cute.struct.Align[cute.struct.MemRange[dtype, size], 16]

    @cute.jit
    def begin(self, gemm, param, smem_tensor, ctx):
        vector = self._get_gmem_vec(param, ctx)
        size = const_expr(self._tile_dim(ctx))
        coord = ctx.tile_coord_mnkl[self._coord_idx()]
        part = cute.local_tile(vector, (size,), (coord,))
        limit = min(cute.size(vector) - coord * size, size)
        for first in cutlass.range(0, size, ctx.num_epi_threads, unroll_full=True):
            i = first + ctx.tidx
            if i < limit:
                if const_expr(self.narrow):
                    smem_tensor[i] = narrowed(part[i])
                else:
                    smem_tensor[i] = part[i]
        whole = ctx.partition_for_epilogue_fn(
            cute.make_tensor(
                smem_tensor.iterator, cute.make_layout((ctx.tile_M, ctx.tile_N), stride=self._broadcast_stride())
            )
        )
        if const_expr(ctx.tiled_copy_t2r is not None):
            whole = ctx.tiled_copy_r2s.retile(whole)
        one = cute.group_modes(whole, 3, cute.rank(whole))[None, None, None, 0]
        return [whole, cute.make_rmem_tensor(one.layout, gemm.acc_dtype)]


def narrowed(x):
    """An integer, at most 2^30 in magnitude, as int32 in the bits of an fp32."""
    wide, most = Int64(x), Int64(2**30)
    wide = Int64(cutlass.select_(wide < most, wide, most))
    wide = Int64(cutlass.select_(wide > -most, wide, -most))
    return asm_f32_of_s32("mov.b32 $0, $1;", "=f,r", Int32(wide))


class NarrowCol(_ByElement, ColVecLoad):
    """A col of integers of any width, as int32."""

    narrow = True


class NarrowRow(_ByElement, RowVecLoad):
    """A row of integers of any width, as int32."""

    narrow = True


class _Spread:
    """A row that is shorter than the product's: each number for two columns (half the width), or repeated.

    The vector is read through a layout that visits its numbers as often as they are needed; nothing is copied. A tile's
    columns must be whole periods.
    """

    def __init__(self, name: str, half: bool, period: int) -> None:
        super().__init__(name)
        self.half, self.period = half, period

    def config_key(self):
        return (self.half, self.period, self.narrow, VERSION)

    def host_fake_arg(self, key, fctx):
        return make_fake_tensor(key[0], (cute.sym_int(),), divisibility=4)

    def _get_gmem_vec(self, param, ctx):
        twice = 2 if self.half else 1
        if self.period:
            times = ctx.varlen_manager.len_n() // (twice * self.period)
            shape, stride = (twice, self.period, times), (0, 1, 0)
        else:
            shape, stride = (twice, cute.size(param)), (0, 1)
        return cute.make_tensor(param.iterator, cute.make_layout((shape,), stride=(stride,)))


class SpreadRow(_Spread, RowVecLoad):
    """Of 32-bit numbers, copied asynchronously."""

    narrow = False


class SpreadAny(_Spread, _ByElement, RowVecLoad):
    """Of numbers of any width."""


class SpreadNarrow(_Spread, _ByElement, RowVecLoad):
    """Of integers of any width, as int32."""

    narrow = True


# segments --------------------------------------------------------------------------------------------------------


class Segment(GroupedColStatsBase):
    """A fold of each row over groups of columns; a maximum passes over NaN. The group's columns come with the call.

    `function` of the statistic is what the outside sees (of `segment_out`); the epilogue sees the statistic itself.
    """

    def __init__(self, name, fold, function=None):
        super().__init__(name)
        self.fold, self.function = fold, function
        self.combine = "add" if fold == "sum" else "max"

    def config_key(self):
        return (self.fold, self.function.name if self.function else "", VERSION)

    def _fold_identity(self):
        return -math.inf if self.fold == "max" else 0.0

    @cute.jit
    def stats_begin(self, gemm, smem_tensor, ctx, group_cols):
        state = super(Segment, self).stats_begin(gemm, smem_tensor, ctx, group_cols)  # noqa: UP008
        part = state[6][1]  # a thread folds its columns of a part into one number: they may not belong to two groups
        assert group_cols % part == 0, f"a group of {group_cols} columns is no multiple of a part of {part}"
        return state

    def stat_value(self, total, group_cols):
        return self.function(total) if self.function else total


def segment_out(name, segment, fold, function):
    """The operator that writes an output of segments: a function of the statistic `segment`."""
    return GroupedColStatsOut(name, Segment(segment, fold, function))


# statistics ------------------------------------------------------------------------------------------------------


class _Parts:
    """Leaves out the parts of a tile that lie beyond the matrix, where `mask` is "parts": no part is half inside.

    The classes are named in `super`, since `cute.jit` rewrites the bare form to the class of the object.
    """

    mask = ""

    def config_key(self):
        return (*super().config_key(), self.mask, VERSION)

    @cute.jit
    def begin(self, gemm, param, smem_tensor, ctx):
        state = super(_Parts, self).begin(gemm, param, smem_tensor, ctx)  # noqa: UP008
        if const_expr(self.mask == "parts"):
            if const_expr(self._reduce_dim() == 1):
                limit = ctx.varlen_manager.len_n() - ctx.tile_coord_mnkl[1] * ctx.tile_N
            else:
                limit = ctx.varlen_manager.len_m(ctx.tile_coord_mnkl[3]) - ctx.tile_coord_mnkl[0] * ctx.tile_M
            state = (*state, limit)
        return state

    @cute.jit
    def begin_loop(self, gemm, state, epi_coord):
        part = super(_Parts, self).begin_loop(gemm, state, epi_coord)  # noqa: UP008
        if const_expr(self.mask == "parts"):
            axis = self._reduce_dim()
            part = (part, epi_coord[axis] * cute.size(gemm.epi_tile, mode=[axis]), state[len(state) - 1])
        return part

    @cute.jit
    def fn_sink_flush(self, gemm, state, frag, **factor):
        if const_expr(self.mask == "parts"):
            part, first, limit = state
            if first < limit:
                super(_Parts, self).fn_sink_flush(gemm, part, frag, **factor)  # noqa: UP008
        else:
            super(_Parts, self).fn_sink_flush(gemm, state, frag, **factor)  # noqa: UP008


class _Masked(_Parts):
    """Counts what lies beyond the matrix as the identity of the fold.

    `mask`: "" where the reduced size divides into tiles, "parts" or "elements". `alone`: no other statistic of the kernel
    masks elements.
    """

    def __init__(self, name, combine, mask, scaled=False, alone=False):
        super().__init__(name, combine=combine, scaled=scaled)
        if mask == "elements" and scaled:
            raise ValueError("a statistic of masked elements takes one value, not two factors")
        self.mask, self.alone = mask, alone

    def config_key(self):
        return (*super().config_key(), self.alone)

    def _mask_oob_active(self):
        return self.mask == "elements"

    @cute.jit
    def _mask_oob(self, frag, coords, limit, tile_shape_mn):
        identity = -math.inf if self.combine == "max" else 0.0
        axis = self._reduce_dim()
        along = (1, 0) if axis == 0 else (0, 1)
        offsets = cute.composition(cute.make_layout(tile_shape_mn, stride=along), coords.layout)
        inside = limit - coords[0][axis]
        if const_expr(self.alone):  # a branch costs fewer registers than one mask, and more than several
            if limit < tile_shape_mn[axis]:
                for i in cutlass.range(cute.size(frag), unroll_full=True):
                    frag[i] = frag[i] if cute.crd2idx(i, offsets) < inside else identity
        else:
            for i in cutlass.range(cute.size(frag), unroll_full=True):
                frag[i] = frag[i] if cute.crd2idx(i, offsets) < inside else identity


class RowStatistic(_Masked, ColVecReduce):
    """One number per row and tile: (M, tiles of N), contiguous along the rows, as the finisher reads."""

    def host_fake_arg(self, key, fctx):
        return make_fake_tensor(key[0], (fctx.m, cute.sym_int()), leading_dim=0)


class ColumnStatistic(_Masked, RowVecReduce):
    """One number per column and tile: (tiles of M, N)."""


class LogSumExp(_Parts, OnlineLSEReduce):
    """One log-sum-exp per row and tile, laid out as by `RowStatistic`.

    An infinite maximum is not subtracted: inf stays inf instead of becoming NaN.
    """

    def __init__(self, name, mask):
        super().__init__(name, check_oob=mask == "elements" or 0)  # for False the front end wants whole tiles
        self.mask = mask

    def host_fake_arg(self, key, fctx):
        return make_fake_tensor(key[0], (fctx.m, cute.sym_int()), leading_dim=0)

    @cute.jit
    def _guard_neg_inf(self, m_new):
        infinite = (m_new == Float32(-math.inf)) | (m_new == Float32(math.inf))
        return Float32(cutlass.select_(infinite, Float32(0.0), m_new))


class Moments(_Parts, RunningMoments):
    """`RunningMoments`, where whole parts of a tile may lie beyond the matrix too."""


NOTHING = 0x7F800001
"""Bits of a signalling NaN that no arithmetic produces: "this thread does not hold the wanted column"."""


class SelectColumn(ColVecSelect):
    """v[i, index[i]], also where it is -inf or NaN. Rows without such a column are left as they are."""

    def config_key(self):
        return (*super().config_key(), VERSION)

    @cute.jit
    def _select_packed16(self, frag_g, gVec, si, row, idx1, offs, n_aliased):  # noqa: N803
        # idx1 and the comparands are the offset plus one, in both halves of a register; 0x7FFF pads an odd count
        wanted = sixteen_bits(idx1)
        found = asm_f32_of_s32("mov.b32 $0, $1;", "=f,r", Int32(NOTHING))
        for j in cutlass.range_constexpr(0, n_aliased, 2):
            low = offs[j] + 1
            high = offs[j + 1] + 1 if j + 1 < n_aliased else 0x7FFF
            second = frag_g[si, j + 1] if j + 1 < n_aliased else Float32(0.0)
            found = select_pairs(wanted, Uint32(low | (high << 16)), frag_g[si, j], second, found)
        if integer(found) != Int32(NOTHING):
            gVec[row] = found
