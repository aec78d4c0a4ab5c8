"""SwiGLU backward behind the down-projection's data gradient, the activation recomputed.

Computes: with D = dy @ w2_t and the saved pairs (g, u) of z: dg = D·u·(σ + g·σ·(1 - σ)) and du = D·g·σ with σ =
    sigmoid(g), interleaved like z; h = g·σ·u again, for the weight gradient; zdz = Σ (g·dg + u·du). SwiGLU is local
    to a pair, so its Jacobian is block-diagonal and its backward is an epilogue of the GEMM that makes D.
Shapes: dy (M, K), w2_t (K, N), z (M, 2N) -> dz (M, 2N), h (M, N), zdz (M,) fp32.
Fusion: D stays in registers (2·M·N elements), and h need not be kept from the forward pass (M·N elements of
    memory).
Numerics: everything in fp32 from the saved z; dz and h are each rounded once, zdz is of the unrounded dz and a raw
    sum, so that the norm behind it divides by its own width.
Constraints: none; N is the width of h and z has twice as many columns.
Lesson: Tile(width=2) brings two columns per element of the accumulator. Recomputing beats saving: a map costs
    registers, a matrix costs bandwidth. And Σ z·dz is the statistic that the norm in front of this layer needs, one
    GEMM early (see rms_backward).
"""

import coda
from coda.primitives import Tile, pair, row_sum, sigmoid, unpair

RUNG = 21
IDEA = "a backward pass: a tile of twice the width, recomputation, and a statistic for the next kernel"


@coda.epilogue
def swiglu_backward(
    acc,  # (M, N)
    z: Tile(width=2),  # (M, 2N)
):
    """dZ, recomputed activation and <Z, dZ> from dH = dY @ W2^T and the saved, interleaved pre-activation Z."""
    g, u = unpair(z)
    s = sigmoid(g)
    y = g * s
    dg, du = acc * u * (s + y * (1 - s)), acc * y
    return {"dz": pair(dg, du), "h": y * u, "zdz": row_sum(g * dg + u * du)}


kernel = swiglu_backward
