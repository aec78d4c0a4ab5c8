"""What a task costs on a shape whoever computes it: where the floor of a benchmark comes from.

    gemms     (M, N, K) of every product that the task's own reference computes
    flops     of those products together
    traffic   bytes of the declared inputs and outputs, each once
    elements  how many numbers those are

Nothing of a candidate enters: one that computes its logits twice to save their storage has twice the work and the same floor. The
reference is obvious PyTorch, so its products are the task's; it is followed on meta tensors, which have sizes and no values, and so
costs nothing at any size. `coda.bench.roofline` makes a time of these numbers with the rates of a run; `bench.py` and `entrants.py`
ask here, for the race and for the plain GEMM that runs beside it. A reference that multiplies more than it has to makes the floor
too high, which shows as SUSPECT.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..task import Dims, Task, lengths
from . import inputs as draws
from .blame import trusted
from .racing import DTYPE

Gemm = tuple[int, int, int]
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "mv": 0, "addmv": 1}
"""Operations that every product of PyTorch ends in (`@`, `matmul`, `linear`, `einsum` …), and where their two factors begin."""


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down the sizes of every product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Gemm] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = PRODUCTS.get(func.overloadpacket.__name__)
        if first is not None:
            a, b = args[first : first + 2]
            columns = b.shape[-1] if b.ndim > 1 else 1
            self.found += [(a.shape[-2], columns, a.shape[-1])] * math.prod(a.shape[:-2])
        return func(*args, **(kwargs or {}))


def gemms(task: Task, inputs: Mapping[str, Any]) -> tuple[Gemm, ...]:
    """Every product of the reference at the sizes of these inputs, in order; their values are not looked at. Raises `Blamed`
    where the reference cannot be followed without values."""
    sizes = {n: x.to("meta") if isinstance(x, torch.Tensor) else x for n, x in inputs.items()}
    with trusted(f"the reference of {task.id} on sizes alone"), torch.no_grad(), _Products() as products:
        task.reference(**sizes)
    return tuple(products.found)


def flops(task: Task, dims: Dims) -> int:
    """Floating-point operations of the products."""
    return sum(2 * m * n * k for m, n, k in gemms(task, draws.blank(task, dims, DTYPE)))


def traffic(task: Task, dims: Dims) -> int:
    """Bytes of declared inputs and outputs, each once, in the dtype of benchmarks."""
    return sum(count * size for count, size in _sizes(task, dims))


def elements(task: Task, dims: Dims) -> int:
    """How many numbers the declared inputs and outputs hold."""
    return sum(count for count, _ in _sizes(task, dims))


def _sizes(task: Task, dims: Dims) -> Iterable[tuple[int, int]]:
    """(elements, bytes of each) of every input and output."""
    for i in task.inputs:
        if i.default is None:
            yield math.prod(lengths(i.shape, dims)), getattr(torch, draws.input_dtype(i, DTYPE)).itemsize
    for o in task.outputs:
        yield math.prod(lengths(o.shape, dims)), getattr(torch, draws.output_dtype(o.dtype, DTYPE)).itemsize
