"""RMSNorm backward behind the data gradient of the linear layer that follows the norm.

Computes: with G = dz @ w1_t and n = diag(rstd)·h: dh = dres + diag(rstd)·(G·diag(gamma) - diag(s)·n), dgamma = Σ_i
    G·n, and hn = n·diag(gamma) again, for the weight gradient. s[i] = (1/N)·Σ_j G·gamma·n needs a whole row of G
    before any element of dh is final. But the layer is z = (n·diag(gamma)) @ W, so s[i] = (1/N)·Σ_k
    dz[i, k]·z[i, k]: the kernel that made dz has already summed it.
Shapes: dz (M, K), w1_t (K, N), h (M, N), gamma (N,), rstd (M,) fp32, s (M,) fp32, dres (M, N) -> dh (M, N), hn
    (M, N), dgamma (N,) fp32.
Fusion: G stays in registers (2·M·N elements); the residual gradient is added on the way out instead of in a pass of
    its own (3·M·N); the gained norm is recomputed and was never kept.
Numerics: in fp32 from the saved h; dh and hn are each rounded once. eps appears only inside rstd, and the formula
    is exact with it. dgamma is a raw sum over M, combined from tile partials in a fixed order.
Constraints: none. s must belong to this dz; a stale one gives a wrong gradient without an error.
Lesson: a loaded vector is tile-local whoever computed it. Where a reduction stands in the way, look for the same
    number one GEMM earlier. Column reductions sum over the rows of all tiles.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, col_sum

RUNG = 23
IDEA = "a reduction moved one GEMM earlier makes a backward pass local; column sums for a gain's gradient"


@coda.epilogue
def rms_backward(
    acc,  # (M, N)
    h: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    rstd: ColVector,  # (M,)
    s: ColVector,  # (M,)
    dres: Tile,  # (M, N)
):
    """Stream gradient, recomputed operand of the weight gradient, and the gain's gradient."""
    n = h * rstd
    return {"dh": dres + rstd * (acc * gamma - s * n), "hn": n * gamma, "dgamma": col_sum(acc * n)}


kernel = rms_backward
