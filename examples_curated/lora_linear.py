"""A linear layer with a low-rank adapter: three GEMMs, and the sum in the last one's epilogue.

Computes: y = x @ w + bias + scale·(x @ down) @ up. The scale goes with the smallest matrix; the adapter's product is
    read beside the accumulator of the large GEMM.
Shapes: x (M, K), w (K, N), bias (N,), down (K, R), up (R, N) -> y (M, N).
Fusion: the sum of two products, and the bias, cost one read of (M, N) instead of two reads and a write more.
Numerics: what passes through memory is rounded: the low-rank part, which is small beside y. The large product is added
    unrounded; the other order would round it instead.
Constraints: none.
Lesson: a plan may call as many programs as its GEMMs allow, and `coda.matmul` where nothing follows a product. A result
    of an earlier call is a matrix like any input: `a` of the next GEMM, or a Tile beside it. Each program has the N
    of its own GEMM.
"""

import coda
from coda.primitives import RowVector, Tile

RUNG = 26
IDEA = "a plan of three GEMMs: results of earlier calls as operands of later ones, and a plain product"


@coda.epilogue
def scaled_down(
    acc,  # (M, R)
    *,
    scale: float = 1.0,
):
    """The input in the adapter's few dimensions."""
    return {"low": acc * scale}


@coda.epilogue
def adapted(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    delta: Tile,  # (M, N)
):
    """The large product with bias and adapter."""
    return {"y": acc + bias + delta}


@coda.plan
def lora_linear(
    x,  # (M, K)
    w,  # (K, N)
    bias,  # (N,)
    down,  # (K, R)
    up,  # (R, N)
    *,
    scale: float = 1.0,
):
    """A linear layer and its adapter."""
    low = scaled_down(x, down, scale=scale).low
    return {"y": adapted(x, w, bias=bias, delta=coda.matmul(low, up)).y}


kernel = lora_linear
