"""Task: the language-model head behind the final norm: row scale, logits, log-sum-exp and target logit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    rstd: Tensor,  # (M,)
    target: Tensor,  # (M,), int64
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    logits = (q.to(wide) @ w.to(wide)) * rstd.to(wide)[:, None]
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    return {
        "logits": logits,
        "lse": torch.logsumexp(logits, 1),
        "target_logit": torch.where(counts, picked, torch.zeros_like(picked)),
    }


def baseline(
    q: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    rstd: Tensor,  # (M,)
    target: Tensor,  # (M,), int64
) -> dict[str, Tensor]:
    """Scaled logits in the working dtype, then the two statistics in fp32, as loss code does."""
    logits = ((q @ w) * rstd[:, None]).to(q.dtype)
    wide = logits.float()
    counts = (target >= 0) & (target < w.shape[1])
    picked = wide.gather(1, target.clamp(0, w.shape[1] - 1)[:, None])[:, 0]
    return {"logits": logits, "lse": wide.logsumexp(1), "target_logit": picked.masked_fill(~counts, 0.0)}


TASK = Task(
    id="rms_cross_entropy",
    title="GEMM with an RMS row scale and cross-entropy statistics",
    aliases=(
        "k5",
        "rmsnorm cross entropy",
        "rms scale cross entropy",
        "final norm and lm head",
        "deferred rstd cross entropy",
    ),
    family="cross-entropy",
    difficulty=2,
    inputs=(
        Input("q", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("rstd", ("M",), draw="rstd", dtype="float32"),
        Input("target", ("M",), draw="index", dtype="int64"),
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
        Shape("ragged", {"M": 1, "N": 1, "K": 1}, "a vocabulary of one: the log-sum-exp is the logit"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd; columns past the vocabulary must not count"),
        Shape("ragged", {"M": 129, "N": 300, "K": 64}, "a last tile that is partly empty"),
        Shape("ragged", {"M": 7, "N": 1021, "K": 33}, "few rows, a prime vocabulary"),
        Shape("benchmark", {"M": 4096, "N": 32768, "K": 4096}, "7B head, V = 32768"),
        Shape("benchmark", {"M": 8192, "N": 32768, "K": 8192}, "70B head, V = 32768"),
        Shape("benchmark", {"M": 512, "N": 32768, "K": 4096}, "few tokens: the partials weigh more"),
    ),
    description="""\
logits[i, j] = rstd[i] · Σ_k q[i, k]·w[k, j]
lse[i] = log Σ_j exp(logits[i, j])
target_logit[i] = logits[i, target[i]]  if 0 <= target[i] < N  else 0

q is (M, K), w is (K, N) where N is the vocabulary, rstd is (M,) and fp32, target is (M,) of int64 and holds ignored
rows as indices outside [0, N), for instance -100. logits has the dtype of q; lse and target_logit are (M,), fp32,
computed from the unrounded, scaled logits, without overflow for logits of any size.""",
    peers=("quack",),
)
