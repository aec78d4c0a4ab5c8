"""What this backend takes from its neighbour, in one place: the parts of `coda.backends.triton` that know no GEMM.

Anatomy, Statistic, statistic   a program taken apart: statistics, their place in the workspace, who writes what
Finisher, Form, Axis, times     the writer of the finishing kernel's text, and its vectors
pointer_type                    dtypes as Triton spells them
module                          text -> imported module
Argument, Dispatch              what a kernel of such a text takes, and its launches
"""

from __future__ import annotations

from coda.backends.triton.analysis import Anatomy, Statistic, statistic
from coda.backends.triton.dispatch import Dispatch
from coda.backends.triton.epilogue import Form
from coda.backends.triton.finish import LANES, Finisher, sections
from coda.backends.triton.launch import module
from coda.backends.triton.lowering import pointer_type
from coda.backends.triton.template import Argument
from coda.backends.triton.vectors import Axis

__all__ = [
    "LANES",
    "Anatomy",
    "Argument",
    "Axis",
    "Dispatch",
    "Finisher",
    "Form",
    "Statistic",
    "module",
    "pointer_type",
    "sections",
    "statistic",
]
