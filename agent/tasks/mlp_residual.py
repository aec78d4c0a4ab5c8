"""Task: a whole gated MLP with its residual: gate and up projection, SwiGLU, down projection, addition: two GEMMs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w_1: Tensor,  # (K, 2P), gate and up interleaved
    w_2: Tensor,  # (P, N)
    residual: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w_1.to(wide)
    gate, up = z[:, 0::2], z[:, 1::2]
    return {"stream": residual.to(wide) + (gate * torch.sigmoid(gate) * up) @ w_2.to(wide)}


def baseline(
    x: Tensor,  # (M, K)
    w_1: Tensor,  # (K, 2P), gate and up interleaved
    w_2: Tensor,  # (P, N)
    residual: Tensor,  # (M, N)
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    z = x @ w_1
    return {"stream": torch.addmm(residual, F.silu(z[:, 0::2]) * z[:, 1::2], w_2)}


TASK = Task(
    id="mlp_residual",
    title="Gated MLP with residual",
    aliases=(
        "swiglu mlp",
        "mlp with residual",
        "feed forward block",
        "whole gated mlp",
        "gate up swiglu down residual",
    ),
    family="plan",
    difficulty=2,
    kind="plan",
    gemms=2,
    inputs=(
        Input("x", ("M", "K"), role="input"),
        Input("w_1", ("K", "2*P"), draw="weight", role="input"),
        Input("w_2", ("P", "N"), draw="weight", role="input"),
        Input("residual", ("M", "N"), role="input"),
    ),
    outputs=(Result("stream", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "P": 80}, "one tile each, four sizes that differ"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32, "P": 64}, "several column tiles"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1, "P": 1}, "one of everything"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "P": 33}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64, "P": 127}, "one past and one short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130, "P": 259}, "a narrow output behind a wide middle"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096, "P": 11008}, "7B: compute-bound, the middle tells"),
        Shape("benchmark", {"M": 4096, "N": 8192, "K": 8192, "P": 22016}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096, "P": 11008}, "a small batch: launches tell"),
    ),
    needs=("Tile", "silu", "unpair", "tile-beside", "column-pairs", "half-width-output", "plan-two-gemms"),
    description="""\
z = x @ w_1
h[i, k] = silu(z[i, 2k]) · z[i, 2k+1]        silu(g) = g·sigmoid(g)
stream = residual + h @ w_2

x is (M, K) (normalised before), w_1 is (K, 2P) with gate k in column 2k and up k in column 2k+1, h is (M, P), w_2 is
(P, N), residual and stream are (M, N). Only stream is returned, in the dtype of x; z need never be written. Two GEMMs, no
third.""",
)
