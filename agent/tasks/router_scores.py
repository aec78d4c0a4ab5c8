"""Task: the router of a mixture of experts: scores in fp32, with each row's maximum and log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), a column per expert
    bias: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = x.to(wide) @ w.to(wide) + bias.to(wide)
    return {"scores": scores, "row_max": scores.amax(1), "lse": torch.logsumexp(scores, 1)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), a column per expert
    bias: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """The product in the working dtype, the rest in fp32, as router code has it."""
    scores = (x @ w).float() + bias
    return {"scores": scores, "row_max": scores.amax(1), "lse": scores.logsumexp(1)}


TASK = Task(
    id="router_scores",
    title="Router scores with row maximum and log-sum-exp",
    aliases=(
        "moe router",
        "router logits",
        "expert router scores",
        "mixture of experts gate",
        "router with row max and logsumexp",
    ),
    family="router",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",), dtype="float32"),
    ),
    outputs=(
        Result("scores", ("M", "N"), dtype="float32"),
        Result("row_max", ("M",), dtype="float32"),
        Result("lse", ("M",), dtype="float32"),
    ),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32}, "several column tiles per statistic"),
        Shape("smoke", {"M": 64, "N": 64, "K": 40}, "as many rows as experts: a row's number is not an expert's"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "two experts"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "columns past the last expert must not count"),
        Shape("ragged", {"M": 129, "N": 258, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 199, "N": 6, "K": 130}, "fewer experts than any tile is wide"),
        Shape("benchmark", {"M": 16384, "N": 256, "K": 4096}, "256 experts: a narrow GEMM, bound by reading x"),
        Shape("benchmark", {"M": 16384, "N": 128, "K": 8192}, "128 experts, long rows"),
        Shape("benchmark", {"M": 512, "N": 256, "K": 4096}, "few tokens: launches tell"),
    ),
    needs=("RowVector", "row_logsumexp", "row_max", "store", "column-factor", "row-statistic", "wide-store"),
    description="""\
scores[i, j] = Σ_k x[i, k]·w[k, j] + bias[j]
row_max[i] = max_j scores[i, j]
lse[i] = log Σ_j exp(scores[i, j])

x is (M, K), w is (K, N) where N is the number of experts, bias is (N,) and fp32. scores is (M, N) and fp32 whatever
the dtype of x: experts are chosen by it. row_max and lse are (M,), fp32, without overflow for scores of any size; a
chosen expert's probability is exp(score - lse), and lse feeds the router's z-loss.""",
)
