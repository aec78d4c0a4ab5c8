"""Device half: mean and squared deviations of each row of a tile, merged as parts of it come.

quack's engine for statistics of rows exchanges as many numbers per row as a statistic has, and writes one; this one has two
to write. `operators.py` says there what lies beyond the matrix.

Mypy leaves it alone: the code is traced by cute, whose types are not Python's.
"""  # noqa: I002
# mypy: ignore-errors

import copy

import cutlass
import cutlass.cute as cute
from cutlass import Float32, const_expr
from quack.compile_utils import make_fake_tensor
from quack.epilogue.ops import ColVecReduce
from quack.layout_utils import convert_layout_zero_stride


class RunningMoments(ColVecReduce):
    """Mean and sum of squared deviations of each row and tile: (M, 2 · tiles of N), first all means, contiguous along the rows.

    A thread holds sum, squares and count of what it has seen of a row, and merges by the pairwise rule (Chan, Golub and LeVeque
    1979): no sum of large squares cancels. The sum, not the mean, so that a row with one infinity has that for its mean.

    `mask`: with "elements", what lies beyond the matrix is told by its coordinate, and not counted.
    """

    reduce_planes = 3
    writes_squares = False
    """Which of the two numbers `_finalize` gives."""

    def __init__(self, name, mask):
        super().__init__(name)
        self.mask = mask

    def host_fake_arg(self, key, fctx):
        return make_fake_tensor(key[0], (fctx.m, cute.sym_int()), leading_dim=0)

    def sink_alloc_shape(self, lead, n, tile_m, tile_n, num_seqs=None):
        return (*lead, 2 * -(-n // tile_n))

    # a tile ---------------------------------------------------------------------------------------------------------
    @cute.jit
    def begin(self, gemm, param, smem_tensor, ctx):
        rows = cute.make_layout((ctx.tile_M, ctx.tile_N), stride=self._broadcast_stride())
        layout = ctx.partition_for_epilogue_fn(cute.make_rmem_tensor(rows, Float32)).layout
        total = cute.make_rmem_tensor(layout, Float32)
        squares = cute.make_rmem_tensor(layout, Float32)
        count = cute.make_rmem_tensor(layout, Float32)
        state = (total, squares, count, smem_tensor)
        if const_expr(self.mask == "elements"):
            places = ctx.partition_for_epilogue_fn(cute.make_identity_tensor((ctx.tile_M, ctx.tile_N)))
            state = (*state, places, ctx.varlen_manager.len_n() - ctx.tile_coord_mnkl[1] * ctx.tile_N)
        return state

    @cute.jit
    def begin_loop(self, gemm, state, epi_coord):
        held = self._end_loop_values(state, epi_coord)
        if const_expr(epi_coord[1] == 0):
            for i in cutlass.range_constexpr(len(held)):
                cute.filter_zeros(held[i]).fill(0.0)
        if const_expr(self.mask == "elements"):
            held = (*held, state[4][None, None, None, epi_coord[0], epi_coord[1]], state[5])
        return held

    @cute.jit
    def fn_sink_flush(self, gemm, state, frag):
        layout = state[0].layout
        counted = cute.make_rmem_tensor(frag.layout, Float32)
        counted.fill(1.0)
        if const_expr(self.mask == "elements"):
            shape = gemm.cta_tile_shape_mnk[:2]
            offsets = cute.composition(cute.make_layout(shape, stride=(0, 1)), state[3].layout)
            inside = state[4] - state[3][0][1]
            for i in cutlass.range(cute.size(frag), unroll_full=True):
                is_in = cute.crd2idx(i, offsets) < inside
                counted[i] = counted[i] if is_in else 0.0
                frag[i] = frag[i] if is_in else 0.0
        each = convert_layout_zero_stride(frag, layout)
        of = convert_layout_zero_stride(counted, layout)
        total = convert_layout_zero_stride(state[0], layout)[None, 0]
        squares = convert_layout_zero_stride(state[1], layout)[None, 0]
        count = convert_layout_zero_stride(state[2], layout)[None, 0]
        for row in cutlass.range(cute.size(total), unroll_full=True):
            part, number = Float32(0.0), Float32(0.0)
            for j in cutlass.range_constexpr(cute.size(each, mode=[1])):
                part = part + each[row, j]
                number = number + of[row, j]
            mean = part * (Float32(1.0) / cute.arch.fmax(number, Float32(1.0)))
            spread = Float32(0.0)
            for j in cutlass.range_constexpr(cute.size(each, mode=[1])):
                away = (each[row, j] - mean) * of[row, j]
                spread = away * away + spread
            merged = self._merge((total[row], squares[row], count[row]), (part, spread, number))
            total[row] = merged[0]
            squares[row] = merged[1]
            count[row] = merged[2]

    # lanes, warps, and what is written --------------------------------------------------------------------------------
    @cute.jit
    def _end_loop_values(self, state, epi_coord):
        m, n = epi_coord[0], epi_coord[1]
        return (state[0][None, None, None, m, n], state[1][None, None, None, m, n], state[2][None, None, None, m, n])

    @cute.jit
    def _end_loop_smem(self, state):
        return state[3]

    @cute.jit
    def _merge(self, vals, others):
        total, squares, count = vals
        total_2, squares_2, count_2 = others
        both, one = count + count_2, Float32(1.0)  # one in place of no elements, whose sum and squares are 0
        away = total_2 * (one / cute.arch.fmax(count_2, one)) - total * (one / cute.arch.fmax(count, one))
        weight = count * count_2 * (one / cute.arch.fmax(both, one))
        return (total + total_2, squares + squares_2 + away * (away * weight), both)  # no ∞·0 where a weight is 0

    @cute.jit
    def _finalize(self, vals):
        if const_expr(self.writes_squares):
            return vals[1]
        else:
            return vals[0] / cute.arch.fmax(vals[2], Float32(1.0))

    @cute.jit
    def end_loop_finish(self, gemm, param, staged, tile_coord_mnkl, varlen_manager):
        slots = param.shape[2] // 2
        shape = (param.shape[0], param.shape[1], slots)
        means = cute.make_tensor(param.iterator, cute.make_layout(shape, stride=param.stride))
        beyond = cute.domain_offset((0, 0, slots), param)
        squares = cute.make_tensor(beyond.iterator, cute.make_layout(shape, stride=param.stride))
        # the engine merges warps in place, and is asked twice: the second time on what the first has not touched
        apart = []
        for i in cutlass.range_constexpr(len(staged[0])):
            held = cute.make_rmem_tensor(staged[0][i].layout, Float32)
            for row in cutlass.range(cute.size(held), unroll_full=True):
                held[row] = staged[0][i][row]
            apart.append(held)
        other = copy.copy(self)
        other.writes_squares = True
        super(RunningMoments, self).end_loop_finish(gemm, means, staged, tile_coord_mnkl, varlen_manager)  # noqa: UP008
        super(RunningMoments, other).end_loop_finish(
            gemm, squares, (tuple(apart), *staged[1:]), tile_coord_mnkl, varlen_manager
        )
