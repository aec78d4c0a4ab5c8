"""The same mainloop with an empty epilogue: what a kernel's GEMM costs before its epilogue does anything.

`product` is a program like any other; run on a kernel's backend with that kernel's schedule, its time beside the kernel's is
the price of the epilogue, whatever cuBLAS does. Neighbours: `peers.py` has cuBLAS, the other ceiling.
"""

from __future__ import annotations

from typing import Any

import coda


@coda.epilogue
def product(acc: Any) -> dict[str, Any]:
    """a @ b, rounded once."""
    return {"product": acc}


def label(backend: str) -> str:
    """The name under which it is timed."""
    return f"{backend}, empty epilogue"
