"""Linear layer with tanh GELU: z = x @ w + bias and h = gelu(z) in its tanh form, z kept for the backward pass.

Shapes: x (M, K), w (K, N), bias (N,) -> z (M, N), h (M, N).
"""

import coda
from coda.primitives import RowVector, gelu


@coda.epilogue
def bias_gelu_tanh(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
):
    """Pre-activation and its tanh GELU, both from the fp32 accumulator."""
    z = acc + bias
    return {"z": z, "h": gelu(z, approximate="tanh")}


kernel = bias_gelu_tanh
