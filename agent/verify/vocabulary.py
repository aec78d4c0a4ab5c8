"""What a kernel file may name: the allow lists that the static gate and the tracing process share.

Standard library only and no relative imports: `trace_child.py` loads it by path. The primitives are not here; they are
`coda.primitives.NAMES`.
"""

from __future__ import annotations

IMPORTS = ("coda", "coda.primitives", "math", "__future__")
"""Modules that a kernel file may import, in any form but `*`."""

CODA_NAMES = ("epilogue", "matmul", "plan", "pointwise", "primitives")
"""What a kernel file may take from `coda`. Ready-made operators, backends and tools are not the author's."""

DECORATORS = ("epilogue", "plan", "pointwise")
"""The decorators, all of `coda`."""

DECORATOR_OPTIONS = {"epilogue": ("fast_math",), "plan": (), "pointwise": ("fast_math",)}
"""Keywords of each."""

BUILTINS = (
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "isinstance", "len", "list", "max",
    "min",     "pow", "range", "reversed", "round", "sorted", "sum", "tuple", "zip",
)  # fmt: skip
"""Builtins of arithmetic and sequences. Not here: whatever reads names, types, files or the user, or prints."""

HIDDEN_ATTRIBUTES = frozenset(
    [
        "format",
        "format_map",
        "mro",
        "gi_frame",
        "gi_code",
        "gi_yieldfrom",
        "cr_frame",
        "cr_code",
        "ag_frame",
        "ag_code",
        "tb_frame",
        "tb_next",
        "f_back",
        "f_globals",
        "f_locals",
        "f_builtins",
        "f_code",
        "func_globals",
        "func_code",
    ]
)
"""Attributes without an underscore that lead out of the vocabulary. `format` reads attributes named in a string."""
