"""SwiGLU behind the gate-and-up projection, the pre-activation kept.

Computes: z = x @ w and h[:, k] = silu(z[:, 2k])·z[:, 2k+1]. The columns of w are permuted once, when the weight is
    laid out, so that gate k and up k are neighbours: the product of the two is then local to one pair of the tile.
Shapes: x (M, K), w (K, N) -> z (M, N), h (M, N/2).
Fusion: z leaves the chip once, for the backward pass, and is not read back to compute h: M·N elements saved.
Numerics: h is computed from the fp32 accumulator, not from the rounded z; each result is rounded once.
Constraints: N even.
Lesson: `unpair` splits a tile into its even and odd columns, each of half the width, and a result of half the width
    is stored as (M, N/2). Columns that are far apart cannot meet in an epilogue; lay the weight out so that they
    are near.
"""

import coda
from coda.primitives import silu, unpair

RUNG = 3
IDEA = "adjacent column pairs: unpair, and a result of half the width"


@coda.epilogue
def gemm_swiglu(
    acc,  # (M, N)
):
    """Pre-activation and gated activation of interleaved gate and up columns."""
    gate, up = unpair(acc)
    return {"z": acc, "h": silu(gate) * up}


kernel = gemm_swiglu
