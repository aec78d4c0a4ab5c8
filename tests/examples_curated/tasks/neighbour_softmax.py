"""Task of the curated example of the same name."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    """Unfused; the diagonal is left out of the sums."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = scale * (x.to(wide) @ x.to(wide).mT)
    s = s.masked_fill(torch.eye(len(s), dtype=torch.bool, device=s.device), -torch.inf)
    return {"share": s.softmax(1).nan_to_num(0), "lse": s.logsumexp(1)}  # a row alone has no neighbour


def baseline(x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    """Products in the working dtype, then fp32; shares from the normaliser, as backward passes of a softmax have it."""
    s = scale * F.linear(x, x).float()
    s = s.masked_fill(torch.eye(len(s), dtype=torch.bool, device=s.device), -torch.inf)
    lse = s.logsumexp(1)
    return {"share": (s - lse[:, None]).exp().nan_to_num(0).to(x.dtype), "lse": lse}


TASK = Task(
    id="neighbour_softmax",
    title="Soft neighbours",
    aliases=(),
    family="example",
    difficulty=2,
    kind="plan",
    gemms=2,
    inputs=(
        Input("x", ("M", "K"), role="input"),
        Input("scale", (), draw="positive", dtype="float32", role="input", default=1.0),
    ),
    outputs=(Result("share", ("M", "M")), Result("lse", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "K": 48}, "one tile"),
        Shape("ragged", {"M": 37, "K": 65}, "every size odd"),
        Shape("benchmark", {"M": 4096, "K": 4096}, "as many rows as a batch"),
    ),
    distributions=("normal",),
)
