"""Task: a GEMM, a residual addition and the first half of RMSNorm: the gained stream and the row statistic."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_o.to(wide) + residual.to(wide)
    return {"h": h, "q": h * gamma.to(wide), "rstd": (h.square().mean(1) + eps).rsqrt()}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Projection with its residual in the working dtype, statistic in fp32, as norms do."""
    h = torch.addmm(residual, y, w_o)
    return {"h": h, "q": h * gamma, "rstd": torch.rsqrt(h.float().square().mean(1) + eps)}


TASK = Task(
    id="residual_rms",
    title="GEMM with residual and RMS statistic",
    aliases=(
        "k0",
        "residual rmsnorm",
        "residual add and rms",
        "output projection residual norm",
        "fused add rms statistic",
    ),
    family="rms-norm",
    difficulty=2,
    inputs=(
        Input("y", ("M", "K"), role="a"),
        Input("w_o", ("K", "N"), draw="weight", role="b"),
        Input("residual", ("M", "N")),
        Input("gamma", ("N",), draw="gain"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-6),
    ),
    outputs=(Result("h", ("M", "N")), Result("q", ("M", "N")), Result("rstd", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32}, "several column tiles per statistic"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1}, "a row of one: the mean is the element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd: a mean over N, not over whole tiles"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B out-projection: compute-bound, two extra matrices"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B out-projection"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: the finishing step weighs more"),
    ),
    description="""\
h = y @ w_o + residual
q[i, j] = h[i, j]·gamma[j]
rstd[i] = ((1/N)·Σ_j h[i, j]² + eps)^(-1/2)

y is (M, K), w_o is (K, N), residual, h and q are (M, N), gamma is (N,), eps is a number (1e-6 unless given). h and
q have the dtype of y, each rounded once from the unrounded sum; rstd is (M,), fp32, of the unrounded h. The
normalised matrix itself is not asked for: diag(rstd)·q is.""",
    peers=("quack",),
)
