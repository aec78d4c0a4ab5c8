"""Task: the backward pass of the squared ReLU behind the second linear layer's data gradient, with the first one's bias gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task


def forward(
    z: Tensor,  # (M, N), pre-activation with its bias
    w2_t: Tensor,  # (K, N)
    **_: Tensor,
) -> Tensor:
    """The second half of the MLP, whose result has the gradient `dy`."""
    return (torch.relu(z).square()) @ w2_t.mT


def reference(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    dh, z = dy.to(wide) @ w2_t.to(wide), z.to(wide)
    positive = torch.where(z > 0, z, torch.zeros_like(z))
    dz = 2 * dh * positive
    return {"dz": dz, "h": positive * positive, "dbias": dz.sum(0)}


def baseline(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """One GEMM, then the elementwise part in fp32 as fused PyTorch code has it."""
    dh, wide = (dy @ w2_t).float(), z.float()
    positive = F.relu(wide)
    dz = 2 * dh * positive
    return {"dz": dz.to(dy.dtype), "h": positive.square().to(dy.dtype), "dbias": dz.sum(0)}


TASK = Task(
    id="squared_relu_backward",
    title="Squared ReLU backward behind the dgrad GEMM",
    aliases=(
        "squared relu bwd",
        "relu squared backward",
        "relu2 backward",
        "squared relu gradient",
        "backward of squared relu",
    ),
    family="activation-backward",
    difficulty=2,
    inputs=(
        Input("dy", ("M", "K"), role="a"),
        Input("w2_t", ("K", "N"), draw="weight", role="b"),
        Input("z", ("M", "N")),
    ),
    outputs=(Result("dz", ("M", "N")), Result("h", ("M", "N")), Result("dbias", ("N",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(forward=forward, upstream="dy", wrt={"dz": "z"}, linear=("dz", "dbias")),
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 160, "N": 64, "K": 32}, "several row tiles per column sum"),
        Shape("smoke", {"M": 64, "N": 64, "K": 40}, "square: a transposed result must show"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one row: the column sum is the row"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 257, "N": 129, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33}, "a long, narrow column sum"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: one matrix in, two out"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B: the GEMM hides most of it"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: bandwidth tells"),
    ),
    needs=("Tile", "col_sum", "relu", "tile-beside", "column-statistic", "recomputed-output"),
    description="""\
D = dy @ w2_t
dz[i, j] = 2·D[i, j]·max(z[i, j], 0)
h[i, j] = max(z[i, j], 0)²
dbias[j] = Σ_i dz[i, j]

dy is (M, K), w2_t is (K, N), z, (M, N), is the saved pre-activation of the squared ReLU, its bias included. dz and h are
(M, N); h is the activation, recomputed for the weight gradient. dz and h have the dtype of dy, each rounded once;
dbias is (N,), fp32: the raw sum of the unrounded dz over all rows.""",
)
