"""Linear layer with bias and squared ReLU, the pre-activation kept for the backward pass.

Computes: z = x @ w + bias and h = max(z, 0)².
Shapes: x (M, K), w (K, N), bias (N,) -> z (M, N), h (M, N).
Fusion: z leaves the chip once and is not read back to compute h: M·N elements saved.
Numerics: h is computed from the unrounded fp32 z; each result is rounded once, at the store.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, relu


@coda.epilogue
def bias_squared_relu(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
):
    """Pre-activation and squared ReLU of the biased product."""
    z = acc + bias
    r = relu(z)
    return {"z": z, "h": r * r}


kernel = bias_squared_relu
