"""Task: the end of a language model, from the last down-projection to the loss of each token: two GEMMs, no logits stored."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    y: Tensor,  # (M, K)
    w_2: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_head: Tensor,  # (N, V), V is the vocabulary
    target: Tensor,  # (M,), int64
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Unfused and in the textbook order, in fp32 or fp64."""
    wide = torch.promote_types(y.dtype, torch.float32)
    h = y.to(wide) @ w_2.to(wide) + residual.to(wide)
    normed = h / (h.square().mean(1, keepdim=True) + eps).sqrt() * gamma.to(wide)
    logits = normed @ w_head.to(wide)
    lse = torch.logsumexp(logits, 1)
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    return {"loss": torch.where(counts, lse - picked, torch.zeros_like(lse)), "lse": lse}


def baseline(
    y: Tensor,  # (M, K)
    w_2: Tensor,  # (K, N)
    residual: Tensor,  # (M, N)
    gamma: Tensor,  # (N,)
    w_head: Tensor,  # (N, V), V is the vocabulary
    target: Tensor,  # (M,), int64
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """The same as model code has it: products and norm in the working dtype, the loss in fp32."""
    h = torch.addmm(residual, y, w_2)
    wide = (F.rms_norm(h, (h.shape[1],), gamma, eps) @ w_head).float()
    counts = (target >= 0) & (target < w_head.shape[1])
    picked = wide.gather(1, target.clamp(0, w_head.shape[1] - 1)[:, None])[:, 0]
    lse = wide.logsumexp(1)
    return {"loss": (lse - picked).masked_fill(~counts, 0.0), "lse": lse}


TASK = Task(
    id="lm_head_loss",
    title="Final norm and language-model head with the loss of each token",
    aliases=(
        "lm head with loss",
        "lm head loss plan",
        "final norm lm head and loss",
        "down projection norm head loss",
        "norm scale and cross entropy loss",
    ),
    family="plan",
    difficulty=3,
    kind="plan",
    gemms=2,
    inputs=(
        Input("y", ("M", "K"), role="input"),
        Input("w_2", ("K", "N"), draw="weight", role="input"),
        Input("residual", ("M", "N"), role="input"),
        Input("gamma", ("N",), draw="gain", role="input"),
        Input("w_head", ("N", "V"), draw="weight", role="input"),
        Input("target", ("M",), draw="index", dtype="int64", role="input"),
        Input("eps", (), draw="positive", dtype="float32", role="input", default=1e-6),
    ),
    outputs=(Result("loss", ("M",), dtype="float32"), Result("lse", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "V": 80}, "one tile each, four sizes that differ"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32, "V": 64}, "several column tiles per statistic"),
        Shape("ragged", {"M": 1, "N": 1, "K": 1, "V": 2}, "a row of one, a vocabulary of two"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "V": 34}, "odd sizes; columns past the vocabulary must not count"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64, "V": 126}, "one past and two short of a tile"),
        Shape("ragged", {"M": 199, "N": 7, "K": 33, "V": 1022}, "a short statistic, a wide vocabulary"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 11008, "V": 32768}, "7B: the head tells"),
        Shape("benchmark", {"M": 4096, "N": 8192, "K": 22016, "V": 32768}, "70B"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 11008, "V": 32768}, "few tokens: the partials weigh more"),
    ),
    needs=(
        "ColVector",
        "RowVector",
        "Tile",
        "columns",
        "row_logsumexp",
        "row_mean",
        "rsqrt",
        "select_column",
        "where",
        "row-scale",
        "column-factor",
        "tile-beside",
        "integer-vector",
        "run-time-number",
        "row-statistic",
        "finished-arithmetic",
        "finished-guarded",
        "target-and-normaliser",
        "no-tile-stored",
        "plan-two-gemms",
        "plan-statistic",
    ),
    description="""\
h = y @ w_2 + residual
n[i, j] = h[i, j] · ((1/N)·Σ_j h[i, j]² + eps)^(-1/2) · gamma[j]
logits = n @ w_head
lse[i] = log Σ_j exp(logits[i, j])
loss[i] = lse[i] - logits[i, target[i]]  if 0 <= target[i] < V  else 0

y is (M, K), w_2 is (K, N), residual is (M, N), gamma is (N,), w_head is (N, V) where V is the vocabulary, target is
(M,) of int64 and holds ignored rows as indices outside [0, V), for instance -100; eps is a number (1e-6 unless
given). loss and lse are (M,), fp32, one per row, without overflow for logits of any size. Neither h nor the logits
are returned: no (M, V) matrix need be written. Two GEMMs, no third.""",
)
