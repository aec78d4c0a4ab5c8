"""Task: a packed QKV projection: queries and keys normalised per head with gains of their own and rotated, values kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task

HEAD = 64
"""Columns of a head."""


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), queries, keys and values side by side
    gamma_q: Tensor,  # (64,)
    gamma_k: Tensor,  # (64,)
    cos_sin: Tensor,  # (M, N), cos and sin interleaved
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    query, key, value = (x.to(wide) @ w.to(wide)).chunk(3, 1)
    cos_sin, part = cos_sin.to(wide), value.shape[1]
    parts = []
    for at, z, gamma in ((0, query, gamma_q), (part, key, gamma_k)):
        heads = z.reshape(x.shape[0], -1, HEAD)
        normed = (heads / (heads.square().mean(2, keepdim=True) + eps).sqrt() * gamma.to(wide)).flatten(1)
        cos, sin = cos_sin[:, at : at + part : 2], cos_sin[:, at + 1 : at + part : 2]
        rotated = torch.empty_like(normed)
        rotated[:, 0::2] = normed[:, 0::2] * cos - normed[:, 1::2] * sin
        rotated[:, 1::2] = normed[:, 0::2] * sin + normed[:, 1::2] * cos
        parts.append(rotated)
    return {"qkv": torch.cat([*parts, value], 1)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), queries, keys and values side by side
    gamma_q: Tensor,  # (64,)
    gamma_k: Tensor,  # (64,)
    cos_sin: Tensor,  # (M, N), cos and sin interleaved
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Projection, norms and rotation as model code has them, in the working dtype."""
    query, key, value = (x @ w).chunk(3, 1)
    normed = torch.cat(
        [
            F.rms_norm(query.reshape(x.shape[0], -1, HEAD), (HEAD,), gamma_q, eps).flatten(1),
            F.rms_norm(key.reshape(x.shape[0], -1, HEAD), (HEAD,), gamma_k, eps).flatten(1),
        ],
        1,
    )
    table = cos_sin[:, : normed.shape[1]]
    even, odd, cos, sin = normed[:, 0::2], normed[:, 1::2], table[:, 0::2], table[:, 1::2]
    rotated = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1)
    return {"qkv": torch.cat([rotated, value], 1)}


TASK = Task(
    id="qkv_norm_rope",
    title="Packed QKV projection with QK-norm and RoPE",
    aliases=(
        "packed qkv with qk norm",
        "qkv norm and rope",
        "qkv projection qk norm rope",
        "fused qkv head norm",
        "qk norm values untouched",
    ),
    family="rope",
    difficulty=3,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("gamma_q", ("64",), draw="gain"),
        Input("gamma_k", ("64",), draw="gain"),
        Input("cos_sin", ("M", "N"), draw="angles"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-6),
    ),
    outputs=(Result("qkv", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 192, "K": 48}, "one head each, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 384, "K": 32}, "two heads each"),
        Shape("ragged", {"M": 1, "N": 192, "K": 1}, "one row, one head each"),
        Shape("ragged", {"M": 37, "N": 192, "K": 65}, "thirds that no wide tile divides, odd M and K"),
        Shape("ragged", {"M": 129, "N": 576, "K": 33}, "one row past a tile, three heads each"),
        Shape("ragged", {"M": 7, "N": 192, "K": 199}, "few rows, long K"),
        Shape("benchmark", {"M": 4096, "N": 6144, "K": 2048}, "1B: 32 heads of 64 in each part"),
        Shape("benchmark", {"M": 4096, "N": 12288, "K": 4096}, "7B"),
        Shape("benchmark", {"M": 512, "N": 12288, "K": 4096}, "a small batch: few rows of tiles"),
    ),
    needs=(
        "RowVector",
        "Tile",
        "column_index",
        "columns",
        "pair",
        "rsqrt",
        "segment_mean",
        "unpair",
        "where",
        "column-factor",
        "tile-beside",
        "column-pairs",
        "periodic-vector",
        "run-time-number",
        "pair-rotation",
        "columns-by-number",
        "segment-in-tile",
    ),
    description="""\
z = x @ w,  T = N/3
columns 0 … T-1 are queries with the gain g = gamma_q, T … 2T-1 keys with g = gamma_k, 2T … N-1 values
n[i, j] = z[i, j]·((1/64)·Σ_t z[i, t]² + eps)^(-1/2)·g[j mod 64]        t over the 64 columns of j's head
c = cos_sin[i, 2k],  s = cos_sin[i, 2k+1]
qkv[i, 2k]   = n[i, 2k]·c - n[i, 2k+1]·s        where 2k < 2T
qkv[i, 2k+1] = n[i, 2k]·s + n[i, 2k+1]·c        where 2k < 2T
qkv[i, j]    = z[i, j]                          where j >= 2T

x is (M, K), w is (K, N) with N a multiple of 192: a head is 64 neighbouring columns. gamma_q and gamma_k are (64,),
the same for every head of their part; cos_sin and qkv are (M, N), eps is a number (1e-6 unless given). Values are
neither normalised nor rotated, whatever the table holds beside them. Pairs are adjacent columns (not rotate-half),
the sign is the standard one. qkv has the dtype of x, rounded once.""",
)
