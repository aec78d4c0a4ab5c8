"""Output gate of a retention layer: every head of the retained values normalised, then gated by a projection.

Computes: gate = x @ w, and for every head of HEAD columns of v: n = (v - mean)/√(variance + eps)·gain, mixed =
    silu(gate)·n. Mean and variance are of one row and one head.
Shapes: x (M, K), w (K, N) with N a multiple of HEAD, v (M, N), gain (HEAD,) -> mixed (M, N), gate (M, N).
Fusion: the normalised values, M·N elements, are neither written nor read; gate leaves once, for the backward pass.
Numerics: the variance is the mean of squared differences, without the cancellation of E[v²] - E[v]²; two passes over a
    head cost nothing while it is in registers.
Constraints: HEAD divides N.
Lesson: segment values may be used at once and again: a second segment reduction may stand on the first. They are taken
    of any tile, of one that was read as well as of the accumulator; periodic gains serve every head alike.
"""

import coda
from coda.primitives import RowVector, Tile, rsqrt, segment_mean, silu

RUNG = 16
IDEA = "a segment reduction of a segment reduction: centre, then scale, groups of columns of an operand"
HEAD = 64


@coda.epilogue
def retention_gate(
    acc,  # (M, N)
    v: Tile,  # (M, N)
    gain: RowVector(period=HEAD),  # (HEAD,)
    *,
    eps: float = 1e-5,
):
    """Values normalised head by head and gated, and the gate's pre-activation."""
    centred = v - segment_mean(v, HEAD)
    normed = centred * rsqrt(segment_mean(centred * centred, HEAD) + eps) * gain
    return {"mixed": silu(acc) * normed, "gate": acc}


kernel = retention_gate
