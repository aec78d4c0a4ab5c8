"""Rotary embedding backward after attention, angles from positions, with the statistic of the norm in front.

Computes: with θ = position[i]·frequency[k], every pair of dy is turned back: dz0 = dy0·cos θ + dy1·sin θ, dz1 = dy1·cos
    θ - dy0·sin θ; zdz = Σ_j rotated·dy. A rotation is orthogonal: <z, dz> = <rotated, dy>, so the unrotated z need
    not be kept.
Shapes: dy (M, N) with N even, rotated (M, N), position (M,) int, frequency (N/2,) fp32 -> dz (M, N), zdz (M,) fp32.
Fusion: one read of dy serves rotation and statistic. No table of angles is read: M + N/2 numbers instead of M·N.
Numerics: positions are exact integers and the angle fp32; in bf16 positions 256 and 257 would be equal. zdz is of
    unrounded products.
Constraints: N even.
Lesson: col times row is a tile without a read: ColVector and RowVector(width=0.5) meet at the width of `unpair`. `dtype="int"`
    insists on what the bound tensor would decide anyway. The inverse of an orthogonal map is its transpose.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, cos, pair, row_sum, sin, unpair

RUNG = 24
IDEA = "an outer product in registers instead of a table; a pointwise backward with its row statistic"


@coda.pointwise
def rope_backward(
    dy: Tile,  # (M, N)
    rotated: Tile,  # (M, N)
    position: ColVector(dtype="int"),  # (M,)
    frequency: RowVector(width=0.5),  # (N/2,)
):
    """Gradient before the rotation, and <z, dz> of each row."""
    angle = position * frequency
    c, s = cos(angle), sin(angle)
    even, odd = unpair(dy)
    return {"dz": pair(even * c + odd * s, odd * c - even * s), "zdz": row_sum(rotated * dy)}


kernel = rope_backward
