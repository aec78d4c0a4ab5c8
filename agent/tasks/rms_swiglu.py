"""Task: a GEMM whose rows are scaled by a finished RMS statistic, followed by SwiGLU over interleaved columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N), gate and up interleaved
    rstd: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    z = (q.to(wide) @ w.to(wide)) * rstd.to(wide)[:, None]
    gate, up = z[:, 0::2], z[:, 1::2]
    return {"z": z, "h": gate * torch.sigmoid(gate) * up}


def baseline(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N), gate and up interleaved
    rstd: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """Scaled projection and activation in the working dtype."""
    z = ((q @ w) * rstd[:, None]).to(q.dtype)
    return {"z": z, "h": F.silu(z[:, 0::2]) * z[:, 1::2]}


TASK = Task(
    id="rms_swiglu",
    title="GEMM with an RMS row scale and SwiGLU",
    aliases=(
        "k2",
        "rmsnorm swiglu",
        "rms scale swiglu",
        "normalised swiglu",
        "deferred rstd swiglu",
    ),
    family="swiglu",
    difficulty=2,
    inputs=(
        Input("q", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
    ),
    outputs=(Result("z", ("M", "N")), Result("h", ("M", "N//2"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one pair"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "two columns past a tile, odd M and K"),
        Shape("ragged", {"M": 129, "N": 258, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 7, "N": 6, "K": 199}, "smaller than any tile, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: compute-bound, the epilogue tells"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    description="""\
z[i, j] = rstd[i] · Σ_k q[i, k]·w[k, j]
h[i, k] = silu(z[i, 2k]) · z[i, 2k+1]        silu(g) = g·sigmoid(g)

q is (M, K), w is (K, N) with N even, rstd is (M,) and fp32, z is (M, N), h is (M, N/2). Gate and up are
interleaved: gate k is column 2k of z, up k is column 2k+1. z is the scaled pre-activation that the backward pass
reads. z and h have the dtype of q, each rounded once; h is computed from the unrounded z.""",
    peers=("quack",),
)
