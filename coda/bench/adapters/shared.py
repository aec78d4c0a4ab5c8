"""What several peers need: their layouts, their mark for ignored targets, and the target's logit in PyTorch.

    in_halves, interleaved, joined     gate and up (or a pair's two columns) apart and together, as packages keep them
    head_of                            size of a head
    inside, ignored_as_marker          which targets count, and the others as the packages mark them
    target_logit, gathered, loss_of    the logit of each row's target, for kernels that do not return it

Neighbours: every other file of this folder; `coda.layout` has the permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coda.bench.candidates import Inputs, Outputs

IGNORED = -100
"""The one target that the packages take for "ignored"."""


def in_halves(inputs: Inputs, names: Sequence[str]) -> dict[str, Any]:
    """The inputs with these in halves instead of interleaved along their columns."""
    from coda.layout import split_gate_up

    return {name: split_gate_up(x, 1).contiguous() if name in names else x for name, x in inputs.items()}


def interleaved(outputs: Outputs, names: Sequence[str]) -> dict[str, Any]:
    """The inverse, for outputs."""
    from coda.layout import interleave_gate_up

    return {name: interleave_gate_up(x, 1) if name in names else x for name, x in outputs.items()}


def joined(even: Any, odd: Any) -> Any:
    """Two matrices (M, N) as the even and odd columns of one (M, 2N)."""
    import torch

    from coda.layout import interleave_gate_up

    return interleave_gate_up(torch.cat([even, odd], 1), 1)


def head_of(inputs: Inputs) -> int:
    """Columns of a head where each is normalised: its gain has one number per column."""
    return int(inputs["gamma"].shape[0])


def inside(target: Any, columns: int) -> Any:
    """Whether each target is in the vocabulary."""
    return (target >= 0) & (target < columns)


def ignored_as_marker(inputs: Inputs) -> Inputs:
    """Targets outside the vocabulary as `IGNORED`."""
    import torch

    columns = inputs["w_head" if "w_head" in inputs else "w"].shape[-1]
    target = inputs["target"]
    return {**inputs, "target": torch.where(inside(target, columns), target, IGNORED)}


def target_logit(logits: Any, target: Any) -> tuple[Any, Any]:
    """Each row's logit (M,) at its target in fp32, and whether the target counts; where it does not, any number."""
    picked = logits.gather(1, target.clamp(0, logits.shape[1] - 1)[:, None])[:, 0].float()
    return picked, inside(target, logits.shape[1])


def gathered(logits: Any, target: Any) -> Any:
    """Each row's logit at its target, 0 for targets outside."""
    picked, counts = target_logit(logits, target)
    return picked.masked_fill(~counts, 0.0)


def loss_of(logits: Any, lse: Any, target: Any) -> Any:
    """Each row's cross-entropy from its log-sum-exp, 0 for targets outside."""
    picked, counts = target_logit(logits, target)
    return (lse - picked).masked_fill(~counts, 0.0)
