"""Task: from attention's output through a whole MLP block: out-projection, norm, SwiGLU, down-projection: three GEMMs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_1: Tensor,  # (N, 2P), gate and up interleaved
    w_2: Tensor,  # (P, N)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused and in the textbook order, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_o.to(wide) + residual.to(wide)
    normed = h / (h.square().mean(1, keepdim=True) + eps).sqrt() * gamma.to(wide)
    z = normed @ w_1.to(wide)
    gate, up = z[:, 0::2], z[:, 1::2]
    return {"h": h, "stream": h + (gate * torch.sigmoid(gate) * up) @ w_2.to(wide)}


def baseline(
    y: Tensor,  # (M, K)
    w_o: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_1: Tensor,  # (N, 2P), gate and up interleaved
    w_2: Tensor,  # (P, N)
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """The same as model code has it, in the working dtype."""
    h = torch.addmm(residual, y, w_o)
    z = F.rms_norm(h, (h.shape[1],), gamma, eps) @ w_1
    return {"h": h, "stream": torch.addmm(h, F.silu(z[:, 0::2]) * z[:, 1::2], w_2)}


TASK = Task(
    id="residual_mlp_block",
    title="Out-projection, residual, RMSNorm and gated MLP",
    aliases=(
        "mlp block plan",
        "out projection and mlp block",
        "attention output through mlp",
        "three gemm decoder block",
        "norm and mlp with both residuals",
    ),
    family="plan",
    difficulty=3,
    kind="plan",
    gemms=3,
    inputs=(
        Input("y", ("M", "K"), role="input"),
        Input("w_o", ("K", "N"), draw="weight", role="input"),
        Input("residual", ("M", "N"), role="input"),
        Input("gamma", ("N",), draw="gain", role="input"),
        Input("w_1", ("N", "2*P"), draw="weight", role="input"),
        Input("w_2", ("P", "N"), draw="weight", role="input"),
        Input("eps", (), draw="positive", dtype="float32", role="input", default=1e-6),
    ),
    outputs=(Result("h", ("M", "N")), Result("stream", ("M", "N"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "P": 80}, "one tile each, four sizes that differ"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32, "P": 64}, "several column tiles per statistic"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1, "P": 1}, "one of everything"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "P": 33}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64, "P": 127}, "one past and one short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130, "P": 259}, "a short statistic, a wide middle"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096, "P": 11008}, "7B: compute-bound, the norm tells"),
        Shape("benchmark", {"M": 4096, "N": 8192, "K": 8192, "P": 22016}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096, "P": 11008}, "a small batch: launches tell"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "Tile",
        "row_mean",
        "rsqrt",
        "silu",
        "unpair",
        "row-scale",
        "column-factor",
        "tile-beside",
        "column-pairs",
        "half-width-output",
        "run-time-number",
        "row-statistic",
        "finished-arithmetic",
        "plan-two-gemms",
        "plan-three-gemms",
        "plan-statistic",
        "plan-tile",
    ),
    description="""\
h = y @ w_o + residual
n[i, j] = h[i, j] · ((1/N)·Σ_j h[i, j]² + eps)^(-1/2) · gamma[j]
z = n @ w_1
a[i, k] = silu(z[i, 2k]) · z[i, 2k+1]        silu(g) = g·sigmoid(g)
stream = h + a @ w_2

y is (M, K), w_o is (K, N), residual, h and stream are (M, N), gamma is (N,), w_1 is (N, 2P) with gate k in column 2k
and up k in column 2k+1, a is (M, P), w_2 is (P, N), eps is a number (1e-6 unless given). h and stream have the dtype of
y; n, z and a are not returned. Three GEMMs, no fourth.""",
)
