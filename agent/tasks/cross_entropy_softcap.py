"""Task: a language-model head with soft-capped logits, and the log-sum-exp and target logit of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    cap: float = 30.0,
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = cap * torch.tanh((x.to(wide) @ w.to(wide)) / cap)
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    return {
        "logits": logits,
        "lse": torch.logsumexp(logits, 1),
        "target_logit": torch.where(counts, picked, torch.zeros_like(picked)),
    }


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    cap: float = 30.0,
) -> dict[str, Tensor]:
    """The product in the working dtype, then cap and statistics in fp32, as loss code does."""
    wide = cap * torch.tanh((x @ w).float() / cap)
    counts = (target >= 0) & (target < w.shape[1])
    picked = wide.gather(1, target.clamp(0, w.shape[1] - 1)[:, None])[:, 0]
    return {"logits": wide.to(x.dtype), "lse": wide.logsumexp(1), "target_logit": picked.masked_fill(~counts, 0.0)}


TASK = Task(
    id="cross_entropy_softcap",
    title="Cross-entropy statistics of soft-capped logits",
    aliases=(
        "softcap cross entropy",
        "soft capped logits",
        "tanh capped lm head",
        "gemma lm head",
        "logit softcapping",
    ),
    family="cross-entropy",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("target", ("M",), draw="index", dtype="int64"),
        Input("cap", (), draw="positive", dtype="float32", default=30.0),
    ),
    outputs=(
        Result("logits", ("M", "N")),
        Result("lse", ("M",), dtype="float32"),
        Result("target_logit", ("M",), dtype="float32"),
    ),
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
        "row_logsumexp",
        "select_column",
        "tanh",
        "integer-vector",
        "run-time-number",
        "row-statistic",
        "target-and-normaliser",
    ),
    description="""\
logits[i, j] = cap·tanh((Σ_k x[i, k]·w[k, j]) / cap)
lse[i] = log Σ_j exp(logits[i, j])
target_logit[i] = logits[i, target[i]]  if 0 <= target[i] < N  else 0

x is (M, K), w is (K, N) where N is the vocabulary, target is (M,) of int64 and holds ignored rows as indices
outside [0, N), for instance -100; cap is a number (30 unless given). logits has the dtype of x; lse and
target_logit are (M,), fp32, computed from the unrounded, capped logits.""",
)
