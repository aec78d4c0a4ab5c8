"""Task: a GEMM whose rows are scaled by a finished RMS statistic, z = diag(rstd)·(q @ w).

The second half of a normalised linear layer: the norm's column gain is already in `q`, its row scale is a vector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    rstd: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, w, rstd = q.to(wide), w.to(wide), rstd.to(wide)
    return {"z": (q @ w) * rstd[:, None]}


def baseline(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    rstd: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """A linear layer and a multiplication in the working dtype."""
    return {"z": ((q @ w) * rstd[:, None]).to(q.dtype)}


TASK = Task(
    id="rms_scale",
    title="GEMM with an RMS row scale",
    aliases=(
        "k1",
        "rmsnorm row scale gemm",
        "delayed rms scale",
        "deferred rstd linear",
        "gemm rms scale",
    ),
    family="rms-norm",
    difficulty=1,
    inputs=(
        Input("q", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
    ),
    outputs=(Result("z", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1}, "the smallest problem"),
        Shape("ragged", {"M": 37, "N": 129, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 255, "K": 64}, "one past and one short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: compute-bound, the epilogue tells"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    description="""\
z[i, j] = rstd[i] · Σ_k q[i, k]·w[k, j]

q is (M, K), w is (K, N), rstd is (M,) and fp32. z has the dtype of q and is rounded once, after the scale.""",
    peers=("quack",),
)
