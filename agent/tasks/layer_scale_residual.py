"""Task: an out-projection with bias, scaled channel by channel and added to the residual stream (LayerScale)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
    scale: Tensor,  # (N,)
    residual: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    branch = y.to(wide) @ w_o.to(wide) + bias.to(wide)
    return {"h": residual.to(wide) + scale.to(wide) * branch}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
    scale: Tensor,  # (N,)
    residual: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    return {"h": residual + scale * torch.addmm(bias, y, w_o)}


TASK = Task(
    id="layer_scale_residual",
    title="GEMM with layer scale and residual",
    aliases=(
        "layer scale",
        "layerscale residual",
        "residual with layer scale",
        "scaled residual add",
        "vit block residual",
    ),
    family="residual",
    difficulty=1,
    inputs=(
        Input("y", ("M", "K"), role="a"),
        Input("w_o", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",)),
        Input("scale", ("N",), draw="gain"),
        Input("residual", ("M", "N")),
    ),
    outputs=(Result("h", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one product per element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B out-projection: one extra matrix in"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B out-projection"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=("RowVector", "Tile", "column-factor", "tile-beside"),
    description="""\
h[i, j] = residual[i, j] + scale[j]·(Σ_k y[i, k]·w_o[k, j] + bias[j])

y is (M, K), w_o is (K, N), bias and scale are (N,) in the dtype of y, residual and h are (M, N). h has the dtype of
y, rounded once.""",
)
