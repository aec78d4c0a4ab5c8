"""Task: the backward pass of RMSNorm behind the data gradient of the linear layer that follows it.

The row statistic `s` comes from the kernel that produced `dz`, so that everything else is local to a tile of `dh`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task, Tensors

EPS = 1e-6
"""The norm's epsilon where the statistics are recomputed; the kernel meets it only inside `rstd`."""


def forward(
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w1_t: Tensor,  # (K, N)
    **_: Tensor,
) -> Tensor:
    """Norm and linear layer, whose result has the gradient `dz`."""
    return (h * (h.square().mean(1, keepdim=True) + EPS).rsqrt() * gamma) @ w1_t.mT


def consistent(inputs: Tensors) -> Tensors:
    """The same inputs with `rstd` and `s` as the forward pass gives them, and no other branch behind `dres`."""
    wide = torch.promote_types(inputs["dz"].dtype, torch.float32)
    dz, w1_t, h, gamma = (inputs[name].to(wide) for name in ("dz", "w1_t", "h", "gamma"))
    rstd = (h.square().mean(1) + EPS).rsqrt()
    s = ((dz @ w1_t) * gamma * h * rstd[:, None]).mean(1)
    statistics = {"rstd": rstd.to(inputs["rstd"].dtype), "s": s.to(inputs["s"].dtype)}
    return {**inputs, **statistics, "dres": torch.zeros_like(inputs["dres"])}


def reference(
    dz: Tensor,  # (M, K)
    w1_t: Tensor,  # (K, N)
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    rstd: Tensor,  # (M,)
    s: Tensor,  # (M,)
    dres: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dz.dtype, torch.float32)
    grad = dz.to(wide) @ w1_t.to(wide)
    gamma, rstd, s = gamma.to(wide), rstd.to(wide)[:, None], s.to(wide)[:, None]
    normed = h.to(wide) * rstd
    return {
        "dh": dres.to(wide) + rstd * (grad * gamma - s * normed),
        "hn": normed * gamma,
        "dgamma": (grad * normed).sum(0),
    }


def baseline(
    dz: Tensor,  # (M, K)
    w1_t: Tensor,  # (K, N)
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    rstd: Tensor,  # (M,)
    s: Tensor,  # (M,)
    dres: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """One GEMM, then the elementwise part in fp32 as fused PyTorch code has it."""
    grad = (dz @ w1_t).float()
    normed = h.float() * rstd[:, None]
    dh = dres.float() + (grad * gamma.float() - normed * s[:, None]) * rstd[:, None]
    return {"dh": dh.to(dz.dtype), "hn": (normed * gamma).to(dz.dtype), "dgamma": (grad * normed).sum(0)}


TASK = Task(
    id="rms_backward",
    title="RMSNorm backward behind the dgrad GEMM",
    aliases=(
        "k6",
        "rmsnorm backward",
        "rms bwd",
        "residual rms backward",
        "backward of rmsnorm",
        "rmsnorm gradient",
    ),
    family="rms-norm-backward",
    difficulty=3,
    inputs=(
        Input("dz", ("M", "K"), role="a"),
        Input("w1_t", ("K", "N"), draw="weight", role="b"),
        Input("h", ("M", "N")),
        Input("gamma", ("N",), draw="gain"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
        Input("s", ("M",), draw="small", dtype="float32"),
        Input("dres", ("M", "N")),
    ),
    outputs=(Result("dh", ("M", "N")), Result("hn", ("M", "N")), Result("dgamma", ("N",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(
        forward=forward,
        upstream="dz",
        wrt={"dh": "h", "dgamma": "gamma"},
        linear=("dh", "dgamma"),
        consistent=consistent,
    ),
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 160, "N": 64, "K": 32}, "several row tiles per column sum"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one row: the column sum is the row"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 257, "N": 129, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33}, "a long, narrow column sum"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: two matrices in, two out"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B: the GEMM hides most of it"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: bandwidth tells"),
    ),
    description="""\
G = dz @ w1_t
n[i, j] = rstd[i]·h[i, j]
dh[i, j] = dres[i, j] + rstd[i]·(G[i, j]·gamma[j] - s[i]·n[i, j])
hn[i, j] = n[i, j]·gamma[j]
dgamma[j] = Σ_i G[i, j]·n[i, j]

dz is (M, K), w1_t is (K, N), h (the saved stream), dres (the gradient that arrives through the residual branch), dh
and hn are (M, N), gamma and dgamma are (N,), rstd and s are (M,) and fp32. s is given: (1/N)·Σ_j G[i,
j]·gamma[j]·n[i, j], which the kernel that produced dz accumulated as (1/N)·Σ_k dz[i, k]·z[i, k]. hn is the operand
of the weight gradient, recomputed. dh and hn have the dtype of dz, each rounded once; dgamma is a raw sum over all
rows, fp32.""",
    peers=("quack",),
)
