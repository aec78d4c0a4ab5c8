"""Linear layer with exact GELU, the pre-activation kept.

Computes: z = x @ w + bias and h = z·Φ(z) with Φ(t) = ½(1 + erf(t/√2)). Both steps are elementwise, so they move
    behind the GEMM as they are.
Shapes: x (M, K), w (K, N), bias (N,) -> z (M, N), h (M, N).
Fusion: z leaves the chip once, for the backward pass, and is not read back to compute h: M·N elements saved.
Numerics: h is computed from the unrounded fp32 z; z and h are each rounded once, at the store.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, gelu


@coda.epilogue
def bias_gelu(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
):
    """Pre-activation and its exact GELU."""
    z = acc + bias
    return {"z": z, "h": gelu(z)}


kernel = bias_gelu
