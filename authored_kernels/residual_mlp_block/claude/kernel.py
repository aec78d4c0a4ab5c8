"""Out-projection, residual, RMSNorm and gated MLP: three GEMMs, everything else in their epilogues."""

import coda
from coda.primitives import ColVector, RowVector, Tile, row_mean, rsqrt, silu, unpair


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
def scaled_swiglu(
    acc,  # (M, 2P)
    rstd: ColVector,  # (M,)
):
    """Delayed row scale of the norm, then the gated activation of interleaved gate and up columns."""
    gate, up = unpair(acc * rstd)
    return {"act": silu(gate) * up}


@coda.epilogue
def add_stream(
    acc,  # (M, N)
    h: Tile,  # (M, N)
):
    """The down-projection added to the residual stream."""
    return {"stream": h + acc}


@coda.plan
def residual_mlp_block(
    y,  # (M, K)
    w_o,  # (K, N)
    residual,  # (M, N)
    gamma,  # (N,)
    w_1,  # (N, 2P)
    w_2,  # (P, N)
    *,
    eps: float = 1e-6,
):
    """Residual stream after the out-projection and after the gated MLP of its norm."""
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    act = scaled_swiglu(r.q, w_1, rstd=r.rstd).act
    return {"h": r.h, "stream": add_stream(act, w_2, h=r.h).stream}


kernel = residual_mlp_block
