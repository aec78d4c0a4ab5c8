"""Task: loss and logits gradient of a language-model head; whether the logits are stored or computed twice is the author's."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    dloss: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(wide) @ w.to(wide)
    lse = torch.logsumexp(logits, 1)
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    hit = torch.arange(logits.shape[1], device=x.device) == target[:, None]
    gradient = (torch.softmax(logits, 1) - hit.to(wide)) * dloss.to(wide)[:, None]
    return {
        "loss": torch.where(counts, lse - picked, torch.zeros_like(lse)),
        "dlogits": torch.where(counts[:, None], gradient, torch.zeros_like(gradient)),
    }


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    dloss: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """One product in the working dtype, then loss and gradient in fp32, as loss code does."""
    wide = (x @ w).float()
    lse = wide.logsumexp(1)
    counts = (target >= 0) & (target < w.shape[1])
    picked = wide.gather(1, target.clamp(0, w.shape[1] - 1)[:, None])[:, 0]
    hit = torch.arange(w.shape[1], device=x.device) == target[:, None]
    dlogits = (torch.exp(wide - lse[:, None]) - hit.float()) * dloss.masked_fill(~counts, 0.0)[:, None]
    return {"loss": (lse - picked).masked_fill(~counts, 0.0), "dlogits": dlogits.to(x.dtype)}


TASK = Task(
    id="cross_entropy_loss_and_gradient",
    title="Cross-entropy loss and logits gradient",
    aliases=(
        "loss and dlogits",
        "cross entropy forward and backward",
        "language model head loss and gradient",
        "cross entropy with its gradient",
    ),
    family="cross-entropy-backward",
    difficulty=3,
    kind="plan",
    gemms=2,
    inputs=(
        Input("x", ("M", "K"), role="input"),
        Input("w", ("K", "N"), draw="weight", role="input"),
        Input("target", ("M",), draw="index", dtype="int64", role="input"),
        Input("dloss", ("M",), dtype="float32", role="input"),
    ),
    outputs=(Result("loss", ("M",), dtype="float32"), Result("dlogits", ("M", "N"))),
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
        "column_index",
        "columns",
        "exp",
        "row_logsumexp",
        "select_column",
        "where",
        "row-scale",
        "integer-vector",
        "one-column-per-row",
        "row-statistic",
        "finished-arithmetic",
        "finished-guarded",
        "target-and-normaliser",
        "kept-normaliser",
        "pointwise",
        "plan-statistic",
        "plan-repeated-gemm",
    ),
    description="""\
logits = x @ w
lse[i] = log Σ_j exp(logits[i, j])
loss[i] = lse[i] - logits[i, target[i]]  if 0 <= target[i] < N  else 0
dlogits[i, j] = dloss[i]·(exp(logits[i, j] - lse[i]) - (1 if j = target[i] else 0))  if 0 <= target[i] < N  else 0

x is (M, K), w is (K, N) where N is the vocabulary, target is (M,) of int64 and holds ignored rows as indices
outside [0, N), for instance -100; dloss is (M,) and fp32, the gradient of the row's loss. loss is (M,), fp32;
dlogits is (M, N), in the dtype of x. A row's gradient needs its whole log-sum-exp, so it is a plan: the logits may be
stored in the dtype of x and read again, or computed a second time; at most two GEMMs. No overflow for logits of any
size.""",
)
