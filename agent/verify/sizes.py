"""Sizes at which a candidate is tried: the task's own, and hidden ones drawn per run.

    Rules           what the task's small shapes have in common: the step of each dim, and dims that are always equal
    hidden          tiny, near and far sizes that keep those rules
    bounded         sizes cut down until all dims multiplied are at most a limit
    distinct_dims   small sizes with all lengths different, for telling symbolic shapes apart

A dim whose smoke and ragged sizes are all multiples of 64 is taken to need multiples of 64; one that is 199 somewhere may be
anything. So a task says what it allows by the ragged shapes that it lists.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

from ..task import Dims, Task

MAX_ELEMENTS = 1 << 21
"""Of M·N·K (all dims multiplied where there are fewer) of a hidden shape: fp64 on a CPU stays well under a second."""


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
