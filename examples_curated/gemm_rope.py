"""Rotary embedding of adjacent pairs, angles from a full table.

Computes: with z = x @ w and (c, s) = cos_sin[i, 2k], cos_sin[i, 2k+1]: (z0, z1) becomes (z0·c - z1·s, z0·s + z1·c)
    for every pair of neighbouring columns. Weight columns are permuted from rotate-half to adjacent order once, so
    that a rotation is local to a pair.
Shapes: x (M, K), w (K, N), cos_sin (M, N) -> rotated (M, N).
Fusion: the unrotated product stays in registers, 2·M·N elements saved; the table is read beside it, subtile by
    subtile.
Numerics: rotated in fp32 and rounded once. A table in bf16 holds angles to 1/256; the angles themselves must have
    been computed in fp32, since neighbouring positions are equal in bf16 from 256 on.
Constraints: N even.
Lesson: a Tile operand is a whole matrix read while the accumulator is in registers: the one kind of traffic that
    costs. `unpair` works on operands too, and `pair` interleaves two halves into a tile of full width.
"""

import coda
from coda.primitives import Tile, pair, unpair

RUNG = 4
IDEA = "a matrix read beside the accumulator, and pair to put two halves together"


@coda.epilogue
def gemm_rope(
    acc,  # (M, N)
    cos_sin: Tile,  # (M, N)
):
    """The product with each adjacent pair of columns rotated."""
    even, odd = unpair(acc)
    cos, sin = unpair(cos_sin)
    return {"rotated": pair(even * cos - odd * sin, even * sin + odd * cos)}


kernel = gemm_rope
