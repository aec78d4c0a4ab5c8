"""Synthetic tensors of a problem: its dtypes, stride classes and alignments, and values of order one.

like      an uninitialised tensor with a spec
draw      every input of a program: matrices normal, `b` over the square root of K, vectors in 0.5 … 1.5, integers
          from 0 to below N, and below 127 at most, which every integer dtype holds
results   every output; poison fills them, so that an element nobody wrote shows
size      bytes of all of them
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from coda.primitives.types import DType, Kind
from coda.problem import ITEM_BYTES, Problem, TensorSpec
from coda.program import EpilogueProgram, Operand


def shapes(program: EpilogueProgram, problem: Problem) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor by name: `a`, `b`, operands, and outputs as `out.NAME`."""
    m, n, k = problem.m, problem.n, problem.k
    found: dict[str, tuple[int, ...]] = {"a": (m, k), "b": (k, n)} if program.kind == "epilogue" else {}
    found |= {o.name: o.shape(m, n) for o in program.operands if o.kind is not Kind.SCALAR}
    return found | {f"out.{o.name}": program.output_shape(o.name, m, n) for o in program.outputs}


def size(program: EpilogueProgram, problem: Problem) -> int:
    """Bytes of all tensors of a call."""
    specs = dict(problem.tensors)
    return sum(math.prod(shape) * ITEM_BYTES[specs[name].dtype] for name, shape in shapes(program, problem).items())


def like(spec: TensorSpec, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """An uninitialised tensor that `coda.binding.spec_of` gives this spec."""
    dtype, item = getattr(torch, spec.dtype), ITEM_BYTES[spec.dtype]
    whole = max(1, 16 // item)
    if len(shape) == 1:
        step = 1 if spec.layout == "row" else 2
        strides: tuple[int, ...] = (step,)
        natural = True
    else:
        lead = shape[1] if spec.layout == "row" else shape[0] if spec.layout == "col" else 2 * shape[1]
        if spec.layout != "any" and spec.aligned:
            lead = -(-lead // whole) * whole
        natural = spec.layout == "any" or lead % whole == 0
        lead = max(lead, 1)
        strides = {"row": (lead, 1), "col": (1, lead), "any": (lead, 2)}[spec.layout]
    offset = 1 if natural and not spec.aligned else 0  # else the strides alone make it unaligned
    last = sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) if all(shape) else 0
    buffer = torch.empty(offset + last + 1, dtype=dtype, device=device)
    return buffer.as_strided(shape, strides, offset)


def scalars(program: EpilogueProgram) -> dict[str, Any]:
    """A number for every scalar: its default, or one."""
    return {
        o.name: (o.default if o.default is not None else 1 if o.dtype is DType.INT else 1.0)
        for o in program.operands
        if o.kind is Kind.SCALAR
    }


def empty(program: EpilogueProgram, problem: Problem, device: torch.device) -> dict[str, Any]:
    """Everything that a launch takes, without values."""
    specs = dict(problem.tensors)
    return scalars(program) | {n: like(specs[n], s, device) for n, s in shapes(program, problem).items()}


def draw(program: EpilogueProgram, problem: Problem, device: torch.device, seed: int) -> dict[str, Any]:
    """Every input by name; the same for the same seed on the same kind of device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    specs, found = dict(problem.tensors), scalars(program)
    operands = {o.name: o for o in program.operands}
    for name, shape in shapes(program, problem).items():
        if name.startswith("out."):
            continue
        x = like(specs[name], shape, device)
        found[name] = x.copy_(_values(operands.get(name), name, shape, problem, generator))
    return found


def _values(
    operand: Operand | None, name: str, shape: tuple[int, ...], problem: Problem, generator: torch.Generator
) -> torch.Tensor:
    device = generator.device
    if operand is None or operand.kind is Kind.TILE:
        x = torch.randn(shape, generator=generator, device=device)
        return x / math.sqrt(max(problem.k, 1)) if operand is None and name == "b" else x
    if operand.dtype is DType.INT:
        return torch.randint(0, min(max(problem.n, 1), 127), shape, generator=generator, device=device)
    return torch.rand(shape, generator=generator, device=device) + 0.5


def results(program: EpilogueProgram, problem: Problem, device: torch.device) -> dict[str, torch.Tensor]:
    """A tensor for every output, as `out.NAME`."""
    specs = dict(problem.tensors)
    return {n: like(specs[n], s, device) for n, s in shapes(program, problem).items() if n.startswith("out.")}


def poison(tensors: Iterable[torch.Tensor]) -> None:
    """Set every bit: NaN in every float format, which no right output is full of."""
    for t in tensors:
        torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage()).fill_(0xFF)


def doubled(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with every float in fp64."""
    return {n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in tensors.items()}
