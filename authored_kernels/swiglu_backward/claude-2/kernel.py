"""SwiGLU backward behind the data gradient: gate and up gradients, recomputed activation, row sums of z·dz."""

import coda
from coda.primitives import Tile, pair, row_sum, sigmoid, unpair


@coda.epilogue
def swiglu_backward(
    acc,  # (M, N)
    z: Tile(width=2),  # (M, 2N)
):
    """Gradient of the interleaved pre-activation, the activation again, and <z, dz> of each row."""
    gate, up = unpair(z)
    s = sigmoid(gate)
    activated = gate * s
    slope = s + activated * (1 - s)
    weighted = acc * up
    return {
        "dz": pair(weighted * slope, acc * activated),
        "h": activated * up,
        "zdz": row_sum(weighted * (activated + gate * slope)),
    }


kernel = swiglu_backward
