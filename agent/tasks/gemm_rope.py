"""Task: a GEMM followed by a rotary embedding of adjacent column pairs from a full cos/sin table."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    cos_sin: Tensor,  # (M, N), cos and sin interleaved
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z, cos_sin = x.to(wide) @ w.to(wide), cos_sin.to(wide)
    cos, sin = cos_sin[:, 0::2], cos_sin[:, 1::2]
    rotated = torch.empty_like(z)
    rotated[:, 0::2] = z[:, 0::2] * cos - z[:, 1::2] * sin
    rotated[:, 1::2] = z[:, 0::2] * sin + z[:, 1::2] * cos
    return {"rotated": rotated}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    cos_sin: Tensor,  # (M, N), cos and sin interleaved
) -> dict[str, Tensor]:
    """Projection and rotation in the working dtype."""
    z = x @ w
    even, odd, cos, sin = z[:, 0::2], z[:, 1::2], cos_sin[:, 0::2], cos_sin[:, 1::2]
    return {"rotated": torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1)}


TASK = Task(
    id="gemm_rope",
    title="GEMM with RoPE from a table",
    aliases=(
        "k3",
        "rope",
        "rotary embedding",
        "rope forward",
        "qkv projection with rope",
        "rotary position embedding gemm",
    ),
    family="rope",
    difficulty=1,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("cos_sin", ("M", "N"), draw="angles"),
    ),
    outputs=(Result("rotated", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one pair"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "two columns past a tile, odd M and K"),
        Shape("ragged", {"M": 129, "N": 258, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 7, "N": 6, "K": 199}, "smaller than any tile, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: compute-bound, the epilogue tells"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    description="""\
z = x @ w
c = cos_sin[i, 2k],  s = cos_sin[i, 2k+1]
rotated[i, 2k]   = z[i, 2k]·c - z[i, 2k+1]·s
rotated[i, 2k+1] = z[i, 2k]·s + z[i, 2k+1]·c

x is (M, K), w is (K, N) with N even, cos_sin and rotated are (M, N). Pairs are adjacent columns (not rotate-half),
the sign is the standard one, and the table holds cos and sin interleaved, in the dtype of x. Only the rotated
matrix is returned, rounded once.""",
    peers=("quack",),
)
