"""Task: from attention's output to the next layer's queries, keys and values: two GEMMs with a whole norm between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_qkv: Tensor,  # (N, P)
    cos_sin: Tensor,  # (M, P), cos and sin interleaved
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused and in the textbook order, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_o.to(wide) + residual.to(wide)
    normed = h / (h.square().mean(1, keepdim=True) + eps).sqrt() * gamma.to(wide)
    z, cos_sin = normed @ w_qkv.to(wide), cos_sin.to(wide)
    cos, sin = cos_sin[:, 0::2], cos_sin[:, 1::2]
    qkv = torch.empty_like(z)
    qkv[:, 0::2] = z[:, 0::2] * cos - z[:, 1::2] * sin
    qkv[:, 1::2] = z[:, 0::2] * sin + z[:, 1::2] * cos
    return {"h": h, "qkv": qkv}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_qkv: Tensor,  # (N, P)
    cos_sin: Tensor,  # (M, P), cos and sin interleaved
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    h = torch.addmm(residual, y, w_o)
    z = F.rms_norm(h, (h.shape[1],), gamma, eps) @ w_qkv
    even, odd, cos, sin = z[:, 0::2], z[:, 1::2], cos_sin[:, 0::2], cos_sin[:, 1::2]
    return {"h": h, "qkv": torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1)}


TASK = Task(
    id="attention_out_qkv",
    title="Attention output to QKV",
    aliases=(
        "attention output to next qkv",
        "out projection norm qkv rope",
        "residual rmsnorm qkv rope",
        "layer boundary from attention to qkv",
        "out projection residual norm qkv projection",
    ),
    family="plan",
    difficulty=3,
    kind="plan",
    gemms=2,
    inputs=(
        Input("y", ("M", "K"), role="input"),
        Input("w_o", ("K", "N"), draw="weight", role="input"),
        Input("residual", ("M", "N"), role="input"),
        Input("gamma", ("N",), draw="gain", role="input"),
        Input("w_qkv", ("N", "P"), draw="weight", role="input"),
        Input("cos_sin", ("M", "P"), draw="angles", role="input"),
        Input("eps", (), draw="positive", dtype="float32", role="input", default=1e-6),
    ),
    outputs=(Result("h", ("M", "N")), Result("qkv", ("M", "P"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "P": 80}, "one tile each, four sizes that differ"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32, "P": 64}, "several column tiles per statistic"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1, "P": 2}, "a row of one, and one pair"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "P": 34}, "every size odd but the pairs"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64, "P": 126}, "one past and two short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130, "P": 258}, "a short statistic, wide output"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096, "P": 12288}, "7B: compute-bound, norm and rotation tell"),
        Shape("benchmark", {"M": 4096, "N": 8192, "K": 8192, "P": 10240}, "70B with grouped keys and values"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096, "P": 12288}, "a small batch: launches tell"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "Tile",
        "pair",
        "row_mean",
        "rsqrt",
        "unpair",
        "row-scale",
        "column-factor",
        "tile-beside",
        "column-pairs",
        "run-time-number",
        "pair-rotation",
        "row-statistic",
        "finished-arithmetic",
        "plan-two-gemms",
        "plan-statistic",
    ),
    description="""\
h = y @ w_o + residual
n[i, j] = h[i, j] · ((1/N)·Σ_j h[i, j]² + eps)^(-1/2) · gamma[j]
z = n @ w_qkv
c = cos_sin[i, 2k],  s = cos_sin[i, 2k+1]
qkv[i, 2k]   = z[i, 2k]·c - z[i, 2k+1]·s
qkv[i, 2k+1] = z[i, 2k]·s + z[i, 2k+1]·c

y is (M, K), w_o is (K, N), residual and h are (M, N), gamma is (N,), w_qkv is (N, P) with P even, cos_sin and qkv
are (M, P), eps is a number (1e-6 unless given). Pairs are adjacent columns (not rotate-half), the sign is the
standard one, and the table holds cos and sin interleaved, in the dtype of y (1 and 0 where values pass through). h
and qkv have the dtype of y; n is not returned. Two GEMMs, no third.""",
)
