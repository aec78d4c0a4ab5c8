"""Inputs that no distribution draws: they go where a kernel branches, saturates or waits.

    ladder     every input, and each alone, at magnitudes from 0 to 10^6; one sign only; rows of zeros; entries of many sizes
    numbers    every number that a caller may give, at other values than its default
    edges      one entry moved until a number that a program compares, or adds a constant to, changes its sign: both
               neighbouring doubles, and the zero between them where there is one
    integers   integer inputs just outside and far away, and at a program's own constants and their neighbours
    lengths    sizes at a program's own constants, and their neighbours

The last are for a candidate with sides that are still missing (`branches.py`). An edge is found by bisection over the doubles, at
most 64 evaluations of the candidate alone. Inputs keep what their draw promises: a positive
one stays positive, angles stay angles. `algebra.py` compares the candidate with the task's reference on all of them.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ..task import Dims, Input, Task
from . import inputs as draws
from .branches import EXTREMES, Branches, Key
from .sizes import LONG_ELEMENTS, Rules, largest_tensor, small_shapes

SIGNED = ("normal", "weight", "small", "gain")
"""Draws whose values may be anything."""
POSITIVE = ("positive", "rstd")
SCALES = (1e-6, 1e-3, 30.0, 64.0, 1e3, 1e6, 1e12)
"""Of all inputs together."""
ALONE = (0.0, 1e-3, 64.0, 1e3, 1e6)
"""Of one input, beside others as drawn."""
ALONE_POSITIVE = (1e-3, 1e3)
OTHERS: tuple[Callable[[float], float], ...] = (lambda x: 0.5 * x, lambda x: 3 * x, lambda x: 1.5 * x + 0.1)
"""Values of a number beside its default: a kernel that has the default as a constant computes something else there. The last is
far from the smallest."""
ORDINARY = 64.0
"""Up to this scale a kernel must be finite where the reference is: in fp64 exp overflows at 709, so an honest formula is."""
STOPS = tuple(sign * 10.0**p for sign in (-1, 1) for p in (-3, -1, 0, 0.5, 1, 1.5, 2, 3, 4, 6))
"""Values of one entry between which edges are looked for."""
BARE = ("", "own", "all")
"""Around the entry that moves stands what was drawn; zeros in its own input; zeros in every other signed one but weights too.
Then nothing is added to what it becomes, and the sum that would skip the number that is looked for is none."""
EDGES, TRIES = 48, 6
"""Bisections of a subject, and of one of its numbers, at most."""
MAX_INTEGER = 1 << 31
FAR_AWAY = (-(1 << 20), 1 << 20)
"""Of an index: further out than any matrix has columns."""


@dataclass(frozen=True)
class Probe:
    """One set of inputs."""

    kind: str
    """extreme, number, edge, integer or size: what the author may know of it."""
    dims: Dims
    inputs: draws.Inputs
    scale: float = 1.0
    """The largest factor by which it differs from what is drawn."""


def base_dims(task: Task) -> Dims:
    """The smallest of the task's own small sizes that has a few rows and columns."""
    found = sorted((dims for _, dims in small_shapes(task)), key=lambda dims: math.prod(dims.values()))
    return next((dims for dims in found if min(dims.values()) >= 6), found[-1])


# magnitudes -----------------------------------------------------------------------------------------------------------


def ladder(task: Task, seed: int) -> Iterator[Probe]:
    """Probes of kind `extreme`."""
    dims = base_dims(task)
    signed = [i for i in task.inputs if i.draw in SIGNED and i.default is None]
    positive = [i for i in task.inputs if i.draw in POSITIVE and i.default is None]

    def drawn(*labels: object) -> draws.Inputs:
        return draws.draw(task, dims, seed=draws.subseed(seed, *labels))

    def changed(
        scale: float, names: list[Input], change: Callable[[torch.Tensor], torch.Tensor], *labels: object
    ) -> Probe:
        inputs = drawn(*labels)
        return Probe("extreme", dims, inputs | {i.name: change(inputs[i.name]) for i in names}, scale)

    for scale in SCALES:
        yield changed(scale, [i for i in signed if i.draw != "weight"], lambda x, s=scale: x * s, "all", scale)  # type: ignore[misc]
    for scale in (1.0, 1e3):
        for sign in (-1, 1):
            yield changed(scale, signed, lambda x, s=scale * sign: x.abs() * s, "sign", scale, sign)  # type: ignore[misc]
    for i in signed:
        for scale in ALONE:
            yield changed(scale, [i], lambda x, s=scale: x * s, i.name, scale)  # type: ignore[misc]
    for i in positive:
        for scale in ALONE_POSITIVE:
            yield changed(scale, [i], lambda x, s=scale: x * s, i.name, scale)  # type: ignore[misc]
    yield changed(1.0, [i for i in signed if i.draw == "normal"], _zero_rows, "rows")
    for at in range(2):
        generator = torch.Generator().manual_seed(draws.subseed(seed, "spread", at) % 2**31)
        yield changed(1e6, signed, lambda x, g=generator: _uneven(x, g), "spread", at)  # type: ignore[misc]


def _zero_rows(x: torch.Tensor) -> torch.Tensor:
    """Every other row; a number alone has none."""
    rows = x.clone()
    if rows.ndim:
        rows[1::2] = 0
    return rows


def _uneven(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each entry of a size of its own: most as drawn, one in eight up to a million times larger or smaller."""
    powers = 12 * torch.rand(x.shape, generator=generator, dtype=torch.float64) - 6
    return torch.where(torch.rand(x.shape, generator=generator) < 0.125, x * 10**powers, x)


# numbers --------------------------------------------------------------------------------------------------------------


def numbers(task: Task, seed: int) -> Iterator[Probe]:
    """Probes of kind `number`: nothing else gives another value than the default."""
    dims = base_dims(task)
    inputs = draws.draw(task, dims, seed=draws.subseed(seed, "numbers"))
    for i in task.inputs:
        if isinstance(i.default, float):
            yield from (Probe("number", dims, {**inputs, i.name: other(i.default)}) for other in OTHERS)


# edges ----------------------------------------------------------------------------------------------------------------


def edges(branches: Branches, task: Task, seed: int) -> Iterator[Probe]:
    """Probes of kind `edge`, until every number that turns something has been driven to zero, or was tried often enough."""
    dims = base_dims(task)
    inputs = draws.draw(task, dims, seed=draws.subseed(seed, "edges"))
    left, tried, done = EDGES, Counter[Key](), set[Key]()
    for bare in BARE:
        for i in task.inputs:
            if i.default is not None or i.draw not in (*SIGNED, *POSITIVE) or not inputs[i.name].numel():
                continue
            where = draws.subseed(seed, i.name, bare) % inputs[i.name].numel()
            line = _Line(branches, _around(task, i, inputs, bare), i.name, where)
            if line.margins(1.0).keys() <= done:
                return  # nothing here turns on a number, or all of it was turned
            for key, low, high in line.crossings([s for s in STOPS if s > 0 or i.draw in SIGNED], done):
                if left == 0:
                    return
                left, tried[key] = left - 1, tried[key] + 1
                values = line.bisected(key, low, high)
                if len(values) == 3 or tried[key] == TRIES or branches.op(key) in (*EXTREMES, "abs", "sign"):
                    done.add(key)
                yield from (Probe("edge", dims, line.at(v), max(1.0, abs(v))) for v in values)


def _around(task: Task, moved: Input, inputs: draws.Inputs, bare: str) -> draws.Inputs:
    """The inputs in which one entry of `moved` is going to differ."""
    names = {moved.name} if bare == "own" else set[str]()
    if bare == "all":
        names = {i.name for i in task.inputs if i is moved or (i.draw in SIGNED and i.draw not in ("weight", "gain"))}
    return {n: torch.zeros_like(x) if n in names else x for n, x in inputs.items()}


class _Line:
    """Inputs that differ in one entry of one of them."""

    def __init__(self, branches: Branches, inputs: Mapping[str, object], name: str, where: int) -> None:
        self.branches, self.inputs, self.name, self.where = branches, inputs, name, where
        self.element: dict[Key, int] = {}

    def at(self, value: float) -> draws.Inputs:
        """With that value in the entry."""
        x = self.inputs[self.name]
        assert isinstance(x, torch.Tensor)
        moved = x.clone()
        moved.view(-1)[self.where] = value
        return {**self.inputs, self.name: moved}

    def margins(self, value: float) -> dict[Key, torch.Tensor]:
        """Of every choice, flat."""
        _, seen = self.branches.run(self.at(value), margins=True)
        return {key: margin.flatten() for key, margin in seen.margins.items()}

    def crossings(self, stops: list[float], known: set[Key]) -> Iterator[tuple[Key, float, float]]:
        """Neighbouring stops between which a number changes its sign, the first for each, but for those that are known."""
        told: set[Key] = set()
        before: tuple[float, dict[Key, torch.Tensor]] | None = None
        for stop in sorted(stops):
            now = self.margins(stop)
            for key, margin in now.items() if before is not None else ():
                assert before is not None
                if key in told or key in known:
                    continue
                turned = (before[1][key].sign() * margin.sign() < 0).nonzero()
                if len(turned):
                    told.add(key)
                    self.element[key] = int(turned[0, 0])
                    yield key, before[0], stop
            before = stop, now

    def bisected(self, key: Key, low: float, high: float) -> list[float]:
        """The two neighbouring doubles between which the number turns, and one where it is 0 if that was met."""
        element = self.element[key]

        def sign(value: float) -> float:
            return float(self.margins(value)[key][element].sign())

        first, last, below = _ordinal(low), _ordinal(high), sign(low)
        while last - first > 1:
            middle = (first + last) // 2
            here = sign(_double(middle))
            if here == 0:
                return [_double(middle - 1), _double(middle), _double(middle + 1)]
            if here == below:
                first = middle
            else:
                last = middle
        return [_double(first), _double(last)]


def _ordinal(x: float) -> int:
    """The doubles numbered in order."""
    (bits,) = struct.unpack("<q", struct.pack("<d", x))
    return int(bits) if bits >= 0 else -(int(bits) + (1 << 63))


def _double(n: int) -> float:
    (x,) = struct.unpack("<d", struct.pack("<q", n if n >= 0 else -n - (1 << 63)))
    return float(x)


# integers and sizes -----------------------------------------------------------------------------------------------------


def integers(branches: Branches, task: Task, seed: int) -> Iterator[Probe]:
    """Probes of kind `integer`: an index holds a constant of the program in some rows, or is just outside or far away; positions run
    past a constant. Both sides of a comparison are soon taken; a wrong constant shows beside it alone."""
    dims = base_dims(task)
    near = sorted({int(c) + d for c in branches.constants() if _whole(c) for d in (-1, 0, 1)})
    for i in task.inputs:
        if i.dtype != "int64":
            continue
        inputs = draws.draw(task, dims, seed=draws.subseed(seed, "integers", i.name))
        x = inputs[i.name]
        if i.draw == "index":
            n = draws.words(dims)
            values = torch.tensor(sorted({*near, -1, 0, n - 1, n, -n, 2 * n, *FAR_AWAY}), dtype=torch.int64)
            for first in range(0, len(values), x.numel()):
                held = values[(first + torch.arange(x.numel())) % len(values)].reshape(x.shape)
                yield Probe("integer", dims, {**inputs, i.name: held})
        else:
            for c in near:
                yield Probe("integer", dims, {**inputs, i.name: x - x.min() + max(0, c - x.numel() // 2)})


def sizes(branches: Branches, task: Task) -> Iterator[Dims]:
    """Sizes at which something is as long as a constant of the program says, or about that; the other dims are tiny."""
    rules, told = Rules.of(task), set()
    tiny = {n: step * 2 if step < 16 else step for n, step in rules.step.items()}
    for constant in sorted(c for c in branches.constants() if _whole(c) and c > 0):
        for length in {int(constant) // 2, int(constant) // 2 + 1, int(constant), int(constant) + 1, 2 * int(constant)}:
            for name in (n for n in rules.step if n not in rules.same and length >= 1):
                dims = rules.complete({**tiny, name: length})
                if largest_tensor(task, dims) <= LONG_ELEMENTS and tuple(sorted(dims.items())) not in told:
                    told.add(tuple(sorted(dims.items())))
                    yield dims


def _whole(c: float) -> bool:
    return math.isfinite(c) and c == int(c) and abs(c) < MAX_INTEGER
