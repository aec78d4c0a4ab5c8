"""RoPE backward: the gradient rotated back pair by pair, and <z, dz> of each row.

Computes: with θ = position[i]·frequency[k]: dz[i, 2k] = dy[i, 2k]·cos θ + dy[i, 2k+1]·sin θ, dz[i, 2k+1] = dy[i,
    2k+1]·cos θ - dy[i, 2k]·sin θ, and zdz = Σ_j rotated·dy, which equals Σ z·dz since a rotation is orthogonal.
Shapes: dy (M, N), rotated (M, N), position (M,) int, frequency (N/2,) fp32 -> dz (M, N), zdz (M,) fp32.
Fusion: dy is read once for both results, and no table of angles exists.
Numerics: positions are integers and angles fp32; dz is rounded once, zdz is a sum of unrounded products.
Constraints: N even.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, cos, pair, row_sum, sin, unpair


@coda.pointwise
def rope_backward(
    dy: Tile,  # (M, N)
    rotated: Tile,  # (M, N)
    position: ColVector,  # (M,), int
    frequency: RowVector(width=0.5),  # (N/2,)
):
    """Gradient before the rotation, and its product with the unrotated matrix, summed over each row."""
    angle = position * frequency
    c, s = cos(angle), sin(angle)
    even, odd = unpair(dy)
    return {
        "dz": pair(even * c + odd * s, odd * c - even * s),
        "zdz": row_sum(rotated * dy),
    }


kernel = rope_backward
