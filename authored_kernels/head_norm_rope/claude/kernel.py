"""GEMM, then RMSNorm over every head of 64 columns, then rotary embedding of adjacent pairs."""

import coda
from coda.primitives import ColVector, RowVector, cos, pair, rsqrt, segment_mean, sin, unpair

HEAD = 64
HALF = 32


@coda.epilogue
def head_norm_rope(
    acc,  # (M, N)
    gamma: RowVector(period=HEAD),  # (64,)
    position: ColVector,  # (M,), int
    frequency: RowVector(width=0.5, period=HALF),  # (32,)
    *,
    eps: float = 1e-6,
):
    """Heads normalised and gained, then every adjacent pair turned by position times frequency."""
    n = acc * rsqrt(segment_mean(acc * acc, HEAD) + eps) * gamma
    angle = position * frequency
    c, s = cos(angle), sin(angle)
    even, odd = unpair(n)
    return {"rotated": pair(even * c - odd * s, even * s + odd * c)}


kernel = head_norm_rope
