"""A delayed row scale: the smallest epilogue.

Computes: z = diag(rstd)·(q @ w). A norm before a linear layer multiplies row i of its input by rstd[i]; the factor
    is constant along the GEMM's contraction, so it commutes with the GEMM and is applied to the accumulator
    instead.
Shapes: q (M, K), w (K, N), rstd (M,) fp32 -> z (M, N).
Fusion: the unscaled product stays in registers; a separate kernel would read and write it once more, 2·M·N
    elements.
Numerics: one rounding, at the store. Scaling before the GEMM would round the scaled input first, so the two agree
    in exact arithmetic and not bit by bit.
Constraints: none; any M, N and K.
Lesson: an epilogue is a function of `acc`. A ColVector is one number per row and broadcasts along the columns.
"""

import coda
from coda.primitives import ColVector

RUNG = 1
IDEA = "an epilogue is a function of the accumulator; a column vector scales its rows"


@coda.epilogue
def rms_scale(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
):
    """Rows of the product scaled by a finished norm statistic."""
    return {"z": acc * rstd}


kernel = rms_scale
