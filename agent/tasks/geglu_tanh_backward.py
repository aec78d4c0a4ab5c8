"""Task: the backward pass of GeGLU (tanh form) behind the down-projection's data gradient, with the activation recomputed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task


def forward(
    z: Tensor,  # (M, 2N), gate and up interleaved
    w2_t: Tensor,  # (K, N)
    **_: Tensor,
) -> Tensor:
    """The second half of the MLP, whose result has the gradient `dy`."""
    gate, up = z[:, 0::2], z[:, 1::2]
    return (0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up) @ w2_t.mT


def reference(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, 2N), gate and up interleaved
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    dh, z = dy.to(wide) @ w2_t.to(wide), z.to(wide)
    gate, up = z[:, 0::2], z[:, 1::2]
    t = torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * gate**2)
    value, slope = 0.5 * gate * (1 + t), 0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * inner
    dz = torch.empty_like(z)
    dz[:, 0::2] = dh * up * slope
    dz[:, 1::2] = dh * value
    return {"dz": dz, "h": value * up, "zdz": (z * dz).sum(1)}


def baseline(
    dy: Tensor,  # (M, K)
    w2_t: Tensor,  # (K, N)
    z: Tensor,  # (M, 2N), gate and up interleaved
) -> dict[str, Tensor]:
    """One GEMM, then the elementwise part in fp32 as fused PyTorch code has it."""
    dh = (dy @ w2_t).float()
    gate, up = z[:, 0::2].float(), z[:, 1::2].float()
    square = gate.square()
    t = torch.tanh(math.sqrt(2 / math.pi) * gate * (1 + 0.044715 * square))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * square)
    value, slope = 0.5 * gate * (1 + t), 0.5 * (1 + t) + 0.5 * gate * (1 - t.square()) * inner
    dgate, dup = dh * up * slope, dh * value
    return {
        "dz": torch.stack([dgate, dup], -1).flatten(1).to(dy.dtype),
        "h": (value * up).to(dy.dtype),
        "zdz": (gate * dgate + up * dup).sum(1),
    }


TASK = Task(
    id="geglu_tanh_backward",
    title="Tanh GeGLU backward behind the dgrad GEMM",
    aliases=(
        "geglu tanh bwd",
        "tanh geglu backward",
        "backward of tanh geglu",
        "approximate geglu backward",
        "gemma mlp backward",
    ),
    family="gated-backward",
    difficulty=3,
    inputs=(
        Input("dy", ("M", "K"), role="a"),
        Input("w2_t", ("K", "N"), draw="weight", role="b"),
        Input("z", ("M", "2*N")),
    ),
    outputs=(Result("dz", ("M", "2*N")), Result("h", ("M", "N")), Result("zdz", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(forward=forward, upstream="dy", wrt={"dz": "z"}, linear=("dz", "zdz")),
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1}, "one pair"),
        Shape("ragged", {"M": 37, "N": 65, "K": 129}, "every size odd: pairs straddle no tile"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: five matrices of traffic, the heaviest epilogue"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B: the GEMM hides most of it"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: bandwidth tells"),
    ),
    needs=(
        "Tile",
        "pair",
        "row_sum",
        "tanh",
        "unpair",
        "wide-tile",
        "wide-output",
        "column-pairs",
        "row-statistic",
        "row-dot",
        "recomputed-output",
    ),
    description="""\
D = dy @ w2_t
g = z[i, 2k],  u = z[i, 2k+1]
T = tanh(√(2/π)·(g + 0.044715·g³)),  T' = (1 - T²)·√(2/π)·(1 + 3·0.044715·g²)
dz[i, 2k]   = D[i, k]·u·(½·(1 + T) + ½·g·T')
dz[i, 2k+1] = D[i, k]·½·g·(1 + T)
h[i, k] = ½·g·(1 + T)·u
zdz[i] = Σ_k (g·dz[i, 2k] + u·dz[i, 2k+1])

dy is (M, K), w2_t is (K, N), z is (M, 2N) and holds the saved pre-activation, gate k in column 2k and up k in
column 2k+1; dz has the same layout. h, (M, N), is the activation, recomputed for the weight gradient. zdz is (M,),
fp32: the raw sum of z·dz over the row, of the unrounded dz. dz and h have the dtype of dy, each rounded once.
This is the tanh form of GELU, not the exact one.""",
)
