"""Task: a GEMM followed by ReGLU over interleaved gate and up columns; the pre-activation is kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), gate and up interleaved
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w.to(wide)
    gate, up = z[:, 0::2], z[:, 1::2]
    return {"z": z, "h": torch.where(gate > 0, gate, torch.zeros_like(gate)) * up}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), gate and up interleaved
) -> dict[str, Tensor]:
    """The MLP's first half as model code has it, in the working dtype."""
    z = x @ w
    return {"z": z, "h": F.relu(z[:, 0::2]) * z[:, 1::2]}


TASK = Task(
    id="gemm_reglu",
    title="GEMM with ReGLU",
    aliases=(
        "reglu",
        "reglu forward",
        "relu gated linear unit",
        "relu and mul",
    ),
    family="gated",
    difficulty=1,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
    ),
    outputs=(Result("z", ("M", "N")), Result("h", ("M", "N//2"))),
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
    needs=("relu", "unpair", "column-pairs", "half-width-output"),
    description="""\
z = x @ w
h[i, k] = max(z[i, 2k], 0) · z[i, 2k+1]

x is (M, K), w is (K, N) with N even, z is (M, N), h is (M, N/2). Gate and up are interleaved: gate k is column 2k
of z, up k is column 2k+1. z is the pre-activation that the backward pass reads. z and h have the dtype of x, each
rounded once; h is computed from the unrounded z.""",
)
