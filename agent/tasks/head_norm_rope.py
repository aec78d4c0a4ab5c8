"""Task: a projection whose heads are normalised one by one and then rotated: QK-norm with RoPE."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task

HEAD = 64
"""Columns of a head."""


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    gamma: Tensor,  # (64,)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (32,)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = (x.to(wide) @ w.to(wide)).reshape(x.shape[0], -1, HEAD)
    normed = z / (z.square().mean(2, keepdim=True) + eps).sqrt() * gamma.to(wide)
    angle = (position.to(wide)[:, None] * frequency.to(wide))[:, None, :]
    cos, sin = angle.cos(), angle.sin()
    rotated = torch.empty_like(normed)
    rotated[..., 0::2] = normed[..., 0::2] * cos - normed[..., 1::2] * sin
    rotated[..., 1::2] = normed[..., 0::2] * sin + normed[..., 1::2] * cos
    return {"rotated": rotated.flatten(1)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    gamma: Tensor,  # (64,)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (32,)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Projection and norm as model code has them, rotation in fp32."""
    z = (x @ w).reshape(x.shape[0], -1, HEAD)
    normed = F.rms_norm(z, (HEAD,), gamma, eps).float()
    angle = (position[:, None] * frequency)[:, None, :]
    even, odd, cos, sin = normed[..., 0::2], normed[..., 1::2], angle.cos(), angle.sin()
    return {"rotated": torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1).to(x.dtype)}


TASK = Task(
    id="head_norm_rope",
    title="GEMM with a norm per head and RoPE",
    aliases=(
        "qk norm with rope",
        "qk norm rope forward",
        "per head rmsnorm rope",
        "query projection with head norm",
        "qwen qk norm",
    ),
    family="rope",
    difficulty=3,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("gamma", ("64",), draw="gain"),
        Input("position", ("M",), draw="positions", dtype="int64"),
        Input("frequency", ("32",), draw="frequencies", dtype="float32"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-6),
    ),
    outputs=(Result("rotated", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one head, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 256, "K": 32}, "four heads"),
        Shape("ragged", {"M": 1, "N": 64, "K": 1}, "one row, one head"),
        Shape("ragged", {"M": 37, "N": 192, "K": 65}, "a head past a tile, odd M and K"),
        Shape("ragged", {"M": 129, "N": 320, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 7, "N": 448, "K": 199}, "few rows, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B queries: 64 heads of 64"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B queries"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "cos",
        "pair",
        "rsqrt",
        "segment_mean",
        "sin",
        "unpair",
        "column-factor",
        "column-pairs",
        "half-width-vector",
        "periodic-vector",
        "integer-vector",
        "run-time-number",
        "pair-rotation",
        "angles-in-registers",
        "segment-in-tile",
    ),
    description="""\
z = x @ w
n[i, j] = z[i, j]·((1/64)·Σ_t z[i, t]² + eps)^(-1/2)·gamma[j mod 64]        t over the 64 columns of j's head
θ = position[i]·frequency[k mod 32]
rotated[i, 2k]   = n[i, 2k]·cos(θ) - n[i, 2k+1]·sin(θ)
rotated[i, 2k+1] = n[i, 2k]·sin(θ) + n[i, 2k+1]·cos(θ)

x is (M, K), w is (K, N), N is a multiple of 64: a head is 64 neighbouring columns. gamma is (64,) in the dtype of
x and frequency is (32,) and fp32; both are the same for every head. position is (M,) of int64, eps is a number
(1e-6 unless given), rotated is (M, N). Pairs are adjacent columns of a head (not rotate-half), the sign is the
standard one, angles are fp32 at least. Only the rotated matrix is returned, in the dtype of x, rounded once.""",
)
