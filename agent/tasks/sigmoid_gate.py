"""Task: a linear layer whose sigmoid gates another matrix, as the output gate of an attention or a recurrent layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
    value: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    gate = 1 / (1 + torch.exp(-(x.to(wide) @ w.to(wide) + bias.to(wide))))
    return {"gated": value.to(wide) * gate, "gate": gate}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    bias: Tensor,  # (N,)
    value: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    gate = torch.sigmoid(torch.addmm(bias, x, w))
    return {"gated": value * gate, "gate": gate}


TASK = Task(
    id="sigmoid_gate",
    title="GEMM with a sigmoid gate",
    aliases=(
        "sigmoid output gate",
        "gated attention output",
        "linear sigmoid multiply",
        "attention output gate",
        "recurrent output gate",
    ),
    family="gate",
    difficulty=1,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",)),
        Input("value", ("M", "N")),
    ),
    outputs=(Result("gated", ("M", "N")), Result("gate", ("M", "N"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 128, "K": 32}, "wider than high"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one product per element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B: one matrix in, two out"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=("RowVector", "Tile", "sigmoid", "column-factor", "tile-beside"),
    description="""\
gate[i, j] = sigmoid(Σ_k x[i, k]·w[k, j] + bias[j])
gated[i, j] = value[i, j]·gate[i, j]

x is (M, K), w is (K, N), bias is (N,) in the dtype of x, value, gated and gate are (M, N). gate is what the backward
pass reads. gated and gate have the dtype of x, each rounded once; gated is computed from the unrounded gate.""",
)
