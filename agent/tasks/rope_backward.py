"""Task: the backward pass of a rotary embedding after attention, with the row statistic that the norm before it needs.

No GEMM: the gradient arrives from attention. A rotation is orthogonal, so <z, dz> = <rotated, dy> and the tensor from
before the rotation need not be kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task


def forward(
    rotated: Tensor,  # (M, N)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (N/2,)
    **_: Tensor,
) -> Tensor:
    """The rotation, whose result has the gradient `dy`; being linear, it has the same derivative everywhere."""
    angle = position[:, None] * frequency
    even, odd, cos, sin = rotated[:, 0::2], rotated[:, 1::2], angle.cos(), angle.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(1)


def reference(
    dy: Tensor,  # (M, N)
    rotated: Tensor,  # (M, N)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (N/2,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    dy, rotated = dy.to(wide), rotated.to(wide)
    angle = position.to(wide)[:, None] * frequency.to(wide)
    cos, sin = angle.cos(), angle.sin()
    dz = torch.empty_like(dy)
    dz[:, 0::2] = dy[:, 0::2] * cos + dy[:, 1::2] * sin
    dz[:, 1::2] = dy[:, 1::2] * cos - dy[:, 0::2] * sin
    return {"dz": dz, "zdz": (rotated * dy).sum(1)}


def baseline(
    dy: Tensor,  # (M, N)
    rotated: Tensor,  # (M, N)
    position: Tensor,  # (M,), int64
    frequency: Tensor,  # (N/2,)
) -> dict[str, Tensor]:
    """Everything in fp32, as fused PyTorch code has it."""
    angle, wide = position[:, None] * frequency, dy.float()
    even, odd, cos, sin = wide[:, 0::2], wide[:, 1::2], angle.cos(), angle.sin()
    dz = torch.stack([even * cos + odd * sin, odd * cos - even * sin], -1).flatten(1)
    return {"dz": dz.to(dy.dtype), "zdz": (rotated.float() * wide).sum(1)}


TASK = Task(
    id="rope_backward",
    title="RoPE backward after attention",
    aliases=(
        "rope bwd",
        "rotary backward",
        "backward of rope",
        "rope gradient",
        "inverse rotation with row statistic",
    ),
    family="rope-backward",
    difficulty=2,
    kind="pointwise",
    gemms=0,
    inputs=(
        Input("dy", ("M", "N"), role="input"),
        Input("rotated", ("M", "N"), role="input"),
        Input("position", ("M",), draw="positions", dtype="int64", role="input"),
        Input("frequency", ("N//2",), draw="frequencies", dtype="float32", role="input"),
    ),
    outputs=(Result("dz", ("M", "N")), Result("zdz", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(forward=forward, upstream="dy", wrt={"dz": "rotated"}, linear=("dz", "zdz")),
    shapes=(
        Shape("smoke", {"M": 32, "N": 64}, "one tile"),
        Shape("smoke", {"M": 64, "N": 192}, "several column tiles per row sum"),
        Shape("ragged", {"M": 1, "N": 2}, "one pair"),
        Shape("ragged", {"M": 37, "N": 130}, "two columns past a tile, odd M"),
        Shape("ragged", {"M": 129, "N": 258}, "one row past a tile"),
        Shape("ragged", {"M": 199, "N": 6}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 16384, "N": 4096}, "7B queries of 16 384 tokens: bandwidth alone"),
        Shape("benchmark", {"M": 16384, "N": 8192}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096}, "a small batch: the launch tells"),
    ),
    description="""\
θ = position[i]·frequency[k]
dz[i, 2k]   = dy[i, 2k]·cos(θ) + dy[i, 2k+1]·sin(θ)
dz[i, 2k+1] = dy[i, 2k+1]·cos(θ) - dy[i, 2k]·sin(θ)
zdz[i] = Σ_j rotated[i, j]·dy[i, j]

dy (the gradient of the rotated matrix), rotated (the saved result of the rotation) and dz are (M, N) with N even,
position is (M,) of int64, frequency is (N/2,) and fp32, one per pair of adjacent columns. dz is dy rotated back by
θ. zdz is (M,), fp32, a raw sum: a rotation is orthogonal, so it is Σ z·dz of the matrix before the rotation. Angles
are fp32 at least. dz has the dtype of dy, rounded once. There is no GEMM.""",
)
