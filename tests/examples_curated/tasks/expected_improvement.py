"""Task of the curated example of the same name."""

from __future__ import annotations

import torch
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(x: Tensor, w: Tensor, bias: Tensor, best: Tensor, eps: float = 1e-6) -> dict[str, Tensor]:
    """Unfused, with PyTorch's normal distribution function."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w.to(wide) + bias.to(wide)
    mu, sigma = z[:, 0::2], z[:, 1::2].clamp(-8, 4).exp()
    u = (mu - best.to(wide)) / sigma
    density = torch.exp(-u * u / 2) / (2 * torch.pi) ** 0.5
    improvement = (mu - best.to(wide)) * (0.5 * (1 + torch.erf(u / 2**0.5))) + sigma * density
    deviation = (improvement.var(1, correction=0) + eps).sqrt()
    return {"improvement": improvement, "standout": (improvement.amax(1) - improvement.mean(1)) / deviation}


def baseline(x: Tensor, w: Tensor, bias: Tensor, best: Tensor, eps: float = 1e-6) -> dict[str, Tensor]:
    """The product in the working dtype, the rest in fp32."""
    z = torch.addmm(bias, x, w)
    found = reference(z, torch.eye(z.shape[1], dtype=z.dtype, device=z.device), torch.zeros_like(bias), best, eps)
    return {"improvement": found["improvement"].to(x.dtype), "standout": found["standout"]}


TASK = Task(
    id="expected_improvement",
    title="Expected improvement behind a head",
    aliases=(),
    family="example",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",)),
        Input("best", (), dtype="float32"),
        Input("eps", (), draw="positive", dtype="float32", default=1e-6),
    ),
    outputs=(Result("improvement", ("M", "N//2")), Result("standout", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile"),
        Shape("ragged", {"M": 37, "N": 130, "K": 65}, "two columns past a tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B"),
    ),
    distributions=("normal", "small"),
)
