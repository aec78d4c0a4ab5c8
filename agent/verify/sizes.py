"""Sizes at which a candidate is tried: the task's own, and hidden ones drawn per run.

    Rules           what the task's small shapes have in common: the step of each dim, and dims that are always equal
    hidden          tiny, near and far sizes that keep those rules
    long_shapes     one dim as long as in a benchmark, in a model or longer, the others tiny
    square_shapes   sizes at which outputs are square and as large as an input
    bounded         sizes cut down until all dims multiplied are at most a limit
    distinct_dims   small sizes with all lengths different, for telling symbolic shapes apart

A dim whose smoke and ragged sizes are all multiples of 64 is taken to need multiples of 64; one that is 199 somewhere may be
anything. So a task says what it allows by the ragged shapes that it lists.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..task import Dims, Task, lengths

MAX_ELEMENTS = 1 << 21
"""Of M·N·K (all dims multiplied where there are fewer) of a hidden shape: fp64 on a CPU stays well under a second."""
LONG_ELEMENTS = 1 << 22
"""Of the largest tensor of a long shape; longer ones are left out."""
MODEL_LENGTHS = (1024, 2048, 4096, 5120, 8192, 11008, 14336, 16384, 28672, 32768)
"""Widths, depths and vocabularies that people run: what a kernel could single out without its task naming it."""
SQUARE = 32
"""About the length of a square shape's dims."""


@dataclass(frozen=True)
class Rules:
    """What sizes a task allows."""

    step: dict[str, int]
    """Each dim is a multiple of this."""
    same: dict[str, str]
    """A dim -> another dim that it always equals."""

    @classmethod
    def of(cls, task: Task) -> Rules:
        """From the small shapes of the task (all of them where it has no small one)."""
        shapes = [s.dims for s in (*task.shapes_of("smoke"), *task.shapes_of("ragged"))] or [
            s.dims for s in task.shapes
        ]
        names = list(shapes[0])
        step = {name: functools.reduce(math.gcd, (s[name] for s in shapes)) or 1 for name in names}
        same: dict[str, str] = {}
        if len({tuple(sorted(s.items())) for s in shapes}) > 1:
            for at, name in enumerate(names):
                twin = next((o for o in names[:at] if o not in same and all(s[o] == s[name] for s in shapes)), None)
                if twin is not None:
                    same[name] = twin
        else:  # one shape alone says nothing about what may vary
            step = {name: shapes[0][name] for name in names}
        return cls(step, same)

    def complete(self, chosen: dict[str, int]) -> dict[str, int]:
        """Sizes with multiples of the steps and twins equal."""
        whole = {n: max(1, round(v / self.step[n])) * self.step[n] for n, v in chosen.items()}
        return {n: whole[self.same.get(n, n)] for n in whole}


def hidden(task: Task, rng: random.Random) -> list[tuple[str, Dims]]:
    """(what it is, sizes) of one tiny, one near and one far shape."""
    rules = Rules.of(task)
    tiny = rules.complete({n: step * rng.randint(1, 3) if step < 16 else step for n, step in rules.step.items()})
    base = rng.choice(task.shapes_of("smoke") or task.shapes).dims
    near = rules.complete({n: v + rng.choice((-1, 1)) * rules.step[n] for n, v in base.items()})
    far = rules.complete({n: rules.step[n] * max(1, rng.randint(130, 330) // rules.step[n]) for n in rules.step})
    return [(what, bounded(dims, rules)) for what, dims in (("tiny", tiny), ("near", near), ("far", far))]


def long_shapes(task: Task, rng: random.Random) -> list[Dims]:
    """One long dim at a time: every length of it in a benchmark or a model, one between, one beyond all of these.

    A kernel that counts rows or columns, or asks how many there are, must get any of them right; with the other dims tiny
    that costs next to nothing, whatever the length.
    """
    rules = Rules.of(task)
    returned = {n for n in rules.step for o in task.outputs for text in o.shape if n in text}
    seen = returned if task.gemms < 2 else {*rules.step}
    found: dict[tuple[tuple[str, int], ...], Dims] = {}
    for name in (n for n in rules.step if n not in rules.same):
        own = {s.dims[name] for s in task.shapes_of("benchmark")}
        longest = max(own | {SQUARE * 8})
        between = round(math.exp(rng.uniform(math.log(SQUARE * 8), math.log(longest))))
        beyond = longest + rules.step[name] * rng.randint(1, max(1, longest // (2 * rules.step[name])))
        models = MODEL_LENGTHS if name in seen else ()  # what one GEMM sums over, no epilogue can ask for
        for length in sorted({*own, *models, between, beyond}):
            tiny = {n: step * rng.randint(1, 3) if step < 16 else step for n, step in rules.step.items()}
            dims = rules.complete({**tiny, name: length})
            if largest_tensor(task, dims) <= LONG_ELEMENTS:
                found.setdefault(tuple(sorted(dims.items())), dims)
    return list(found.values())


def largest_tensor(task: Task, dims: Dims) -> int:
    """Elements of the largest input or output."""
    shapes = [*(i.shape for i in task.inputs), *(o.shape for o in task.outputs)]
    return max(math.prod(lengths(shape, dims)) for shape in shapes)


def square_shapes(task: Task) -> list[Dims]:
    """For each matrix that the task returns: neither tiny nor large sizes at which it is square and as large as an input.

    Where no single shape has both, there is one for each. What is transposed, or copied from an input, fits there only.
    """
    rules = Rules.of(task)
    about = list(_about_square(rules))
    found: dict[tuple[tuple[str, int], ...], Dims] = {}
    for output in (o for o in task.outputs if len(o.shape) == 2):
        shapes = [lengths(output.shape, dims) for dims in about]
        square = [rows == columns for rows, columns in shapes]
        copies = [
            any(lengths(i.shape, dims) == shape for i in task.inputs) for dims, shape in zip(about, shapes, strict=True)
        ]
        both = [x and y for x, y in zip(square, copies, strict=True)]
        for fits in (both,) if any(both) else (square, copies):
            chosen = next(itertools.compress(about, fits), None)
            if chosen is not None:
                found.setdefault(tuple(sorted(chosen.items())), chosen)
    return list(found.values())


def _about_square(rules: Rules) -> Iterator[dict[str, int]]:
    """All dims of one length, then some of them doubled."""
    length = math.lcm(*rules.step.values())
    length *= max(1, round(SQUARE / length))
    for factors in itertools.product((1, 2), repeat=len(rules.step)):
        dims = rules.complete({n: length * f for n, f in zip(rules.step, factors, strict=True)})
        if math.prod(dims.values()) <= MAX_ELEMENTS * 8:
            yield dims


def bounded(dims: Dims, rules: Rules, elements: int = MAX_ELEMENTS) -> Dims:
    """Halve the largest dims until their product is at most `elements`; steps are kept."""
    sizes = dict(dims)
    while math.prod(sizes.values()) > elements:
        able = [n for n in sizes if n not in rules.same and sizes[n] >= 2 * rules.step[n]]
        if not able:
            break
        largest = max(able, key=lambda n: sizes[n])
        sizes = rules.complete({**sizes, largest: sizes[largest] // 2})
    return sizes


def small_shapes(task: Task) -> list[tuple[str, Dims]]:
    """The task's own smoke and ragged shapes, cut down where they are large, with their family."""
    rules = Rules.of(task)
    found: dict[tuple[tuple[str, int], ...], tuple[str, Dims]] = {}
    for shape in (*task.shapes_of("smoke"), *task.shapes_of("ragged")):
        dims = bounded(shape.dims, rules)
        found.setdefault(tuple(sorted(dims.items())), (shape.family, dims))
    return list(found.values())


def distinct_dims(task: Task) -> list[Dims]:
    """Two small sets of sizes in which no two dims are equal unless the task always has them equal."""
    rules = Rules.of(task)
    result: list[Dims] = []
    for factors in ((3, 5, 7, 11, 13, 17), (5, 3, 2, 13, 11, 7)):
        sizes: dict[str, int] = {}
        for name, factor in zip(rules.step, factors, strict=False):
            size = rules.step[name] * (factor if rules.step[name] < 64 else factor % 4 + 1)
            while size in sizes.values() and name not in rules.same:
                size += rules.step[name]
            sizes[name] = size
        result.append(rules.complete(sizes))
    return result
