"""Task: the backward pass of cross-entropy: the logits are recomputed and leave as their gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Gradient, Input, Result, Shape, Task, Tensors


def forward(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    **_: Tensor,
) -> Tensor:
    """The loss of each row, whose gradient is `dloss`. Its logits are no input, so only linearity can be asked of `dlogits`."""
    logits = x @ w
    counts = (target >= 0) & (target < logits.shape[1])
    picked = logits.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    loss = torch.logsumexp(logits, 1) - picked
    return torch.where(counts, loss, torch.zeros_like(loss))


def consistent(inputs: Tensors) -> Tensors:
    """The same inputs with `lse` as the forward pass gives it."""
    wide = torch.promote_types(inputs["x"].dtype, torch.float32)
    lse = torch.logsumexp(inputs["x"].to(wide) @ inputs["w"].to(wide), 1)
    return {**inputs, "lse": lse.to(inputs["lse"].dtype)}


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    lse: Tensor,  # (M,)
    dloss: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(wide) @ w.to(wide)
    counts = (target >= 0) & (target < logits.shape[1])
    hit = torch.arange(logits.shape[1], device=x.device) == target[:, None]
    upstream = torch.where(counts, dloss.to(wide), torch.zeros_like(dloss, dtype=wide))
    dlogits = upstream[:, None] * (torch.exp(logits - lse.to(wide)[:, None]) - hit.to(wide))
    return {"dlogits": dlogits, "zdz": (logits * dlogits).sum(1)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N), N is the vocabulary
    target: Tensor,  # (M,), int64
    lse: Tensor,  # (M,)
    dloss: Tensor,  # (M,)
) -> dict[str, Tensor]:
    """The product in the working dtype, then the gradient in fp32, as loss code does."""
    wide = (x @ w).float()
    counts = (target >= 0) & (target < w.shape[1])
    hit = torch.arange(w.shape[1], device=x.device) == target[:, None]
    dlogits = (torch.exp(wide - lse[:, None]) - hit.float()) * dloss.masked_fill(~counts, 0.0)[:, None]
    return {"dlogits": dlogits.to(x.dtype), "zdz": (wide * dlogits).sum(1)}


TASK = Task(
    id="cross_entropy_backward",
    title="Cross-entropy backward with recomputed logits",
    aliases=(
        "cross entropy bwd",
        "dlogits",
        "backward of cross entropy",
        "softmax minus one hot",
        "lm head loss gradient",
    ),
    family="cross-entropy-backward",
    difficulty=3,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("target", ("M",), draw="index", dtype="int64"),
        Input("lse", ("M",), draw="positive", dtype="float32"),
        Input("dloss", ("M",), dtype="float32"),
    ),
    outputs=(Result("dlogits", ("M", "N")), Result("zdz", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    gradient=Gradient(forward=forward, upstream="dloss", wrt={}, linear=("dlogits", "zdz"), consistent=consistent),
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
    distributions=("normal", "small"),
    needs=(
        "ColVector",
        "column_index",
        "columns",
        "exp",
        "row_sum",
        "where",
        "row-scale",
        "integer-vector",
        "one-column-per-row",
        "row-statistic",
        "row-dot",
        "kept-normaliser",
    ),
    description="""\
logits = x @ w
p[i, j] = exp(logits[i, j] - lse[i])
dlogits[i, j] = dloss[i]·(p[i, j] - (1 if j = target[i] else 0))  if 0 <= target[i] < N  else 0
zdz[i] = Σ_j logits[i, j]·dlogits[i, j]

x is (M, K), w is (K, N) where N is the vocabulary, target is (M,) of int64 and holds ignored rows as indices
outside [0, N), for instance -100. lse and dloss are (M,) and fp32: the log-sum-exp that the forward pass kept (it
is an input like any other and drawn independently of the logits), and the gradient of the row's loss. The logits
are recomputed, not read. dlogits is (M, N), in the dtype of x, rounded once. zdz is (M,), fp32: the raw sum over
the row that a norm in front of the head needs, of the unrounded logits and dlogits.""",
)
