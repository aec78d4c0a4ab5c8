"""Task of the curated example of the same name."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(
    h: Tensor, w: Tensor, token: Tensor, old: Tensor, advantage: Tensor, span: float = 0.2
) -> dict[str, Tensor]:
    """Unfused, through log_softmax."""
    wide = torch.promote_types(h.dtype, torch.float32)
    logits = h.to(wide) @ w.to(wide)
    counts = (token >= 0) & (token < logits.shape[1])
    index = torch.where(counts, token, 0)[:, None]
    logp = F.log_softmax(logits, 1).gather(1, index)[:, 0]
    ratio = (logp - old.to(wide)).exp()
    advantage = advantage.to(wide)
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(1 - span, 1 + span) * advantage)
    return {"logp": logp.where(counts, 0), "loss": loss.where(counts, 0)}


def baseline(
    h: Tensor, w: Tensor, token: Tensor, old: Tensor, advantage: Tensor, span: float = 0.2
) -> dict[str, Tensor]:
    """Logits in the working dtype, the rest in fp32."""
    logits = h @ w
    eye = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return reference(logits, eye, token, old, advantage, span)


TASK = Task(
    id="policy_loss",
    title="Clipped policy objective",
    aliases=(),
    family="example",
    difficulty=2,
    inputs=(
        Input("h", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("token", ("M",), draw="index", dtype="int64"),
        Input("old", ("M",), dtype="float32"),
        Input("advantage", ("M",), dtype="float32"),
        Input("span", (), draw="positive", dtype="float32", default=0.2),
    ),
    outputs=(Result("logp", ("M",), dtype="float32"), Result("loss", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("benchmark", {"M": 4096, "N": 32768, "K": 4096}, "a vocabulary"),
    ),
    distributions=("normal", "small"),
)
