"""Task: a linear layer with bias followed by the exact GELU; the pre-activation is kept."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w.to(wide) + bias.to(wide)
    return {"z": z, "h": 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5)))}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """The MLP's first half as model code has it, in the working dtype."""
    z = torch.addmm(bias, x, w)
    return {"z": z, "h": F.gelu(z)}


TASK = Task(
    id="bias_gelu",
    title="Linear layer with exact GELU",
    aliases=(
        "gelu",
        "exact gelu",
        "erf gelu forward",
        "gemm bias gelu",
        "linear gelu",
    ),
    family="activation",
    difficulty=1,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",)),
    ),
    outputs=(Result("z", ("M", "N")), Result("h", ("M", "N"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "two columns of one product each"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "two columns past a tile, odd M and K"),
        Shape("ragged", {"M": 129, "N": 258, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 7, "N": 6, "K": 199}, "smaller than any tile, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: compute-bound, the epilogue tells"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=("RowVector", "gelu", "column-factor"),
    description="""\
z[i, j] = Σ_k x[i, k]·w[k, j] + bias[j]
h[i, j] = z[i, j]·Φ(z[i, j])        Φ(t) = ½·(1 + erf(t/√2))

x is (M, K), w is (K, N), bias is (N,) in the dtype of x, z and h are (M, N). z is the pre-activation that the
backward pass reads. z and h have the dtype of x, each rounded once; h is computed from the unrounded z.
This is the exact GELU, not its tanh form.""",
)
