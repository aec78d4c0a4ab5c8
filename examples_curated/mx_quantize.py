"""Block quantisation to fp8 with power-of-two scales (the MX layout), without a GEMM.

Computes: every block of 32 neighbouring columns gets scale = 2^e with the smallest e for which the block's largest
    magnitude fits into e4m3 (448), and q = fp8(x / scale). Dequantised, x ≈ q·scale.
Shapes: x (M, N) with N a multiple of 32 -> q (M, N) e4m3, scale (M, N/32) fp32.
Fusion: maximum, scale and rounding in one read of x; a pass for the maxima of its own would read x twice.
Numerics: a power of two divides without rounding, so q is rounded once. Rounding e up means that nothing saturates;
    for magnitudes within 1e-6 of 448·2^e either neighbour of e is right. e stays in -126…126, so an all-zero block
    gets the scale 2^-126 and zeros, and neither scale nor reciprocal is subnormal.
Constraints: N a multiple of 32.
Lesson: @coda.pointwise is the same vocabulary without `acc`; its first Tile decides M, N and the default dtype. A
    segment value multiplies the tile that it came from and is stored as (M, N/size).
"""

import coda
from coda.primitives import Tile, ceil, clamp, exp2, log2, segment_absmax, store

RUNG = 17
IDEA = "a program without a GEMM, and a segment value stored as its own small matrix"
BLOCK = 32
LARGEST = 448.0


@coda.pointwise
def mx_quantize(
    x: Tile,  # (M, N)
):
    """Blocks of 32 columns in fp8, and their power-of-two scales."""
    exponent = clamp(ceil(log2(segment_absmax(x, BLOCK) / LARGEST)), -126, 126)
    return {"q": store(x * exp2(-exponent), dtype="float8_e4m3fn"), "scale": exp2(exponent)}


kernel = mx_quantize
