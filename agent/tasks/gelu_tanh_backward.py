"""Task: the backward pass of the tanh form of GELU behind the second linear layer's data gradient, with the first one's bias gradient."""

from __future__ import annotations

import math

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
    return (0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))) @ w2_t.mT


def reference(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    dh, z = dy.to(wide) @ w2_t.to(wide), z.to(wide)
    t = torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z**2)
    dz = dh * (0.5 * (1 + t) + 0.5 * z * (1 - t * t) * inner)
    return {"dz": dz, "h": 0.5 * z * (1 + t), "dbias": dz.sum(0)}


def baseline(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """One GEMM, then the elementwise part in fp32 as fused PyTorch code has it."""
    dh, wide = (dy @ w2_t).float(), z.float()
    t = torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * wide.square())
    dz = dh * (0.5 * (1 + t) + 0.5 * wide * (1 - t.square()) * inner)
    return {"dz": dz.to(dy.dtype), "h": F.gelu(z, approximate="tanh"), "dbias": dz.sum(0)}


TASK = Task(
    id="gelu_tanh_backward",
    title="Tanh GELU backward behind the dgrad GEMM",
    aliases=(
        "gelu tanh bwd",
        "tanh gelu backward",
        "approximate gelu backward",
        "tanh gelu gradient",
        "backward of tanh gelu",
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
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one row: the column sum is the row"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 257, "N": 129, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33}, "a long, narrow column sum"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: one matrix in, two out"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B: the GEMM hides most of it"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: bandwidth tells"),
    ),
    needs=("Tile", "col_sum", "tanh", "tile-beside", "column-statistic", "recomputed-output"),
    description="""\
D = dy @ w2_t
T = tanh(√(2/π)·(t + 0.044715·t³)),  t = z[i, j]
dz[i, j] = D[i, j]·(½·(1 + T) + ½·t·(1 - T²)·√(2/π)·(1 + 3·0.044715·t²))
h[i, j] = ½·t·(1 + T)
dbias[j] = Σ_i dz[i, j]

dy is (M, K), w2_t is (K, N), z, (M, N), is the saved pre-activation of the GELU, its bias included. dz and h are
(M, N); h is the activation, recomputed for the weight gradient. dz and h have the dtype of dy, each rounded once;
dbias is (N,), fp32: the raw sum of the unrounded dz over all rows.
This is the tanh form of GELU, not the exact one.""",
)
