"""GEMM with rotary embedding of adjacent column pairs, cosines and sines from an interleaved table.

Computes: z = x @ w; with c, s = cos_sin[:, 2k], cos_sin[:, 2k+1]: rotated[:, 2k] = z[:, 2k]·c - z[:, 2k+1]·s and
    rotated[:, 2k+1] = z[:, 2k]·s + z[:, 2k+1]·c.
Shapes: x (M, K), w (K, N) with N even, cos_sin (M, N) -> rotated (M, N).
Fusion: z stays in registers; a separate rotation would write and read it once more, 2·M·N elements.
Numerics: the rotation is of the unrounded fp32 accumulator; the result is rounded once, at the store.
Constraints: N even.
"""

import coda
from coda.primitives import Tile, pair, unpair


@coda.epilogue
def gemm_rope(
    acc,  # (M, N)
    cos_sin: Tile,  # (M, N)
):
    """The product, every adjacent pair of columns rotated by the angle of its table entry."""
    even, odd = unpair(acc)
    c, s = unpair(cos_sin)
    return {"rotated": pair(even * c - odd * s, even * s + odd * c)}


kernel = gemm_rope
