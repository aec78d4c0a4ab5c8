"""A GEMM whose result is scaled row by row: z = diag(rstd)·(q @ w)."""

import coda
from coda.primitives import ColVector


@coda.epilogue
def rms_scale(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
):
    """The product with each row multiplied by its reciprocal root mean square."""
    return {"z": acc * rstd}


kernel = rms_scale
