"""Task: out-projection, residual, RMSNorm and the next linear layer: two GEMMs with a whole norm between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_1: Tensor,  # (N, P)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused and in the textbook order, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_o.to(wide) + residual.to(wide)
    normed = h / (h.square().mean(1, keepdim=True) + eps).sqrt() * gamma.to(wide)
    return {"h": h, "z": normed @ w_1.to(wide)}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_1: Tensor,  # (N, P)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    h = torch.addmm(residual, y, w_o)
    return {"h": h, "z": F.rms_norm(h, (h.shape[1],), gamma, eps) @ w_1}


TASK = Task(
    id="residual_rms_linear",
    title="GEMM, residual, RMSNorm and the next GEMM",
    aliases=(
        "residual rmsnorm linear",
        "rmsnorm between two gemms",
        "out projection rmsnorm linear",
        "gemm residual rmsnorm gemm",
        "residual norm linear plan",
    ),
    family="rms-norm",
    difficulty=3,
    kind="plan",
    gemms=2,
    inputs=(
        Input("y", ("M", "K"), role="input"),
        Input("w_o", ("K", "N"), draw="weight", role="input"),
        Input("residual", ("M", "N"), role="input"),
        Input("gamma", ("N",), draw="gain", role="input"),
        Input("w_1", ("N", "P"), draw="weight", role="input"),
        Input("eps", (), draw="positive", dtype="float32", role="input", default=1e-6),
    ),
    outputs=(Result("h", ("M", "N")), Result("z", ("M", "P"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "P": 80}, "one tile each, four sizes that differ"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32, "P": 64}, "several column tiles per statistic"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1, "P": 1}, "a row of one: the mean is the element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "P": 33}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64, "P": 127}, "one past and one short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130, "P": 259}, "a short statistic, wide output"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096, "P": 4096}, "7B: compute-bound, the norm tells"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192, "P": 8192}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096, "P": 4096}, "a small batch: three launches tell"),
    ),
    description="""\
h = y @ w_o + residual
n[i, j] = h[i, j] · ((1/N)·Σ_j h[i, j]² + eps)^(-1/2) · gamma[j]
z = n @ w_1

y is (M, K), w_o is (K, N), residual and h are (M, N), gamma is (N,), w_1 is (N, P), z is (M, P), eps is a number
(1e-6 unless given). h and z have the dtype of y; n is not returned. Two GEMMs, no third.""",
    peers=("quack",),
)
