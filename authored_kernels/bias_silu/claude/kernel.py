"""Linear layer with SiLU, the pre-activation kept.

Computes: z = x @ w + bias, h = z·sigmoid(z).
Shapes: x (M, K), w (K, N), bias (N,) -> z (M, N), h (M, N).
Fusion: z is stored once for the backward pass and not read back to compute h: M·N elements saved.
Numerics: h is computed from the unrounded fp32 z; z and h are each rounded once, at the store.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, silu


@coda.epilogue
def bias_silu(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
):
    """Pre-activation with bias, and its SiLU."""
    z = acc + bias
    return {"z": z, "h": silu(z)}


kernel = bias_silu
