"""What this backend takes from its neighbour, in one place: the parts of `coda.backends.triton` that know no GEMM.

Anatomy, Statistic, statistic   a program taken apart: statistics, their place in the workspace, who writes what
Finisher, Form, Axis, times     the writer of the finishing kernel's text, and its vectors
TRITON_NAMES, pointer_type      dtypes as Triton spells them
module                          text -> imported module
"""

from __future__ import annotations

from coda.backends.triton.analysis import Anatomy, Statistic, statistic
from coda.backends.triton.epilogue import Form
from coda.backends.triton.finish import LANES, Finisher, sections
from coda.backends.triton.launch import module
from coda.backends.triton.vectors import Axis

__all__ = ["LANES", "Anatomy", "Axis", "Finisher", "Form", "Statistic", "module", "sections", "statistic"]
