"""The delayed row scale of a norm, then SwiGLU.

Computes: z = diag(rstd)·(q @ w) and h[:, k] = silu(z[:, 2k])·z[:, 2k+1]. The row scale commutes with the GEMM and
    not with silu, so it comes first: what follows sees the scaled value.
Shapes: q (M, K), w (K, N), rstd (M,) fp32 -> z (M, N), h (M, N/2).
Fusion: the norm costs one multiplication per element and M numbers; its separate pass over the input, 2·M·K
    elements, is gone, and z is not read back for h, M·N elements.
Numerics: scale and activation in fp32, each result rounded once.
Constraints: N even.
Lesson: steps compose in the order in which they are written. Scale once, name it, and use the name twice: equal
    expressions are one node of the program.
"""

import coda
from coda.primitives import ColVector, silu, unpair

RUNG = 5
IDEA = "composition: what does not commute with a map comes before it"


@coda.epilogue
def rms_swiglu(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
):
    """Scaled pre-activation and gated activation of interleaved gate and up columns."""
    z = acc * rstd
    gate, up = unpair(z)
    return {"z": z, "h": silu(gate) * up}


kernel = rms_swiglu
