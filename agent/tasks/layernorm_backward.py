"""Task: the backward pass of LayerNorm behind the data gradient of the linear layer that follows it.

The two row statistics come from the kernel that produced `dz`, so that everything else is local to a tile of `dh`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task, Tensors

EPS = 1e-5
"""The norm's epsilon where the statistics are recomputed; the kernel meets it only inside `rstd`."""


def forward(
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    beta: Tensor,  # (N,)
    w1_t: Tensor,  # (K, N)
    **_: Tensor,
) -> Tensor:
    """Norm and linear layer, whose result has the gradient `dz`."""
    centred = h - h.mean(1, keepdim=True)
    return (centred * (centred.square().mean(1, keepdim=True) + EPS).rsqrt() * gamma + beta) @ w1_t.mT


def consistent(inputs: Tensors) -> Tensors:
    """The same inputs with every row statistic as the passes give it, and no other branch behind `dres`."""
    wide = torch.promote_types(inputs["dz"].dtype, torch.float32)
    dz, w1_t, h, gamma = (inputs[name].to(wide) for name in ("dz", "w1_t", "h", "gamma"))
    mean = h.mean(1)
    rstd = ((h - mean[:, None]).square().mean(1) + EPS).rsqrt()
    normed, grad = (h - mean[:, None]) * rstd[:, None], (dz @ w1_t) * gamma
    found = {"rstd": rstd, "shift": rstd * mean, "s1": grad.mean(1), "s2": (grad * normed).mean(1)}
    statistics = {name: x.to(inputs[name].dtype) for name, x in found.items()}
    return {**inputs, **statistics, "dres": torch.zeros_like(inputs["dres"])}


def reference(
    dz: Tensor,  # (M, K)
    w1_t: Tensor,  # (K, N)
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    beta: Tensor,  # (N,)
    rstd: Tensor,  # (M,)
    shift: Tensor,  # (M,), rstd times the mean
    s1: Tensor,  # (M,)
    s2: Tensor,  # (M,)
    dres: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dz.dtype, torch.float32)
    grad, gamma, beta = dz.to(wide) @ w1_t.to(wide), gamma.to(wide), beta.to(wide)
    rstd, shift, s1, s2 = (x.to(wide)[:, None] for x in (rstd, shift, s1, s2))
    normed = rstd * h.to(wide) - shift
    return {
        "dh": dres.to(wide) + rstd * (grad * gamma - s1 - s2 * normed),
        "hn": normed * gamma + beta,
        "dgamma": (grad * normed).sum(0),
        "dbeta": grad.sum(0),
    }


def baseline(
    dz: Tensor,  # (M, K)
    w1_t: Tensor,  # (K, N)
    h: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    beta: Tensor,  # (N,)
    rstd: Tensor,  # (M,)
    shift: Tensor,  # (M,), rstd times the mean
    s1: Tensor,  # (M,)
    s2: Tensor,  # (M,)
    dres: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """One GEMM, then the elementwise part in fp32 as fused PyTorch code has it."""
    grad = (dz @ w1_t).float()
    normed = h.float() * rstd[:, None] - shift[:, None]
    dh = dres.float() + (grad * gamma.float() - s1[:, None] - normed * s2[:, None]) * rstd[:, None]
    return {
        "dh": dh.to(dz.dtype),
        "hn": (normed * gamma + beta).to(dz.dtype),
        "dgamma": (grad * normed).sum(0),
        "dbeta": grad.sum(0),
    }


TASK = Task(
    id="layernorm_backward",
    title="LayerNorm backward behind the dgrad GEMM",
    aliases=(
        "layer norm backward",
        "layernorm bwd",
        "residual layernorm backward",
        "backward of layernorm",
        "layernorm gradient",
    ),
    family="layer-norm-backward",
    difficulty=3,
    inputs=(
        Input("dz", ("M", "K"), role="a"),
        Input("w1_t", ("K", "N"), draw="weight", role="b"),
        Input("h", ("M", "N")),
        Input("gamma", ("N",), draw="gain"),
        Input("beta", ("N",), draw="small"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
        Input("shift", ("M",), draw="small", dtype="float32"),
        Input("s1", ("M",), draw="small", dtype="float32"),
        Input("s2", ("M",), draw="small", dtype="float32"),
        Input("dres", ("M", "N")),
    ),
    outputs=(
        Result("dh", ("M", "N")),
        Result("hn", ("M", "N")),
        Result("dgamma", ("N",), dtype="float32"),
        Result("dbeta", ("N",), dtype="float32"),
    ),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(
        forward=forward,
        upstream="dz",
        wrt={"dh": "h", "dgamma": "gamma", "dbeta": "beta"},
        linear=("dh", "dgamma", "dbeta"),
        consistent=consistent,
    ),
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 160, "N": 64, "K": 32}, "several row tiles per column sum"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 257, "N": 129, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33}, "a long, narrow column sum"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one row: the column sum is the row"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: two matrices in, two out, two column sums"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B: the GEMM hides most of it"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: bandwidth tells"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "Tile",
        "col_sum",
        "row-scale",
        "column-factor",
        "tile-beside",
        "column-statistic",
        "recomputed-output",
    ),
    description="""\
G = dz @ w1_t
n[i, j] = rstd[i]·h[i, j] - shift[i]
dh[i, j] = dres[i, j] + rstd[i]·(G[i, j]·gamma[j] - s1[i] - s2[i]·n[i, j])
hn[i, j] = n[i, j]·gamma[j] + beta[j]
dgamma[j] = Σ_i G[i, j]·n[i, j]
dbeta[j] = Σ_i G[i, j]

dz is (M, K), w1_t is (K, N), h (the saved stream), dres (the gradient that arrives through the residual branch), dh
and hn are (M, N), gamma, beta, dgamma and dbeta are (N,), rstd, shift (rstd times the row's mean), s1 and s2 are (M,)
and fp32. s1 and s2 are given: (1/N)·Σ_j G[i, j]·gamma[j] and (1/N)·Σ_j G[i, j]·gamma[j]·n[i, j], which the kernel
that produced dz accumulated as (1/N)·Σ_k dz·(gammaᵀW) and (1/N)·Σ_k dz·(z - betaᵀW). hn is the operand of the
weight gradient, recomputed. dh and hn have the dtype of dz, each rounded once; dgamma and dbeta are raw sums over
all rows, fp32.""",
)
