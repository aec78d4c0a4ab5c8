"""GEMM with a delayed RMS row scale, then SwiGLU of adjacent gate/up pairs: z = diag(rstd)(q @ w), h = silu(gate) * up."""

import coda
from coda.primitives import ColVector, silu, unpair


@coda.epilogue
def rms_swiglu(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
):
    """Scaled pre-activation, and its gated half of the width."""
    z = acc * rstd
    gate, up = unpair(z)
    return {"z": z, "h": silu(gate) * up}


kernel = rms_swiglu
