"""The finishing kernel: combines every statistic's partials and writes every vector output, in one launch.

Partials lie as the shared finisher reads them: per statistic of rows one plane of (tiles of N, M), selected columns (M,),
per statistic of columns (tiles of M, N). Only a log-sum-exp differs: a tile contributes its own log-sum-exp, not a
maximum and a sum, so `combine_logs` folds those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coda.backends.cutedsl.shared import LANES, Anatomy, Axis, Finisher, Form, Statistic, module, sections, statistic
from coda.primitives.types import DType, Kind
from coda.problem import Problem
from coda.program import EpilogueProgram

Getter = Callable[[Mapping[str, Any], Any], Any]

HEAD = '''"""Generated for program {name!r}; do not edit.

program   {digest}
tensors   {tensors}
"""

import triton
import triton.language as tl

from coda.backends.triton import maths
from coda.backends.triton.pieces import SLOTS, combine, plane, scalar


@triton.jit
def combine_logs(logs, slots, length, at, ok):
    """log Σ exp of the log-sum-exps of tiles, as PyTorch for infinities and NaN."""
    top = combine(logs, slots, length, at, ok, "max")
    base = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    total = tl.zeros((SLOTS, at.shape[0]), tl.float32)
    for first in range(0, slots, SLOTS):
        total += tl.exp(plane(logs, first, slots, length, at, ok, float("-inf")) - base[None, :])
    return base + tl.log(tl.sum(total, axis=0))


@triton.jit({options})
def finish_kernel({arguments}):
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
            return (self.m, self.slots), (1, self.m), dict(self.anatomy.sliced())[s] * self.slots * self.m
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
    """The kernel and what it takes."""

    text: str
    kernel: Any
    arguments: tuple[Getter, ...]
    blocks: int
    fusion: bool

    def run(self, tensors: Mapping[str, Any], partials: Any) -> None:
        """Launch on the current device and stream."""
        arguments = [get(tensors, partials) for get in self.arguments]
        self.kernel[(self.blocks,)](*arguments, num_warps=4, num_stages=2, enable_fp_fusion=self.fusion)


def text_of(program: EpilogueProgram, problem: Problem) -> tuple[str, list[tuple[str, str]]]:
    """The module's text and its arguments: (name, key in the tensors or what else it is)."""
    writer = _Writer(Anatomy(program), problem, Form(128, 128, 128, False, native_fp8=True), parts=1)
    body = writer.write()
    arguments: list[tuple[str, str]] = []
    scalars: list[str] = []
    for operand in program.operands:
        if operand.name not in writer.used:
            continue
        if operand.kind is Kind.SCALAR:
            scalars.append(f"{operand.name}_arg")
            arguments.append((f"{operand.name}_arg", operand.name))
            continue
        arguments += _vector(f"{operand.name}_ptr", operand.name, problem)
    for output in writer.anatomy.vector_outputs:
        arguments += _vector(f"{output.name}_out", f"out.{output.name}", problem)
    arguments += [("partials", ""), ("tiles_n", "=tiles_n"), ("tiles_m", "=tiles_m"), ("M", "=m"), ("N", "=n")]
    head = HEAD.format(
        name=program.name,
        digest=program.digest,
        tensors=", ".join(f"{n}: {s.dtype} {s.layout}" for n, s in problem.tensors),
        options=f"do_not_specialize={scalars}" if scalars else "",
        arguments=", ".join(name for name, _ in arguments),
    ).replace("@triton.jit()", "@triton.jit")
    text = head + "\n".join("    " + line for line in body) + "\n"
    return text.replace("LANES", str(LANES)), arguments


def _vector(name: str, tensor: str, problem: Problem) -> list[tuple[str, str]]:
    found = [(name, tensor)]
    if problem.spec(tensor).layout == "any":
        found.append((f"{name}_stride", f"|{tensor}"))
    return found


def has_finisher(program: EpilogueProgram) -> bool:
    """Whether the program returns a vector."""
    return bool(Anatomy(program).vector_outputs)


def make(program: EpilogueProgram, problem: Problem, slots: int, tiles_m: int) -> Finish | None:
    """The finisher of a program, or None where it returns no vector."""
    if not has_finisher(program):
        return None
    anatomy = Anatomy(program)
    text, arguments = text_of(program, problem)
    sizes = {"tiles_n": slots, "tiles_m": tiles_m, "m": problem.m, "n": problem.n}
    numbers = {o.name: int if o.dtype is DType.INT else float for o in program.operands if o.kind is Kind.SCALAR}
    getters = tuple(_getter(key, sizes, numbers) for _, key in arguments)
    kernel = module(text, f"{program.name}_finish").finish_kernel
    return Finish(text, kernel, getters, sections(anatomy, problem.m, problem.n), program.fast_math)


def _getter(key: str, sizes: Mapping[str, int], numbers: Mapping[str, type]) -> Getter:
    if not key:
        return lambda tensors, partials: partials
    if key.startswith("="):
        size = sizes[key[1:]]
        return lambda tensors, partials: size
    if key.startswith("|"):
        return lambda tensors, partials: tensors[key[1:]].stride(0)
    if key in numbers:
        return functools.partial(_number, key, numbers[key])
    return lambda tensors, partials: tensors[key]


def _number(key: str, number: type, tensors: Mapping[str, Any], partials: Any) -> Any:
    """A number of the scalar's dtype, or the 0-d tensor that is read on the device."""
    x = tensors[key]
    return number(x) if isinstance(x, (int, float)) else x
