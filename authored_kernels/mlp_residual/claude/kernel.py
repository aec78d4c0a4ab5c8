"""Gated MLP with residual: stream = residual + (silu(gate)·up) @ w_2, gate and up interleaved columns of x @ w_1.

Computes: z = x @ w_1, h[:, k] = silu(z[:, 2k])·z[:, 2k+1], stream = residual + h @ w_2.
Shapes: x (M, K), w_1 (K, 2P), w_2 (P, N), residual (M, N) -> stream (M, N).
Fusion: z stays in registers, only h (M, P) passes through memory; the residual is read beside the second accumulator.
Numerics: h is computed from the fp32 accumulator and rounded once; stream is summed in fp32 and rounded once.
Constraints: none; w_1 has an even number of columns.
"""

import coda
from coda.primitives import Tile, silu, unpair


@coda.epilogue
def gated(
    acc,  # (M, 2P)
):
    """Gated activation of interleaved gate and up columns; the pre-activation is not stored."""
    gate, up = unpair(acc)
    return {"h": silu(gate) * up}


@coda.epilogue
def added(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
):
    """The down-projection added to the residual stream."""
    return {"stream": residual + acc}


@coda.plan
def mlp_residual(
    x,  # (M, K)
    w_1,  # (K, 2P)
    w_2,  # (P, N)
    residual,  # (M, N)
):
    """Up-projection with SwiGLU, then down-projection with the residual."""
    hidden = gated(x, w_1)
    return {"stream": added(hidden.h, w_2, residual=residual).stream}


kernel = mlp_residual
