"""ReGLU backward behind the dgrad GEMM: pre-activation gradient, recomputed activation, row sums of z*dz."""

import coda
from coda.primitives import Tile, pair, row_sum, unpair, where


@coda.epilogue
def reglu_backward(
    acc,  # (M, N)
    z: Tile(width=2),  # (M, 2N), gate in the even columns and up in the odd ones
):
    """Gradient of interleaved gate and up, the activation again, and <z, dz> of each row."""
    gate, up = unpair(z)
    active = gate > 0
    opened = where(active, gate, 0.0)
    d_gate = where(active, acc * up, 0.0)
    d_up = acc * opened
    return {
        "dz": pair(d_gate, d_up),
        "h": opened * up,
        "zdz": row_sum(gate * d_gate + up * d_up),
    }


kernel = reglu_backward
