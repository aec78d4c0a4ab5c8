"""Task of the curated example of the same name, without padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agent.task import Input, Result, Shape, Task


def reference(x: Tensor, w: Tensor, bias: Tensor, s: Tensor) -> dict[str, Tensor]:
    """Unfused, in complex numbers."""
    wide = torch.promote_types(x.dtype, torch.float32)
    mask = torch.sigmoid(x.to(wide) @ w.to(wide) + bias.to(wide))
    spectrum = torch.view_as_complex(s.to(wide).unflatten(1, (-1, 2)).contiguous())
    masked = mask * spectrum
    return {
        "masked": torch.view_as_real(masked).flatten(1),
        "mask": mask,
        "kept": (masked * spectrum.conj()).sum(1).real,
        "energy": masked.abs().square().sum(0),
    }


def baseline(x: Tensor, w: Tensor, bias: Tensor, s: Tensor) -> dict[str, Tensor]:
    """As model code has it: the mask in the working dtype, sums in fp32."""
    mask = F.sigmoid(torch.addmm(bias, x, w))
    masked = (mask[:, :, None] * s.unflatten(1, (-1, 2))).flatten(1)
    wide = masked.float()
    pairs = wide.square().unflatten(1, (-1, 2)).sum(2)
    return {"masked": masked, "mask": mask, "kept": (wide * s.float()).sum(1), "energy": pairs.sum(0)}


TASK = Task(
    id="spectral_mask",
    title="Mask on a complex spectrum",
    aliases=(),
    family="example",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("bias", ("N",)),
        Input("s", ("M", "2*N")),
    ),
    outputs=(
        Result("masked", ("M", "2*N")),
        Result("mask", ("M", "N")),
        Result("kept", ("M",), dtype="float32"),
        Result("energy", ("N",), dtype="float32"),
    ),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B"),
    ),
)
