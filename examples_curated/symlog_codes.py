"""Symmetric logarithm of a matrix and its bucket numbers, without a GEMM.

Computes: y = sign(x)·log(1 + |x|), rounded to bf16 before it is used further; code = round(y/step) as a whole number,
    bucket = max(⌊y/step⌋, 0), which is relu of the floor, and the mean code of every row.
Shapes: x (M, N) -> y (M, N), code (M, N) fp32, bucket (M, N) fp32, level (M,) fp32.
Fusion: one read of x, three stores.
Numerics: log1p keeps small magnitudes exact where log(1 + |x|) would lose them. `cast` makes code and bucket belong to
    the y that is stored in bf16, not to a more precise one that nobody can read back. round goes half to even.
Constraints: none.
Lesson: everything is rounded once, at the store; `cast` is the way to round in between, where two outputs must agree.
"""

import coda
from coda.primitives import Scalar, Tile, abs, cast, floor, log1p, relu, round, row_mean, sign, store

RUNG = 19
IDEA = "a rounding in between, so that outputs agree with a stored value"


@coda.pointwise
def symlog_codes(
    x: Tile,  # (M, N)
    step: Scalar,  # ()
):
    """Symmetric logarithm, its code and bucket, the mean code of each row."""
    y = cast(sign(x) * log1p(abs(x)), "bfloat16")
    code = round(y / step)
    return {
        "y": store(y, dtype="bfloat16"),
        "code": store(code, dtype="float32"),
        "bucket": store(relu(floor(y / step)), dtype="float32"),
        "level": row_mean(code),
    }


kernel = symlog_codes
