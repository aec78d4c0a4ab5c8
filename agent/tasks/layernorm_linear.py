"""Task: a linear layer behind a LayerNorm whose gain is already in its input: row scale and a rank-one shift.

The mean becomes a rank-one term: a column of the norm's scaled means times a row of the weight's gained column sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    q: Tensor,  # (M, K), the stream times the norm's gain
    w: Tensor,  # (K, N)
    rstd: Tensor,  # (M,)
    shift: Tensor,  # (M,), rstd times the mean
    gamma_w: Tensor,  # (N,)
    offset: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    rstd, shift = rstd.to(wide)[:, None], shift.to(wide)[:, None]
    return {"z": rstd * (q.to(wide) @ w.to(wide)) - shift * gamma_w.to(wide) + offset.to(wide)}


def baseline(
    q: Tensor,  # (M, K), the stream times the norm's gain
    w: Tensor,  # (K, N)
    rstd: Tensor,  # (M,)
    shift: Tensor,  # (M,), rstd times the mean
    gamma_w: Tensor,  # (N,)
    offset: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """A linear layer in the working dtype, then the correction in fp32."""
    return {"z": ((q @ w) * rstd[:, None] - shift[:, None] * gamma_w + offset).to(q.dtype)}


TASK = Task(
    id="layernorm_linear",
    title="GEMM with a folded LayerNorm",
    aliases=(
        "folded layernorm",
        "layernorm forward linear",
        "delayed layernorm scale and shift",
        "layer norm folded into linear",
        "deferred layernorm linear",
    ),
    family="layer-norm",
    difficulty=1,
    inputs=(
        Input("q", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
        Input("shift", ("M",), dtype="float32"),
        Input("gamma_w", ("N",), dtype="float32"),
        Input("offset", ("N",), dtype="float32"),
    ),
    outputs=(Result("z", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one product per element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 7, "N": 5, "K": 199}, "smaller than any tile, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: four vectors beside one matrix"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=("ColVector", "RowVector", "row-scale", "column-factor"),
    description="""\
z[i, j] = rstd[i]·Σ_k q[i, k]·w[k, j] - shift[i]·gamma_w[j] + offset[j]

This is LayerNorm(h) @ W + bias with q = h·diag(gamma), shift = rstd·mean, and two row vectors that were computed
once per weight: gamma_w = gammaᵀW and offset = betaᵀW + bias. q is (M, K), w is (K, N), rstd and shift are (M,),
gamma_w and offset are (N,), all four vectors fp32; they are inputs like any other and drawn independently. z is
(M, N), in the dtype of q, rounded once.""",
)
