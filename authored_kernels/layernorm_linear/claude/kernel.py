"""GEMM with a folded LayerNorm: z = rstd·(q @ w) - shift·gamma_w + offset."""

import coda
from coda.primitives import ColVector, RowVector


@coda.epilogue
def layernorm_linear(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
    shift: ColVector,  # (M,)
    gamma_w: RowVector,  # (N,)
    offset: RowVector,  # (N,)
):
    """The scaled product, less the rank-one term of the mean, plus the offset."""
    return {"z": acc * rstd - shift * gamma_w + offset}


kernel = layernorm_linear
