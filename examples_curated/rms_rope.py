"""The delayed row scale of a norm, then a rotary embedding.

Computes: z = diag(rstd)·(q @ w), rotated pair by pair with (c, s) from the table. Scale and rotation are both
    linear and the scale is the same for both columns of a pair, so they commute: the order is free, and the
    cheapest one is taken.
Shapes: q (M, K), w (K, N), rstd (M,) fp32, cos_sin (M, N) -> rotated (M, N).
Fusion: neither the product nor the scaled product leaves the chip: two passes of 2·M·N elements become none.
Numerics: in fp32, one rounding. Scaling the accumulator is one multiplication per element; scaling cos and sin
    instead would be as many.
Constraints: N even.
Lesson: a helper function over values keeps an epilogue readable and adds nothing to the program. Nothing about a
    helper is special: it is run while the program is traced.
"""

import coda
from coda.primitives import ColVector, Tile, pair, unpair

RUNG = 6
IDEA = "helper functions over values; linear maps and row scales commute"


def rotate(
    v,  # (M, N)
    cos_sin,  # (M, N)
):
    """Each adjacent pair of columns turned by its angle."""
    even, odd = unpair(v)
    cos, sin = unpair(cos_sin)
    return pair(even * cos - odd * sin, even * sin + odd * cos)


@coda.epilogue
def rms_rope(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
    cos_sin: Tile,  # (M, N)
):
    """The scaled product with each adjacent pair of columns rotated."""
    return {"rotated": rotate(acc * rstd, cos_sin)}


kernel = rms_rope
