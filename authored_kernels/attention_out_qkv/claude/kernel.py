"""Attention out-projection, residual, RMSNorm, QKV projection and rotary embedding: two GEMMs, nothing between them.

Computes: h = y @ w_o + residual and qkv = rotate(RMSNorm(h) @ w_qkv). gamma is applied per column in the first
    epilogue; rstd is finished after it and commutes with the second GEMM, so it scales that one's accumulator, which
    is then rotated pair by pair.
Shapes: y (M, K), w_o (K, N), residual (M, N), gamma (N,), w_qkv (N, P) with P even, cos_sin (M, P) -> h (M, N),
    qkv (M, P).
Fusion: neither the normalised matrix nor the unrotated product leaves the chip.
Numerics: the statistic is of the unrounded fp32 h; h, h·gamma and qkv are each rounded once.
Constraints: P even.
"""

import coda
from coda.primitives import ColVector, RowVector, Tile, pair, row_mean, rsqrt, unpair


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
def scaled_rope(
    acc,  # (M, P)
    rstd: ColVector,  # (M,)
    cos_sin: Tile,  # (M, P)
):
    """The scaled product with each adjacent pair of columns rotated."""
    even, odd = unpair(acc * rstd)
    c, s = unpair(cos_sin)
    return {"qkv": pair(even * c - odd * s, even * s + odd * c)}


@coda.plan
def attention_out_qkv(
    y,  # (M, K)
    w_o,  # (K, N)
    residual,  # (M, N)
    gamma,  # (N,)
    w_qkv,  # (N, P)
    cos_sin,  # (M, P)
    *,
    eps: float = 1e-6,
):
    """Residual stream, and the rotated QKV projection of its norm."""
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    return {"h": r.h, "qkv": scaled_rope(r.q, w_qkv, rstd=r.rstd, cos_sin=cos_sin).qkv}


kernel = attention_out_qkv
