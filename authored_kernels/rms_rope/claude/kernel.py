"""GEMM with a delayed RMS row scale, then RoPE on adjacent column pairs with an interleaved cos/sin table."""

import coda
from coda.primitives import ColVector, Tile, pair, unpair


@coda.epilogue
def rms_rope(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
    cos_sin: Tile,  # (M, N)
):
    """Rows scaled by a finished norm statistic, then every pair of columns rotated."""
    even, odd = unpair(acc * rstd)
    c, s = unpair(cos_sin)
    return {"rotated": pair(even * c - odd * s, even * s + odd * c)}


kernel = rms_rope
