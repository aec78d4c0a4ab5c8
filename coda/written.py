"""Functions that are written for one purpose and then called many times: straight lines, with nothing left to decide.

Text   a function being written: its lines, and what its names stand for
"""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any


class Text:
    """A function being written. Values and sizes go by name, so that one text, compiled once, serves calls of any sizes: compiling
    takes longer than everything else that a new kind of call needs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, Any] = {}

    def name(self, stem: str, value: Any) -> str:
        """A name for a value, which no other has."""
        name = f"{stem}_{len(self.known)}"
        self.known[name] = value
        return name

    def line(self, text: str) -> None:
        """One more statement."""
        self.lines.append(f"    {text}")

    def function(self, head: str) -> Any:
        """The function. `head`: its name and parameters."""
        exec(_code("\n".join([f"def {head}:", *self.lines])), self.known)  # noqa: S102  our own text; what is quoted is quoted by repr
        return self.known[head[: head.index("(")]]


@functools.lru_cache(maxsize=1024)
def _code(text: str) -> CodeType:
    return compile(text, "<coda, written>", "exec")
