"""The kernels of this process by number: constants are all that a graph under construction can pass on.

    take      a number for a kernel
    kernel    the kernel with a number

`coda.torch_operator` asks a kernel for the program that a call means; a kernel stands above it. Imports no torch.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Protocol

from coda.plan import Plan
from coda.program import EpilogueProgram


class Specialising(Protocol):
    """What has a number."""

    def specialised(self, dtypes: Mapping[str, str], constants: Mapping[str, int | bool]) -> EpilogueProgram | Plan:
        """The program for arguments that hold "int" or "float" by name, and for compile-time constants."""


_numbers = itertools.count()
_kernels: weakref.WeakValueDictionary[int, Specialising] = weakref.WeakValueDictionary()


def take(kernel: Specialising) -> int:
    """The number of a new kernel; it keeps nothing alive."""
    number = next(_numbers)
    _kernels[number] = kernel
    return number


def kernel(number: int) -> Specialising:
    """The kernel with this number. Raises `KeyError` where it is gone."""
    return _kernels[number]
