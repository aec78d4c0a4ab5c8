"""Device half: the functions of one element that generated epilogues call.

    split_* join_*          two 16-bit numbers in one 32-bit element: how matrices and rows of width 2 travel
    integer, to_float       an int32 that travels as the bits of an fp32
    exp … cos               maths, strict and fast; within about 1e-6 (sin, cos absolute up to |x| = 1e5) where strict
    ERF TANH …              what CUTLASS has no short form of, as PTX (`finishing/approximations.py`)

Every function here is known to a generated function by its name. Mypy leaves it alone: the code is traced by cute, whose
types are not Python's.
"""  # noqa: I002
# mypy: ignore-errors

import math
import struct

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32

from coda.backends.cutedsl.private import asm_f32, asm_f32_of_s32, asm_s32
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
