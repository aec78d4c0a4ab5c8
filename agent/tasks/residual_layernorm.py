"""Task: a GEMM, a residual addition and the first half of LayerNorm: the gained stream and the rows' moments."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    eps: float = 1e-5,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_o.to(wide) + residual.to(wide)
    mean = h.mean(1)
    rstd = ((h - mean[:, None]).square().mean(1) + eps).rsqrt()
    return {"h": h, "q": h * gamma.to(wide), "rstd": rstd, "shift": rstd * mean}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    eps: float = 1e-5,
) -> dict[str, Tensor]:
    """Projection with its residual in the working dtype, moments in fp32, as norms do."""
    h = torch.addmm(residual, y, w_o)
    variance, mean = torch.var_mean(h.float(), 1, correction=0)
    rstd = torch.rsqrt(variance + eps)
    return {"h": h, "q": h * gamma, "rstd": rstd, "shift": rstd * mean}


TASK = Task(
    id="residual_layernorm",
    title="GEMM with residual and LayerNorm moments",
    aliases=(
        "layernorm moments",
        "residual add and layernorm",
        "output projection residual layernorm",
        "fused add layernorm statistic",
        "gemm residual layer norm producer",
    ),
    family="layer-norm",
    difficulty=2,
    inputs=(
        Input("y", ("M", "K"), role="a"),
        Input("w_o", ("K", "N"), draw="weight", role="b"),
        Input("residual", ("M", "N")),
        Input("gamma", ("N",), draw="gain"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-5),
    ),
    outputs=(
        Result("h", ("M", "N")),
        Result("q", ("M", "N")),
        Result("rstd", ("M",), dtype="float32"),
        Result("shift", ("M",), dtype="float32"),
    ),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32}, "several column tiles per statistic"),
        Shape("smoke", {"M": 64, "N": 64, "K": 40}, "square: a row's number is not a column's"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "a row of two: the deviation is half their distance"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "two columns past a tile: moments over N, not over whole tiles"),
        Shape("ragged", {"M": 129, "N": 258, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 199, "N": 6, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B out-projection: compute-bound, two extra matrices"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B out-projection"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: the finishing step weighs more"),
    ),
    description="""\
h = y @ w_o + residual
q[i, j] = h[i, j]·gamma[j]
mean[i] = (1/N)·Σ_j h[i, j],  variance[i] = (1/N)·Σ_j (h[i, j] - mean[i])²
rstd[i] = (variance[i] + eps)^(-1/2)
shift[i] = rstd[i]·mean[i]

y is (M, K), w_o is (K, N), residual, h and q are (M, N), gamma is (N,), eps is a number (1e-5 unless given). h and
q have the dtype of y, each rounded once from the unrounded sum; rstd and shift are (M,), fp32, of the unrounded h;
mean and variance are not returned. The normalised matrix itself is not asked for: diag(rstd)·q is, and shift is
what the next linear layer subtracts (see the folded LayerNorm).""",
)
