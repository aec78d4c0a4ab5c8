"""LayerNorm backward behind the data gradient of the linear layer that follows the norm.

Computes: with G = dz @ w1_t and n = diag(rstd)·h - shift: dh = dres + diag(rstd)·(G·diag(gamma) - s1 - diag(s2)·n),
    hn = n·diag(gamma) + beta again, for the weight gradient, dgamma = Σ_i G·n and dbeta = Σ_i G. The two row means that
    a LayerNorm backward needs of G·gamma are loaded vectors: the kernel that made dz has already summed them.
Shapes: dz (M, K), w1_t (K, N), h (M, N), gamma (N,), beta (N,), rstd, shift, s1, s2 (M,) fp32, dres (M, N) -> dh (M, N),
    hn (M, N), dgamma (N,) fp32, dbeta (N,) fp32.
Fusion: G stays in registers; the residual gradient is added on the way out; hn is recomputed and was never kept.
Numerics: in fp32 from the saved h; dh and hn are each rounded once; the column sums are of unrounded values.
Constraints: none. s1 and s2 must belong to this dz.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, col_sum


@coda.epilogue
def layernorm_backward(
    acc,  # (M, N)
    h: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    beta: RowVector,  # (N,)
    rstd: ColVector,  # (M,)
    shift: ColVector,  # (M,)
    s1: ColVector,  # (M,)
    s2: ColVector,  # (M,)
    dres: Tile,  # (M, N)
):
    """Stream gradient, recomputed operand of the weight gradient, gradients of gain and bias."""
    n = h * rstd - shift
    return {
        "dh": dres + rstd * (acc * gamma - s1 - s2 * n),
        "hn": n * gamma + beta,
        "dgamma": col_sum(acc * n),
        "dbeta": col_sum(acc),
    }


kernel = layernorm_backward
