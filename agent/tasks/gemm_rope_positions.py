"""Task: a GEMM followed by a rotary embedding whose angles are computed from positions and frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (N/2,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w.to(wide)
    angle = position.to(wide)[:, None] * frequency.to(wide)
    cos, sin = angle.cos(), angle.sin()
    rotated = torch.empty_like(z)
    rotated[:, 0::2] = z[:, 0::2] * cos - z[:, 1::2] * sin
    rotated[:, 1::2] = z[:, 0::2] * sin + z[:, 1::2] * cos
    return {"rotated": rotated}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (N/2,)
) -> dict[str, Tensor]:
    """Projection in the working dtype, angles and rotation in fp32."""
    z = (x @ w).float()
    angle = position[:, None] * frequency
    even, odd, cos, sin = z[:, 0::2], z[:, 1::2], angle.cos(), angle.sin()
    return {"rotated": torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1).to(x.dtype)}


TASK = Task(
    id="gemm_rope_positions",
    title="GEMM with RoPE from positions and frequencies",
    aliases=(
        "rope from positions",
        "rope without a table",
        "rotary embedding computed in registers",
        "rope positions and frequencies",
        "qkv projection with computed rope",
    ),
    family="rope",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("position", ("M",), draw="positions", dtype="int64"),
        Input("frequency", ("N//2",), draw="frequencies", dtype="float32"),
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
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: no table is read"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "cos",
        "pair",
        "sin",
        "unpair",
        "column-pairs",
        "half-width-vector",
        "integer-vector",
        "pair-rotation",
        "angles-in-registers",
    ),
    description="""\
z = x @ w
θ = position[i]·frequency[k]
rotated[i, 2k]   = z[i, 2k]·cos(θ) - z[i, 2k+1]·sin(θ)
rotated[i, 2k+1] = z[i, 2k]·sin(θ) + z[i, 2k+1]·cos(θ)

x is (M, K), w is (K, N) with N even, position is (M,) of int64, frequency is (N/2,) and fp32, one per pair of
columns; rotated is (M, N). Pairs are adjacent columns (not rotate-half), the sign is the standard one. Angles are
fp32 at least: in bf16 the positions 256 and 257 would be equal. A frequency of 0 leaves a pair as it is. Only the
rotated matrix is returned, in the dtype of x, rounded once.""",
)
