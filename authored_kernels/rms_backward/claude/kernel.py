"""RMSNorm backward behind the data-gradient GEMM, the normalised operand recomputed.

Computes: with G = dz @ w1_t and n = diag(rstd)·h: dh = dres + rstd·(G·gamma - s·n), hn = n·gamma for the weight
    gradient, dgamma = Σ_i G·n. The row statistic s is given, so nothing waits for a whole row.
Shapes: dz (M, K), w1_t (K, N), h (M, N), gamma (N,), rstd (M,), s (M,) fp32, dres (M, N) -> dh (M, N), hn (M, N),
    dgamma (N,) fp32.
Fusion: G stays in registers, 2·M·N elements saved; h is read once for three results.
Numerics: everything in fp32 from the unrounded G; dh and hn are each rounded once, dgamma is a raw sum of unrounded
    products.
Constraints: none.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, col_sum


@coda.epilogue
def rms_backward(
    acc,  # (M, N)
    h: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    rstd: ColVector,  # (M,)
    s: ColVector,  # (M,)
    dres: Tile,  # (M, N)
):
    """Gradient of the stream, recomputed normalised operand, gain gradient."""
    n = rstd * h
    return {
        "dh": dres + rstd * (acc * gamma - s * n),
        "hn": n * gamma,
        "dgamma": col_sum(acc * n),
    }


kernel = rms_backward
