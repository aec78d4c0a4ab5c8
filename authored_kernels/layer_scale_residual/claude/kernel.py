"""GEMM with bias, layer scale and residual.

Computes: h = residual + (y @ w_o + bias)·diag(scale).
Shapes: y (M, K), w_o (K, N), bias (N,), scale (N,), residual (M, N) -> h (M, N).
Fusion: the product stays in registers; a separate kernel would write and read it once more, 2·M·N elements.
Numerics: in fp32, one rounding, at the store.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, Tile


@coda.epilogue
def layer_scale_residual(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    scale: RowVector,  # (N,)
    residual: Tile,  # (M, N)
):
    """Residual stream plus the scaled, biased product."""
    return {"h": residual + scale * (acc + bias)}


kernel = layer_scale_residual
