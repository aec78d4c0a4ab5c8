"""Task: the loss of a language-model head with label smoothing, row by row; the logits are never stored."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    smoothing: float = 0.1,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(wide) @ w.to(wide)
    lse = torch.logsumexp(logits, 1)
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    loss = (1 - smoothing) * (lse - picked) + smoothing * (lse - logits.mean(1))
    return {"loss": torch.where(counts, loss, torch.zeros_like(loss)), "lse": lse}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    smoothing: float = 0.1,
) -> dict[str, Tensor]:
    """The product in the working dtype, then PyTorch's own loss in fp32."""
    wide = (x @ w).float()
    ignored = torch.where((target >= 0) & (target < w.shape[1]), target, -100)
    loss = F.cross_entropy(wide, ignored, reduction="none", label_smoothing=smoothing)
    return {"loss": loss, "lse": wide.logsumexp(1)}


TASK = Task(
    id="cross_entropy_smoothing",
    title="Cross-entropy with label smoothing",
    aliases=(
        "label smoothing",
        "smoothed cross entropy",
        "label smoothed lm head loss",
        "linear cross entropy with label smoothing",
    ),
    family="cross-entropy",
    difficulty=3,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("target", ("M",), draw="index", dtype="int64"),
        Input("smoothing", (), draw="positive", dtype="float32", default=0.1),
    ),
    outputs=(Result("loss", ("M",), dtype="float32"), Result("lse", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32}, "a vocabulary of several tiles"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "a vocabulary of two"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "columns past the vocabulary must not count"),
        Shape("ragged", {"M": 129, "N": 300, "K": 64}, "a last tile that is partly empty"),
        Shape("ragged", {"M": 7, "N": 1022, "K": 33}, "few rows, a vocabulary that no tile divides"),
        Shape("benchmark", {"M": 4096, "N": 32768, "K": 4096}, "7B head, V = 32768"),
        Shape("benchmark", {"M": 8192, "N": 32768, "K": 8192}, "70B head, V = 32768"),
        Shape("benchmark", {"M": 512, "N": 32768, "K": 4096}, "few tokens: the partials weigh more"),
    ),
    needs=(
        "ColVector",
        "columns",
        "row_logsumexp",
        "row_mean",
        "select_column",
        "where",
        "integer-vector",
        "run-time-number",
        "row-statistic",
        "finished-arithmetic",
        "finished-guarded",
        "target-and-normaliser",
        "no-tile-stored",
    ),
    description="""\
logits = x @ w
lse[i] = log Σ_j exp(logits[i, j])
loss[i] = lse[i] - (1 - smoothing)·logits[i, target[i]] - smoothing·(1/N)·Σ_j logits[i, j]  if 0 <= target[i] < N
loss[i] = 0  otherwise

x is (M, K), w is (K, N) where N is the vocabulary, target is (M,) of int64 and holds ignored rows as indices
outside [0, N), for instance -100: their loss is 0, their lse is wanted all the same. smoothing is a number (0.1
unless given): that share of the label is spread evenly over all N words, the target's included. loss and lse are
(M,), fp32, one per row, computed from unrounded logits, without overflow for logits of any size. The logits are not
returned: no (M, N) matrix need be written.""",
)
