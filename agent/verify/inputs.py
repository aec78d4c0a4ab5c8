"""Inputs of a task: every draw, every distribution, from the run's own seed.

    draw      a task's inputs at some sizes, rounded to the dtype under test
    blank     their sizes and dtypes alone
    upcast    the same rounded values in fp64, for references: both sides see equal inputs
    run_seed  a fresh secret for one run; `subseed` derives one per case, so a record reproduces every tensor

| draw | values |
|---|---|
| normal | N(0, 1) |
| weight | N(0, 1) / √rows: products with it are of order 1 |
| gain | 1 + 0.1·N(0, 1) |
| positive | 0.5 + \\|N(0, 1)\\| |
| rstd | about 1, as 1 / RMS of rows |
| index | int64 in [0, N), one row in eight outside: -100, N or N + 5 |
| angles | cos and sin of angles, interleaved per pair of columns |
| frequencies | s·base^(-i / length), falling; base in 10^3 … 10^6 and s in 0.5 … 1.5 drawn, so that none can be known |
| positions | 0, 1, 2 … of rows, starting anywhere |
| small | 0.1·N(0, 1) |

Distributions change the data that is drawn `normal`: `large` multiplies `a` (or the first such input) by 8, `huge` by 64, `small`
all by 1e-2, `heavy` cubes them.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import InvalidTask
from ..task import Dims, Input, Task, lengths

TIMES = {"large": 8, "huge": 64}
DISTRIBUTIONS = ("normal", "large", "small", "heavy", "huge")
IGNORED_INDEX = -100

Inputs = dict[str, Any]
"""Tensors by name, and numbers for scalars with a default."""


def run_seed() -> int:
    """A seed that nobody knows before the run."""
    return secrets.randbits(62)


def subseed(seed: int, *labels: object) -> int:
    """A seed for one part of a run."""
    text = "/".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def draw(
    task: Task, dims: Dims, *, seed: int, distribution: str = "normal", dtype: str = "float64", device: str = "cpu"
) -> Inputs:
    """Every input by name, drawn on the CPU (so that a seed means the same everywhere) and moved to `device`.

    `data` tensors are in `dtype`, the others in their own; in float64 everything floating is.
    """
    if distribution not in DISTRIBUTIONS:
        raise InvalidTask(f"{task.id}: no distribution {distribution!r}", hint=f"they are {', '.join(DISTRIBUTIONS)}")
    inputs: Inputs = {}
    for i in task.inputs:
        if i.default is not None:
            inputs[i.name] = i.default
            continue
        value = _shaped(task, i, dims, subseed(seed, i.name))
        inputs[i.name] = _distributed(task, i, value, distribution)
    inputs = rounded(task, inputs, dtype)
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def blank(task: Task, dims: Dims, dtype: str) -> Inputs:
    """Every input by name without its values: sizes and dtypes alone, on the device `meta`."""
    return {
        i.name: i.default
        if i.default is not None
        else torch.empty(lengths(i.shape, dims), dtype=getattr(torch, input_dtype(i, dtype)), device="meta")
        for i in task.inputs
    }


def rounded(task: Task, inputs: Mapping[str, Any], dtype: str) -> Inputs:
    """Every tensor in the dtype that it has when the dtype under test is `dtype`."""
    return {i.name: _rounded(i, inputs[i.name], dtype) for i in task.inputs}


def _rounded(i: Input, value: Any, dtype: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(getattr(torch, input_dtype(i, dtype)))


def input_dtype(i: Input, dtype: str) -> str:
    """Name of an input's dtype where the dtype under test is `dtype`."""
    if i.dtype == "int64":
        return "int64"
    return dtype if i.dtype == "data" or dtype == "float64" else i.dtype


def output_dtype(declared: str, dtype: str) -> str:
    """The same for an output's declared dtype."""
    return dtype if declared == "data" or dtype == "float64" else declared


def upcast(inputs: Mapping[str, Any]) -> Inputs:
    """The same values with every floating tensor in fp64."""
    return {n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in inputs.items()}


def _shaped(task: Task, i: Input, dims: Dims, seed: int) -> torch.Tensor:
    maker = DRAWS.get(i.draw)
    if maker is None:
        raise InvalidTask(f"{task.id}: input {i.name} has no draw {i.draw!r}", hint=f"draws are {', '.join(DRAWS)}")
    generator = torch.Generator().manual_seed(seed)
    return maker(lengths(i.shape, dims), dims, generator)


def _distributed(task: Task, i: Input, value: torch.Tensor, distribution: str) -> torch.Tensor:
    if i.draw != "normal" or distribution == "normal":
        return value
    if distribution == "heavy":
        return value**3
    if distribution == "small":
        return value * 1e-2
    plain = [x for x in task.inputs if x.draw == "normal"]
    scaled = next((x for x in plain if x.role == "a"), plain[0])
    return value * TIMES[distribution] if i is scaled else value


# draws: (shape, dims, generator) -> values in fp64 or int64 -----------------------------------------------------------

Shape = tuple[int, ...]
Draw = Callable[[Shape, Dims, torch.Generator], torch.Tensor]


def _normal(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _weight(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, dims, generator) / math.sqrt(max(shape[0] if shape else 1, 1))


def _gain(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return 1 + 0.1 * _normal(shape, dims, generator)


def _positive(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return 0.5 + _normal(shape, dims, generator).abs()


def _rstd(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return torch.exp(0.25 * _normal(shape, dims, generator))


def _small(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    return 0.1 * _normal(shape, dims, generator)


def words(dims: Dims) -> int:
    """What an index counts: the words of a vocabulary, or columns."""
    return dims.get("V", dims.get("N", 1))


def _index(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    n = words(dims)
    inside = torch.randint(0, max(n, 1), shape, generator=generator)
    outside = torch.tensor([IGNORED_INDEX, n, n + 5])[torch.randint(0, 3, shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.125, outside, inside)


def _angles(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    *rows, columns = shape
    angle = 2 * math.pi * torch.rand((*rows, (columns + 1) // 2), generator=generator, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(-2)[..., :columns]


def _frequencies(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    length = shape[-1] if shape else 1
    scale, power = torch.rand(2, generator=generator, dtype=torch.float64).unbind()
    falling = 10.0 ** (-(3 + 3 * power) * torch.arange(length, dtype=torch.float64) / max(length, 1))
    return (falling * (0.5 + scale)).expand(shape).clone()


def _positions(shape: Shape, dims: Dims, generator: torch.Generator) -> torch.Tensor:
    length = shape[0] if shape else 1
    start = int(torch.randint(0, 64, (), generator=generator))
    column = start + torch.arange(length)
    return (column.reshape(-1, *[1] * (len(shape) - 1)) if shape else column[0]).expand(shape).clone()


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "weight": _weight,
    "gain": _gain,
    "positive": _positive,
    "rstd": _rstd,
    "small": _small,
    "index": _index,
    "angles": _angles,
    "frequencies": _frequencies,
    "positions": _positions,
}
