"""Sigmoid gate behind its projection: gate = sigmoid(x @ w + bias) and gated = value * gate, the gate kept.

Computes: gate = sigmoid(x @ w + bias), gated = value·gate. Everything is elementwise, so it moves behind the GEMM as
    it is.
Shapes: x (M, K), w (K, N), bias (N,), value (M, N) -> gated (M, N), gate (M, N).
Fusion: the pre-activation stays in registers, and the gate, stored for the backward pass, is not read back.
Numerics: gated is computed from the unrounded fp32 gate; each result is rounded once, at its store.
Constraints: none; any M, N and K.
"""

import coda
from coda.primitives import RowVector, Tile, sigmoid


@coda.epilogue
def sigmoid_gate(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    value: Tile,  # (M, N)
):
    """Gated value, and the gate for the backward pass."""
    gate = sigmoid(acc + bias)
    return {"gated": value * gate, "gate": gate}


kernel = sigmoid_gate
