"""GEMM stored in fp8 with one scale for each row and block of 128 columns.

Computes: z = x @ w, scale[i, t] = max(max_j |z[i, j]|, 1e-12) / 448 over the 128 columns of block t, and
    q[i, j] = z[i, j] / scale[i, j div 128].
Shapes: x (M, K), w (K, N) with N a multiple of 128 -> q (M, N) e4m3, scale (M, N/128) fp32.
Fusion: a block lies inside one tile, so its maximum is tile-local and divides the tile that it came from; z is neither
    written nor read.
Numerics: the scale is of the unrounded fp32 product; q is rounded once, at the store, and saturates at 448. The floor
    1e-12 keeps an all-zero block at zeros instead of NaN.
Constraints: N a multiple of 128.
"""

import coda
from coda.primitives import maximum, segment_absmax, store

BLOCK = 128
LARGEST = 448.0
FLOOR = 1e-12


@coda.epilogue
def fp8_block_scale(
    acc,  # (M, N)
):
    """The product in fp8, and the scale of each block of columns."""
    scale = maximum(segment_absmax(acc, BLOCK), FLOOR) / LARGEST
    return {"q": store(acc / scale, dtype="float8_e4m3fn"), "scale": scale}


kernel = fp8_block_scale
