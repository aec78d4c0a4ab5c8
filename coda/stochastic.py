"""What rounding does to a computation, found by rounding at random: Monte-Carlo arithmetic.

    rounding   inside it every PyTorch operation's result is off by one rounding, up or down at random
    spread     how far the outputs of a reference scatter when its inputs and every intermediate value are

A small difference of large values (a loss, the log of a probability near one) is as uncertain as the large values are, and no
rule that looks at the result alone can know. Rounding intermediate results at random and looking at the scatter tells: the
CESTAC method (La Porte and Vignes, 1974; Vignes, Math. Comput. Simulation 35, 1993), in the form of Parker's Monte-Carlo
arithmetic (UCLA CSD-970002, 1997). A few runs are enough for a spread that is right within a factor.

The reference runs in fp64 and each result is moved by 2^-24 of itself, so that what scatters is what a kernel that computes in
fp32 may get wrong. Neighbour: `numerics.py`, which alone says how much of it is allowed; `numerics.response` moves inputs only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FP32 = 2.0**-24
"""One rounding in fp32, relative."""
LAST_BIT, FP64 = 2.0**-23, 2.0**-52
"""Of computations that are in fp32 or fp64 themselves: up or down to the neighbouring number, as CESTAC rounds."""
TINY = 1e-100
"""What a zero among the inputs is moved to: below every scale, and its square is still a number."""
PLACES = 1 << 14
"""Where a stretch of random signs may begin."""
DRAWS = 8
"""Runs of `spread`. Of one element the estimate is less than half of the truth in one case of fifty; the factors of the rule allow
for that."""

_EXACT = """
    abs alias amax amin argmax arange cat clamp clamp_max clamp_min clone constant_pad_nd copy detach empty empty_like expand
    fill flip full full_like gather index index_select lift_fresh masked_fill max maximum min minimum narrow neg new_empty
    new_full new_ones new_zeros nan_to_num ones ones_like permute relu repeat reshape roll scalar_tensor scatter select sign
    slice sort split squeeze stack t take tile topk transpose tril triu unbind unfold unsqueeze view where zeros zeros_like
    _to_copy _unsafe_view
"""
EXACT = frozenset(_EXACT.split())
"""Operations (their names without overloads) whose results are values that went in, or constants: they round nothing."""


class _Signs:
    """Factors 1 ± unit in random order. Each use is a stretch of one row of them, from a random place on: as good as fresh ones
    for values that meet each other, and as cheap as a product."""

    def __init__(self, unit: float, seed: int) -> None:
        self.unit, self.seed, self.places = unit, seed, random.Random(seed)
        self.kept: dict[torch.device, torch.Tensor] = {}

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        """Every element off by `unit` of itself, up or down."""
        return x * self._factors(x) if x.is_floating_point() and x.numel() else x

    def moved_input(self, x: torch.Tensor) -> torch.Tensor:
        """The same, and a zero is a tiny number of either sign: on which side of it something happens nobody can say."""
        if not x.is_floating_point() or not x.numel():
            return x
        factors = self._factors(x)
        return x * factors + torch.where(x == 0, (factors - 1).sign() * TINY, 0)

    def _factors(self, x: torch.Tensor) -> torch.Tensor:
        have = self.kept.get(x.device)
        if have is None or have.numel() < x.numel() + PLACES:
            generator = torch.Generator(device=x.device).manual_seed(self.seed)
            count = 2 * x.numel() + PLACES
            signs = torch.randint(0, 2, (count,), generator=generator, device=x.device, dtype=torch.int8)
            have = self.kept[x.device] = signs.double().mul_(2 * self.unit).add_(1 - self.unit)
        place = self.places.randrange(PLACES)
        return have[place : place + x.numel()].view(x.shape).to(x.dtype)


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves every floating result of an operation that rounds."""

    def __init__(self, signs: _Signs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.signs = signs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EXACT or func._schema.is_mutable:
            return found
        if isinstance(found, torch.Tensor):
            return self.signs.moved(found)
        if isinstance(found, (tuple, list)):
            return type(found)(self.signs.moved(x) if isinstance(x, torch.Tensor) else x for x in found)
        return found


@contextmanager
def rounding(unit: float, seed: int) -> Iterator[None]:
    """Inside it, on this thread, every floating result of an operation is off by `unit` of itself, up or down at random."""
    with _Rounding(_Signs(unit, seed)):
        yield


def spread(
    reference: Callable[[Mapping[str, Any]], Mapping[str, torch.Tensor]],
    inputs: Mapping[str, Any],
    values: Mapping[str, torch.Tensor],
    *,
    seed: int,
    unit: float = FP32,
    draws: int = DRAWS,
) -> dict[str, torch.Tensor]:
    """RMS over `draws` runs of how far each element of each output moves when every floating input and every result of an
    operation of the reference is off by `unit` of itself, and a zero among the inputs is not quite one. Where the reference jumps,
    its spread is as high as the jump.

    `values` are the right outputs in fp64, and so are `inputs` for a reference; what people run takes them in fp32, with `LAST_BIT`.
    Where a run gives no number nothing is added, nor for an output that is stored in fewer than 32 bits.
    """
    total = {name: torch.zeros_like(value) for name, value in values.items()}
    signs = _Signs(unit, seed)
    for _ in range(draws):
        moved = {name: signs.moved_input(x) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        with _Rounding(signs):
            found = reference(moved)
        for name, value in values.items():
            if torch.finfo(found[name].dtype).bits >= 32:  # else what is seen is the store
                total[name] += (found[name] - value).nan_to_num(0, 0, 0).square()
    return {name: (x / draws).sqrt() for name, x in total.items()}
