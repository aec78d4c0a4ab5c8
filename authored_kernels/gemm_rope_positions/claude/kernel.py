"""Rotary embedding of a projection, z = x @ w, with angles from integer positions and per-pair frequencies."""

import coda
from coda.primitives import ColVector, RowVector, cos, pair, sin, unpair


@coda.epilogue
def gemm_rope_positions(
    acc,  # (M, N)
    position: ColVector,  # (M,), int
    frequency: RowVector(width=0.5),  # (N/2,)
):
    """Every adjacent pair of columns turned by position times frequency."""
    angle = position * frequency
    c, s = cos(angle), sin(angle)
    even, odd = unpair(acc)
    return {"rotated": pair(even * c - odd * s, even * s + odd * c)}


kernel = gemm_rope_positions
