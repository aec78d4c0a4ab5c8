"""The finishing kernel: combines every statistic's partials and writes every vector output, in one launch.

It is launched while the tiles run and waits for them on the device (programmatic dependent launch): quack's kernel lets
its dependents in early.
Partials lie as the shared finisher reads them: per statistic of rows one plane of (tiles of N, M), of moments two, selected
columns (M,), per statistic of columns (tiles of M, N). Only a log-sum-exp differs: a tile contributes its own log-sum-exp, not
a maximum and a sum, so `combine_logs` folds those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coda import env
from coda.backends.finishing.anatomy import Anatomy, Statistic, statistic
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.dispatch import Dispatch
from coda.backends.finishing.finisher import Finisher, options, sections
from coda.backends.finishing.modules import GENERATOR, module
from coda.backends.finishing.vectors import Axis
from coda.problem import Problem
from coda.program import EpilogueProgram

HEAD = '''"""Generated for program {name!r}; do not edit.

program   {digest}
tensors   {tensors}
generator {generator}
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from coda.backends.finishing import maths
from coda.backends.finishing.partials import SLOTS, combine, combine_moments, plane


@triton.jit
def combine_logs(logs, slots, length, at, ok):
    """log Σ exp of the log-sum-exps of tiles, as PyTorch for infinities and NaN."""
    top = combine(logs, slots, length, at, ok, "max")
    base = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        total += tl.exp(plane(logs, first, slots, length, at, ok, float("-inf")) - base[None, :])
    return base + tl.log(tl.sum(total, axis=0))


'''


@dataclass(frozen=True)
class Partials:
    """Where the partials of every statistic lie in one fp32 workspace."""

    anatomy: Anatomy
    m: int
    n: int
    slots: int
    tiles_m: int

    @property
    def size(self) -> int:
        """Numbers in the workspace."""
        return self.anatomy.workspace(self.m, self.n, self.slots, self.tiles_m) if self.anatomy.statistics else 0

    def place(self, s: Statistic) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Shape, strides and first element of one statistic's partials."""
        after_rows = self.anatomy.row_planes * self.slots * self.m
        if s.fold == "select":
            return (self.m,), (1,), after_rows + self.anatomy.selections.index(s) * self.m
        if s.axis == "row":
            planes = s.planes if s.fold == "moments" else 1
            return (self.m, planes * self.slots), (1, self.m), dict(self.anatomy.sliced())[s] * self.slots * self.m
        start = (
            after_rows + len(self.anatomy.selections) * self.m + self.tiles_m * int(self.anatomy.col_start(s) * self.n)
        )
        return (self.tiles_m, self.n), (self.n, 1), start


class _Writer(Finisher):
    """The shared finisher, fed by this backend's partials."""

    def finished(self, index: int, axis: Axis) -> str:
        s = statistic(self.program.nodes[index])
        if s is None or s.fold != "logsumexp":
            return super().finished(index, axis)
        first = dict(self.anatomy.sliced())[s]
        return f"combine_logs(partials + {first} * tiles_n * m64, tiles_n, M, {axis.at}, {axis.ok})"


@dataclass(frozen=True)
class Finish:
    """The kernel, ready to be launched."""

    text: str
    blocks: int
    dispatch: Dispatch

    def run(self, tensors: Mapping[str, Any], partials: Any) -> None:
        """Launch on the current device and stream. `partials`: the workspace, or None where it would be empty."""
        self.dispatch(self.blocks, tensors["a"].device.index or 0, tensors, partials, {})


def text_of(
    program: EpilogueProgram, problem: Problem, tile_n: int, *, overlapped: bool
) -> tuple[str, tuple[Argument, ...]]:
    """The module's text and its kernel's arguments. `overlapped`: it waits on the device for the kernel before it."""
    lines, arguments = _Writer(Anatomy(program), problem, native_fp8=True, slot=tile_n).kernel(overlapped)
    head = HEAD.format(
        name=program.name,
        digest=program.digest,
        tensors=", ".join(f"{n}: {s.dtype} {s.layout}" for n, s in problem.tensors),
        generator=GENERATOR,
    )
    return head + "\n".join(lines) + "\n", arguments


def has_finisher(program: EpilogueProgram) -> bool:
    """Whether the program returns a vector."""
    return bool(Anatomy(program).vector_outputs)


def make(program: EpilogueProgram, problem: Problem, slots: int, tiles_m: int, tile_n: int) -> Finish | None:
    """The finisher of a program, or None where it returns no vector."""
    if not has_finisher(program):
        return None
    overlapped = not env.interpreting()
    text, arguments = text_of(program, problem, tile_n, overlapped=overlapped)
    kernel = module(text, f"{program.name}_finish").finish_kernel
    sizes = {"tiles_n": slots, "tiles_m": tiles_m, "m": problem.m, "n": problem.n}
    blocks = sections(Anatomy(program), problem.m, problem.n)
    how = options(program, overlapped)
    return Finish(text, blocks, Dispatch(kernel, arguments, problem, sizes, how, program.name))
