"""Task of the curated example of the same name."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(x: Tensor, w: Tensor, bias: Tensor, down: Tensor, up: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    """Unfused, the adapter merged into the weight."""
    wide = torch.promote_types(x.dtype, torch.float32)
    merged = w.to(wide) + scale * (down.to(wide) @ up.to(wide))
    return {"y": x.to(wide) @ merged + bias.to(wide)}


def baseline(x: Tensor, w: Tensor, bias: Tensor, down: Tensor, up: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    """As model code has it, in the working dtype."""
    return {"y": F.linear(x, w.mT, bias) + (x @ down @ up) * scale}


TASK = Task(
    id="lora_linear",
    title="Linear layer with a low-rank adapter",
    aliases=(),
    family="example",
    difficulty=2,
    kind="plan",
    gemms=3,
    inputs=(
        Input("x", ("M", "K"), role="input"),
        Input("w", ("K", "N"), draw="weight", role="input"),
        Input("bias", ("N",), role="input"),
        Input("down", ("K", "R"), draw="weight", role="input"),
        Input("up", ("R", "N"), draw="weight", role="input"),
        Input("scale", (), draw="positive", dtype="float32", role="input", default=1.0),
    ),
    outputs=(Result("y", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48, "R": 16}, "one tile each"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65, "R": 7}, "every size odd"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096, "R": 16}, "7B"),
    ),
)
