"""Task of the curated example of the same name."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(x: Tensor, w: Tensor, v: Tensor, gain: Tensor, eps: float = 1e-5) -> dict[str, Tensor]:
    """Unfused, through PyTorch's layer norm of every head."""
    wide = torch.promote_types(x.dtype, torch.float32)
    gate, v = x.to(wide) @ w.to(wide), v.to(wide)
    heads = v.unflatten(1, (-1, 64))
    normed = (heads - heads.mean(2, keepdim=True)) / (heads.var(2, correction=0, keepdim=True) + eps).sqrt()
    return {"mixed": F.silu(gate) * (normed * gain.to(wide)).flatten(1), "gate": gate}


def baseline(x: Tensor, w: Tensor, v: Tensor, gain: Tensor, eps: float = 1e-5) -> dict[str, Tensor]:
    """As model code has it, in the working dtype."""
    gate = x @ w
    normed = F.layer_norm(v.unflatten(1, (-1, 64)), (64,), gain, None, eps)
    return {"mixed": F.silu(gate) * normed.flatten(1), "gate": gate}


TASK = Task(
    id="retention_gate",
    title="Output gate of a retention layer",
    aliases=(),
    family="example",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("v", ("M", "N")),
        Input("gain", ("64",), draw="gain"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-5),
    ),
    outputs=(Result("mixed", ("M", "N")), Result("gate", ("M", "N"))),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one head"),
        Shape("ragged", {"M": 37, "N": 192, "K": 65}, "three heads"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B"),
    ),
)
