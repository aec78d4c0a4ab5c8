"""What a generated kernel takes: the run-time arguments of scalars and vectors, and the decorator of the kernel.

    Argument    one run-time argument: where a launch finds it, and its type for cross-compilation
    scalar      of a scalar operand
    pointer     of any tensor
    vector      of a row or a column: a pointer, and a stride where it is not contiguous
    decorator   the line above a kernel that takes such arguments

`dispatch` turns the tensors of a launch into them. Matrices are the business of who reads them tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coda.backends.finishing import lowering
from coda.primitives.types import DType
from coda.problem import Problem
from coda.program import Operand


@dataclass(frozen=True)
class Argument:
    """One run-time argument. `what` is pointer, stride, descriptor, scalar, size or workspace."""

    name: str
    what: str
    tensor: str = ""
    """Key in the tensors of a launch."""
    type: str = "i32"
    dim: int = 0
    block: tuple[int, int] = (0, 0)
    swapped: bool = False
    """A descriptor of the transpose."""


def scalar(operand: Operand) -> Argument:
    """The argument of a scalar operand."""
    number = "i64" if operand.dtype is DType.INT else "fp32"
    return Argument(f"{operand.name}_arg", "scalar", operand.name, number)


def pointer(name: str, tensor: str, problem: Problem, native_fp8: bool) -> Argument:
    """The argument through which a tensor's elements are reached."""
    return Argument(name, "pointer", tensor, lowering.pointer_type(problem.spec(tensor).dtype, native_fp8))


def vector(name: str, tensor: str, problem: Problem, native_fp8: bool) -> list[Argument]:
    """The arguments of a row or a column."""
    strides = [Argument(f"{name}_stride", "stride", tensor)] if problem.spec(tensor).layout == "any" else []
    return [pointer(name, tensor, problem, native_fp8), *strides]


def decorator(arguments: Iterable[Argument]) -> str:
    """Scalars are never compiled in: a new value is no new kernel."""
    scalars = [f'"{a.name}"' for a in arguments if a.what == "scalar"]
    return f"@triton.jit(do_not_specialize=[{', '.join(scalars)}])" if scalars else "@triton.jit"
