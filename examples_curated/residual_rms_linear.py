"""Out-projection, residual, RMSNorm and the next linear layer: two GEMMs, and the norm in their epilogues.

Computes: h = y @ w_o + residual and z = RMSNorm(h)·w_1. The norm is diag(rstd)·h·diag(gamma); gamma is applied per
    column in the first epilogue, rstd is finished after it, and since diag(rstd) commutes with the second GEMM it
    is applied to that one's accumulator.
Shapes: y (M, K), w_o (K, N), residual (M, N), gamma (N,), w_1 (N, P) -> h (M, N), z (M, P).
Fusion: the normalised matrix never exists; the norm's own kernel (3·M·N elements) becomes M numbers.
Numerics: h, h·gamma and z are each rounded once. The second GEMM contracts h·gamma before the row scale, so its
    operand has the magnitude of the stream, not of the norm: mind the range in fp16.
Constraints: none.
Lesson: a plan is a straight line of kernel calls on tensors: results are attributes of a call, an output that the
    plan does not use is not stored, and vectors between the calls stay on the device.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, row_mean, rsqrt

RUNG = 25
IDEA = "a plan: two GEMMs with a norm between them, its row scale delayed past the second"


@coda.epilogue
def residual_rms(
    acc,  # (M, N)
    residual: Tile,  # (M, N)
    gamma: RowVector,  # (N,)
    *,
    eps: float = 1e-6,
):
    """Residual stream, gained stream and reciprocal root mean square of each row."""
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


@coda.epilogue
def scaled(
    acc,  # (M, P)
    rstd: ColVector,  # (M,)
):
    """Rows of the product scaled by a finished norm statistic."""
    return {"z": acc * rstd}


@coda.plan
def residual_rms_linear(
    y,  # (M, K)
    w_o,  # (K, N)
    residual,  # (M, N)
    gamma,  # (N,)
    w_1,  # (N, P)
    *,
    eps: float = 1e-6,
):
    """Residual stream and the linear layer of its norm."""
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    return {"h": r.h, "z": scaled(r.q, w_1, rstd=r.rstd).z}


kernel = residual_rms_linear
