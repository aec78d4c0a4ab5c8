"""Functions of one number that generated kernels call, in plain Triton: the same code on a GPU and in the interpreter.

    exp expm1 log1p sigmoid tanh erf sin cos  within about 1e-6 (relative; sin, cos absolute up to |x| = 1e5)
    exp_nonpositive reciprocal                the same where nothing overflows, or no number is subnormal (`cheaper.py`)
    fast_exp fast_sigmoid fast_tanh           what a program with fast_math=True gets
    round_even sign floor_div floor_mod       PyTorch's rounding, sign and integer division
    scalar                                    an operand that may live on the device
    to_bf16 encode_fp8 decode_fp8             narrow floats where the hardware or the interpreter has no exact conversion

Triton's own `exp` multiplies by log2(e) and loses |x| / 2^24 in doing so; its `log` and `log2` are accurate and used as they
are; its `erf` and `tanh` are too, and take twice the instructions of `approximations.py`. `sin` and `cos` are written here
because the library's versions reserve stack for huge arguments.
"""

# Triton functions: arguments are tensors of the kernel language, which have no Python types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, type-arg"

from __future__ import annotations

import triton
import triton.language as tl

from coda.backends.finishing import approximations

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether this process interprets kernels; fixed when Triton was imported."""

LOG2_E = tl.constexpr(approximations.LOG2_E)  # log2(e) in fp32 …
LOG2_E_REST = tl.constexpr(1.9259629911266175e-08)  # … and what is missing
LN2 = tl.constexpr(approximations.LN2)
LN2_HIGH = tl.constexpr(0.693145751953125)  # few bits: its product with a small integer is exact
LN2_LOW = tl.constexpr(1.428606820309417e-06)
HALF_PI_1 = tl.constexpr(1.57079637050628662109375)
HALF_PI_2 = tl.constexpr(-4.371138828673793e-08)
HALF_PI_3 = tl.constexpr(-1.7151245100058819e-15)
TWO_OVER_PI = tl.constexpr(0.63661976337432861328125)
ROUNDER = tl.constexpr(12582912.0)  # 1.5 · 2^23: adding it leaves a rounded integer in the low bits
WHOLE = tl.constexpr(8388608.0)  # 2^23: from here on every fp32 is an integer
INFINITY = tl.constexpr(float("inf"))
SMALLEST = tl.constexpr(2.0**-126)  # of the normal fp32 numbers
SIGN = tl.constexpr(-(2**31))
LOWEST = tl.constexpr(approximations.LOWEST)
ERF_SPLIT = tl.constexpr(approximations.ERF_SPLIT)
FAR_0, FAR_1, FAR_2, FAR_3, FAR_4, FAR_5 = map(tl.constexpr, approximations.ERF_FAR)
NEAR_0, NEAR_1, NEAR_2, NEAR_3 = map(tl.constexpr, approximations.ERF_NEAR)
TANH_SPLIT = tl.constexpr(approximations.TANH_SPLIT)
TANH_1, TANH_2, TANH_3 = map(tl.constexpr, approximations.TANH_NEAR)


@triton.jit
def scalar(x, DTYPE: tl.constexpr):
    """A number, or a 0-d tensor that is read on the device."""
    if x.dtype.is_ptr():
        return tl.load(x).to(DTYPE)
    else:
        return tl.cast(x, DTYPE)


@triton.jit
def fma(x, y, z):
    """x·y + z, rounded once. The interpreter's own rounds twice."""
    if INTERPRETED:
        return (x.to(tl.float64) * y + z).to(tl.float32)
    else:
        return tl.fma(x, y, z)


@triton.jit
def exp(x):
    """e^x: 2^(x·log2 e) with the product's rounding error put back."""
    power = x * LOG2_E
    missing = fma(x, LOG2_E_REST, fma(x, LOG2_E, -power))
    missing = tl.where(tl.abs(power) < 256.0, missing, 0.0)
    return tl.exp2(power) * fma(missing, LN2, 1.0)


@triton.jit
def expm1(x):
    """e^x - 1, also for tiny x: x = n·ln 2 + r, a polynomial in r, scaled by 2^n."""
    x = tl.where(x < -88.0, -88.0, x)
    shifted = fma(tl.minimum(x, 88.0), LOG2_E, ROUNDER)
    n = shifted - ROUNDER
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(r, 1.0 / 5040, 1.0 / 720)
    p = fma(p, r, 1.0 / 120)
    p = fma(p, r, 1.0 / 24)
    p = fma(p, r, 1.0 / 6)
    p = fma(p, r, 0.5)
    p = fma(p * r, r, r)
    scale = ((shifted.to(tl.int32, bitcast=True) + 127) << 23).to(tl.float32, bitcast=True)
    return fma(scale, p, scale - 1.0)


@triton.jit
def log1p(x):
    """log(1 + x), also for tiny x: the rounding of 1 + x is divided out."""
    u = x + 1.0
    d = u - 1.0
    y = tl.log(u) * (x / tl.where(d == 0.0, 1.0, d))
    return tl.where(d == 0.0, x, tl.where(u == INFINITY, u, y))


@triton.jit
def reciprocal(x):
    """1/x to the last bit but one, 0 beyond 2^126: a division costs eight instructions more."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + exp(-x))


@triton.jit
def power(x):
    """2^x within two units in the last place; what would be subnormal is 0."""
    if INTERPRETED:
        y = tl.exp2(x)
        return tl.where(y < SMALLEST, 0.0, y)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def exp_nonpositive(x):
    """e^x where x is never positive."""
    x = tl.maximum(x, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    y = x * LOG2_E
    e = power(y)
    return fma(e, fma(y, -LN2, x), e)


@triton.jit
def odd(x, near, far, SPLIT: tl.constexpr):
    """`near` below the split, `far`, which is not negative, with the sign of x from there on. NaN is near."""
    bits = far.to(tl.int32, bitcast=True) | (x.to(tl.int32, bitcast=True) & SIGN)
    return tl.where(tl.abs(x) >= SPLIT, bits.to(tl.float32, bitcast=True), near)


@triton.jit
def tanh(x):
    s = x * x
    near = x * fma(s, fma(s, fma(s, TANH_3, TANH_2), TANH_1), 1.0)
    far = fma(reciprocal(power(tl.abs(x) * (2 * LOG2_E)) + 1.0), -2.0, 1.0)
    return odd(x, near, far, TANH_SPLIT)


@triton.jit
def erf(x):
    s = x * x
    near = x * fma(s, fma(s, fma(s, NEAR_3, NEAR_2), NEAR_1), NEAR_0)
    size = tl.abs(x)
    q = fma(size, fma(size, fma(size, FAR_5, FAR_4), FAR_3), FAR_2)
    far = 1.0 - power(fma(size, fma(size, q, FAR_1), FAR_0))
    return odd(x, near, far, ERF_SPLIT)


@triton.jit
def fast_exp(x):
    return tl.exp(x)


@triton.jit
def fast_sigmoid(x):
    return reciprocal(1.0 + tl.exp(-x))


@triton.jit
def fast_tanh(x):
    return fma(reciprocal(1.0 + tl.exp(-2.0 * x)), 2.0, -1.0)


@triton.jit
def quarter_turns(x):
    """x as a number of quarter turns (in the low bits of an integer) and a rest of at most an eighth of a turn."""
    shifted = fma(x, TWO_OVER_PI, ROUNDER)
    n = shifted - ROUNDER
    r = fma(n, -HALF_PI_3, fma(n, -HALF_PI_2, fma(n, -HALF_PI_1, x)))
    r = tl.minimum(tl.maximum(r, -0.79), 0.79) + (x - x)  # bounded beyond the range; NaN for infinities
    return shifted.to(tl.int32, bitcast=True), r


@triton.jit
def sine_of_turns(quarter, r):
    z = r * r
    s = fma(fma(fma(z, 2.71831165e-06, -1.98393349e-04), z, 8.33332939e-03), z, -1.66666666e-01)
    s = fma(s * z, r, r)
    c = fma(fma(fma(z, 2.43904505e-05, -1.38867638e-03), z, 4.16666233e-02), z, -4.99999997e-01)
    c = fma(c, z, 1.0)
    y = tl.where((quarter & 1) == 0, s, c)
    return tl.where((quarter & 2) == 0, y, -y)


@triton.jit
def sin(x):
    quarter, r = quarter_turns(x)
    return sine_of_turns(quarter, r)


@triton.jit
def cos(x):
    quarter, r = quarter_turns(x)
    return sine_of_turns(quarter + 1, r)


@triton.jit
def round_even(x):
    """To the nearest integer, halves to the even one."""
    size = tl.abs(x)
    y = (size + WHOLE) - WHOLE
    return tl.where(size < WHOLE, tl.where(x < 0.0, -y, y), x)


@triton.jit
def sign(x):
    """-1, 0 or 1 in the type of x; 0 for NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def floor_div(x, y):
    """Integer division rounded down; Triton's own rounds towards zero."""
    inexact = (x % y != 0) & ((x < 0) != (y < 0))
    return x // y - inexact.to(tl.int64)


@triton.jit
def floor_mod(x, y):
    """The remainder that belongs to `floor_div`: it has the sign of y."""
    r = x % y
    return tl.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


@triton.jit
def to_bf16(x):
    """Round to nearest even. The interpreter's conversion cuts off, so it is given a number that needs no rounding."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x).to(tl.bfloat16)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def clip(x, LIMIT: tl.constexpr):
    """Into [-LIMIT, LIMIT]; NaN stays NaN."""
    return tl.where(x > LIMIT, LIMIT, tl.where(x < -LIMIT, -LIMIT, x))


@triton.jit
def encode_fp8(x, MANTISSA: tl.constexpr):
    """fp32 to the byte of e4m3fn (MANTISSA = 3) or e5m2 (2), nearest even; too large is NaN or infinity."""
    BIAS: tl.constexpr = 7 if MANTISSA == 3 else 15
    DROP: tl.constexpr = 23 - MANTISSA
    bits = x.to(tl.int32, bitcast=True)
    sign_bit = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    normal = ((size + ((1 << (DROP - 1)) - 1) + ((size >> DROP) & 1)) >> DROP) - ((127 - BIAS) << MANTISSA)
    step: tl.constexpr = 2.0 ** (
        24 - BIAS - MANTISSA
    )  # added to a small number, it leaves multiples of the subnormal step
    small = (tl.abs(x) + step).to(tl.int32, bitcast=True) - ((127 + 24 - BIAS - MANTISSA) << 23)
    code = tl.where(tl.abs(x) < 2.0 ** (1 - BIAS), small, normal)
    if MANTISSA == 3:
        code = tl.minimum(code, 0x7F)
    else:
        code = tl.minimum(code, 0x7C)
    code = tl.where(x == x, code, 0x7F)
    return (code | sign_bit).to(tl.uint8)


@triton.jit
def decode_fp8(byte, MANTISSA: tl.constexpr):
    """The byte of e4m3fn (MANTISSA = 3) or e5m2 (2) to fp32, exactly, by way of fp16."""
    code = byte.to(tl.int32)
    if MANTISSA == 2:
        return (code << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        half = (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
        return tl.where((code & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
