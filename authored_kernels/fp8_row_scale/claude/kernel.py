"""GEMM stored in fp8 with a delayed row scale, and the largest magnitude of each row.

Computes: z = x @ w, q = clip(z·448/limit, -448, 448) in e4m3, row_amax[i] = max_j |z[i, j]|.
Shapes: x (M, K), w (K, N), limit (M,) fp32 -> q (M, N) e4m3, row_amax (M,) fp32.
Fusion: z never leaves registers; the maximum rides along.
Numerics: scaled and clipped in fp32, rounded once, at the store. The maximum is of the unrounded, unclipped z.
Constraints: limit positive; any M, N and K.
"""

import coda
from coda.primitives import ColVector, clamp, row_absmax, store

LARGEST = 448.0


@coda.epilogue
def fp8_row_scale(
    acc,  # (M, N)
    limit: ColVector,  # (M,)
):
    """The product in fp8 under its row's scale, and what a later scale is chosen from."""
    scaled = clamp(acc * (LARGEST / limit), -LARGEST, LARGEST)
    return {
        "q": store(scaled, dtype="float8_e4m3fn"),
        "row_amax": row_absmax(acc),
    }


kernel = fp8_row_scale
