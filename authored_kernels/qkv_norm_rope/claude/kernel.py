"""Packed QKV projection: per-head RMSNorm and rotary embedding of queries and keys, values passed through.

Computes: z = x @ w with N = 3·T columns. Every head of 64 columns of the first 2·T is divided by its root mean square,
    multiplied by gamma_q (columns below T) or gamma_k (T … 2·T-1), and each adjacent pair is turned by (cos, sin) of
    the table; the last T columns are z itself.
Shapes: x (M, K), w (K, N) with N a multiple of 192, gamma_q (64,), gamma_k (64,), cos_sin (M, N) -> qkv (M, N).
Fusion: product, norm and rotation stay in registers; the table is the only matrix read.
Numerics: everything in fp32 from the accumulator, one rounding at the store. Values are chosen, not multiplied by one.
Constraints: N a multiple of 192.
"""

import coda
from coda.primitives import (
    RowVector,
    Tile,
    column_index,
    columns,
    pair,
    rsqrt,
    segment_mean,
    unpair,
    where,
)

HEAD = 64


@coda.epilogue
def qkv_norm_rope(
    acc,  # (M, N)
    gamma_q: RowVector(period=HEAD),  # (HEAD,)
    gamma_k: RowVector(period=HEAD),  # (HEAD,)
    cos_sin: Tile,  # (M, N)
    *,
    eps: float = 1e-6,
):
    """Queries and keys normalised head by head and rotated, values as they are."""
    part = columns() // 3
    column = column_index()
    gain = where(column < part, gamma_q, gamma_k)
    normed = acc * rsqrt(segment_mean(acc * acc, HEAD) + eps) * gain
    even, odd = unpair(normed)
    cos, sin = unpair(cos_sin)
    rotated = pair(even * cos - odd * sin, even * sin + odd * cos)
    return {"qkv": where(column < 2 * part, rotated, acc)}


kernel = qkv_norm_rope
