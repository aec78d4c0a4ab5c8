"""Squared ReLU backward behind the dgrad GEMM: dz = 2·D·relu(z), h = relu(z)² again, dbias = column sums of dz."""

import coda
from coda.primitives import Tile, col_sum, relu


@coda.epilogue
def squared_relu_backward(
    acc,  # (M, N)
    z: Tile,  # (M, N)
):
    """Pre-activation gradient, recomputed activation, and the bias gradient."""
    r = relu(z)
    dz = 2.0 * acc * r
    return {"dz": dz, "h": r * r, "dbias": col_sum(dz)}


kernel = squared_relu_backward
