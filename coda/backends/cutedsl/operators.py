"""Device half: the functions that generated epilogues call, and our own operators for quack's front end.

    split_* join_*          two 16-bit numbers in one 32-bit element: how matrices and rows of width 2 travel
    integer, number         an int32 that travels as the bits of an fp32
    exp … cos               maths, strict and fast; within about 1e-6 (sin, cos absolute up to |x| = 1e5) where strict
    RowStatistic            sum, max or absmax of each row of a tile; what lies beyond the matrix counts as the identity
    ColumnStatistic         the same of each column
    LogSumExp               online log-sum-exp of each row; right for infinities too
    SelectColumn            the tile that owns the wanted column writes the value, whatever it is

quack's own sums assume that an epilogue is 0 where accumulator and tiles are zero-filled. A loaded vector is not
filled, f(0) need not be 0, and 0·inf is NaN (also of a filled zero: a row of A with an infinity is NaN beyond N), so the
statistics leave out what lies beyond: parts of a tile as a whole, at no cost, where parts divide N (or M), else by coordinate.
quack identifies a kernel by the text of the generated function and by the names and settings of operators; VERSION, a
hash of this file, goes into both, since files below site-packages count by name alone.

Mypy leaves it alone: the code is traced by cute, whose types are not Python's.
"""  # noqa: I002
# mypy: ignore-errors

import hashlib
import math
import pathlib
import struct

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32, Uint32, const_expr
from quack.compile_utils import make_fake_tensor
from quack.epilogue.ops import ColVecReduce, ColVecSelect, OnlineLSEReduce, RowVecLoad, RowVecReduce

from coda.backends.cutedsl.private import asm_f32, asm_f32_of_s32, asm_s32, select_pairs, sixteen_bits
from coda.backends.finishing import approximations
from coda.backends.finishing.approximations import (
    ERF_FAR,
    ERF_NEAR,
    ERF_SPLIT,
    LN2,
    LOG2_E,
    LOWEST,
    TANH_NEAR,
    TANH_SPLIT,
)

VERSION = hashlib.sha256(
    b"".join(
        pathlib.Path(path).read_bytes()
        for path in (__file__, pathlib.Path(__file__).with_name("private.py"), approximations.__file__)
    )
).hexdigest()[:12]


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


# two numbers in one element --------------------------------------------------------------------------------------


def split_bfloat16(x):
    """Even and odd column of a pair of bf16 numbers."""
    even = asm_f32("{.reg .b32 t; mov.b32 t, $1; shl.b32 t, t, 16; mov.b32 $0, t;}", "=f,f", x)
    odd = asm_f32("{.reg .b32 t; mov.b32 t, $1; and.b32 t, t, 0xffff0000; mov.b32 $0, t;}", "=f,f", x)
    return even, odd


def split_float16(x):
    """Even and odd column of a pair of fp16 numbers."""
    head = "{.reg .b32 t; .reg .b16 l, h; mov.b32 t, $1; mov.b32 {l, h}, t; "
    return asm_f32(head + "cvt.f32.f16 $0, l;}", "=f,f", x), asm_f32(head + "cvt.f32.f16 $0, h;}", "=f,f", x)


def join_bfloat16(even, odd):
    """Both rounded to bf16, in one element."""
    return asm_f32("{.reg .b32 t; cvt.rn.bf16x2.f32 t, $2, $1; mov.b32 $0, t;}", "=f,f,f", even, odd)


def join_float16(even, odd):
    """Both rounded to fp16, in one element."""
    return asm_f32("{.reg .b32 t; cvt.rn.f16x2.f32 t, $2, $1; mov.b32 $0, t;}", "=f,f,f", even, odd)


def integer(x):
    """The int32 whose bits arrive as an fp32."""
    return asm_s32("mov.b32 $0, $1;", "=r,f", x)


def to_float(x):
    """An int32 as the nearest fp32."""
    return asm_f32_of_s32("cvt.rn.f32.s32 $0, $1;", "=f,r", x)


# maths -----------------------------------------------------------------------------------------------------------


def _bits(x):
    """An fp32 constant as PTX writes it."""
    return f"0f{struct.unpack('<I', struct.pack('<f', x))[0]:08X}"


def _horner(to, by, coefficients):
    """Lines of PTX: a polynomial, the coefficients lowest degree first."""
    *rest, second, first = map(_bits, coefficients)
    lines = [f"fma.rn.f32 {to}, {by}, {first}, {second};"]
    return "\n".join(lines + [f"fma.rn.f32 {to}, {to}, {by}, {c};" for c in reversed(rest)])


EXP_NONPOSITIVE = f"""{{.reg .f32 x, y, d;
max.NaN.f32 x, $1, {_bits(LOWEST)};
mul.rn.f32 y, x, {_bits(LOG2_E)};
fma.rn.f32 d, y, {_bits(-LN2)}, x;
ex2.approx.ftz.f32 y, y;
fma.rn.f32 $0, y, d, y;}}"""

TANH = f"""{{.reg .f32 t, s, q, y; .reg .pred far;
abs.f32 t, $1;
mul.rn.f32 q, t, {_bits(2 * LOG2_E)};
ex2.approx.ftz.f32 q, q;
add.rn.f32 q, q, {_bits(1.0)};
rcp.approx.ftz.f32 q, q;
fma.rn.f32 q, q, {_bits(-2.0)}, {_bits(1.0)};
mul.rn.f32 s, $1, $1;
{_horner("y", "s", (1.0, *TANH_NEAR))}
mul.rn.f32 y, y, $1;
setp.ge.f32 far, t, {_bits(TANH_SPLIT)};
@far copysign.f32 y, $1, q;
mov.f32 $0, y;}}"""

ERF = f"""{{.reg .f32 t, s, q, y; .reg .pred far;
abs.f32 t, $1;
{_horner("q", "t", ERF_FAR)}
ex2.approx.ftz.f32 q, q;
sub.rn.f32 q, {_bits(1.0)}, q;
mul.rn.f32 s, $1, $1;
{_horner("y", "s", ERF_NEAR)}
mul.rn.f32 y, y, $1;
setp.ge.f32 far, t, {_bits(ERF_SPLIT)};
@far copysign.f32 y, $1, q;
mov.f32 $0, y;}}"""
"""NaN is not far, and stays. A predicated `copysign` is one instruction less than a select."""


def reciprocal(x):
    """1/x within an ulp; subnormal results are 0."""
    return asm_f32("rcp.approx.ftz.f32 $0, $1;", "=f,f", x)


def div(x, y):
    """x/y within 2 ulp over the whole range."""
    return asm_f32("div.full.f32 $0, $1, $2;", "=f,f,f", x, y)


def fast_div(x, y):
    return x * reciprocal(y)


def maximum(x, y):
    """The larger; NaN if either is."""
    return asm_f32("max.NaN.f32 $0, $1, $2;", "=f,f,f", x, y)


def minimum(x, y):
    """The smaller; NaN if either is."""
    return asm_f32("min.NaN.f32 $0, $1, $2;", "=f,f,f", x, y)


def larger(x, y):
    """The larger; a NaN is passed over."""
    return cute.arch.fmax(Float32(x), Float32(y))


def where(condition, x, y):
    return Float32(cutlass.select_(condition, Float32(x), Float32(y)))


def where_int(condition, x, y):
    return Int32(cutlass.select_(condition, Int32(x), Int32(y)))


def fma(x, y, z):
    return asm_f32("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", x, y, z)


def magnitude(x):
    return asm_f32("abs.f32 $0, $1;", "=f,f", x)


def sign(x):
    """-1, 0 or 1; 0 for NaN."""
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))


def exp(x):
    return cute.math.exp(x)


def exp_nonpositive(x):
    """e^x where x is never positive: neither overflow nor infinity costs anything. Subnormal results are 0."""
    return asm_f32(EXP_NONPOSITIVE, "=f,f", x)


def fast_exp(x):
    return cute.math.exp(x, fastmath=True)


def exp2(x):
    return cute.math.exp2(x)


def fast_exp2(x):
    return cute.math.exp2(x, fastmath=True)


def expm1(x):
    return cute.math.expm1(x)


def log(x):
    return cute.math.log(x)


def fast_log(x):
    return cute.math.log(x, fastmath=True)


def log2(x):
    return cute.math.log2(x)


def fast_log2(x):
    return cute.math.log2(x, fastmath=True)


def log1p(x):
    return cute.math.log1p(x)


def sqrt(x):
    return asm_f32("sqrt.approx.f32 $0, $1;", "=f,f", x)


def rsqrt(x):
    return asm_f32("rsqrt.approx.f32 $0, $1;", "=f,f", x)


def tanh(x):
    return asm_f32(TANH, "=f,f", x)


def fast_tanh(x):
    return cute.math.tanh(x, fastmath=True)


def erf(x):
    """±1 exactly from 4 on."""
    return asm_f32(ERF, "=f,f", x)


def fast_erf(x):
    return cute.math.erf(x, fastmath=True)


def sigmoid(x):
    return reciprocal(1.0 + cute.math.exp(-x))


def fast_sigmoid(x):
    return reciprocal(1.0 + cute.math.exp2(x * -math.log2(math.e), fastmath=True))


def round_even(x):
    return asm_f32("cvt.rni.f32.f32 $0, $1;", "=f,f", x)


def floor(x):
    return asm_f32("cvt.rmi.f32.f32 $0, $1;", "=f,f", x)


def ceil(x):
    return asm_f32("cvt.rpi.f32.f32 $0, $1;", "=f,f", x)


def round_bfloat16(x):
    return Float32(x).to(BFloat16).to(Float32)


def round_float16(x):
    return Float32(x).to(Float16).to(Float32)


def _turns(x):
    """x as quarter turns (an int32) and a rest within an eighth of a turn: three-part reduction by π/2."""
    shifted = fma(x, 0.63661976337432861328125, 12582912.0)  # 1.5·2^23 leaves the rounded number in the low bits
    n = shifted - 12582912.0
    r = fma(n, -1.57079637050628662109375, x)
    r = fma(n, 4.371138828673793e-08, r)
    r = fma(n, 1.7151245100058819e-15, r)
    return integer(shifted), r


def _sine(quarter, r):
    z = r * r
    s = fma(fma(fma(z, 2.71831165e-06, -1.98393349e-04), z, 8.33332939e-03), z, -1.66666666e-01)
    s = fma(s * z, r, r)
    c = fma(fma(fma(z, 2.43904505e-05, -1.38867638e-03), z, 4.16666233e-02), z, -4.99999997e-01)
    c = fma(c, z, 1.0)
    y = where((quarter & 1) == 0, s, c)
    return where((quarter & 2) == 0, y, -y)


def sin(x):
    quarter, r = _turns(x)
    return _sine(quarter, r)


def cos(x):
    quarter, r = _turns(x)
    return _sine(quarter + 1, r)


def fast_sin(x):
    return cute.math.sin(x, fastmath=True)


def fast_cos(x):
    return cute.math.cos(x, fastmath=True)


# vectors ---------------------------------------------------------------------------------------------------------


class SpreadRow(RowVecLoad):
    """A row of 32-bit numbers that is shorter than the product's: each for two columns (half the width), or repeated.

    The vector is read through a layout that visits its numbers as often as they are needed; nothing is copied. A tile's
    columns must be whole periods.
    """

    def __init__(self, name: str, half: bool, period: int) -> None:
        super().__init__(name)
        self.half, self.period = half, period

    def config_key(self):
        return (self.half, self.period, VERSION)

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
