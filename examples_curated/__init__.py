"""The curated bank: one kernel per file, ordered as a ladder, one new idea each.

    catalog   ids in ladder order
    card      rung, idea and title of one, read without running it
    source    the text of one: what a prompt shows
    load      the kernel object of one

Neighbours: `idioms` names what the examples show beyond single primitives, `index` prints who shows what (`README.md`).

Kernel files import `coda`, `coda.primitives` and `math` only. A file named after a task of the bank computes that task;
the others show a primitive that no task needs. Its place is in the file itself, as the constants `RUNG` and `IDEA`, so
a new example is one new file; everything but `load` reads the syntax tree and imports neither coda's kernels nor torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coda.errors import CodaError, near

if TYPE_CHECKING:
    from coda.kernel import Epilogue, PlanKernel, Pointwise

__all__ = ["Card", "InvalidExample", "UnknownExample", "card", "catalog", "load", "source"]

FOLDER = pathlib.Path(__file__).parent
NO_KERNELS = ("idioms.py", "index.py")
"""Modules of this package that are no example."""


class UnknownExample(CodaError):
    """No curated example has that id."""

    code = "unknown-example"


class InvalidExample(CodaError):
    """A file of the bank without a docstring, or without literal `RUNG` and `IDEA`."""

    code = "invalid-example"


@dataclass(frozen=True)
class Card:
    """What a listing shows of an example."""

    id: str
    rung: int
    """Place on the ladder, from 1."""
    idea: str
    """The one thing that the example adds to those below it."""
    title: str
    """First line of the docstring."""
    path: pathlib.Path


def catalog() -> tuple[str, ...]:
    """Every id, from the lowest rung up. Raises `InvalidExample`."""
    return tuple(_cards())


def card(example_id: str) -> Card:
    """The card of one example. Raises `UnknownExample`."""
    cards = _cards()
    if example_id not in cards:
        raise UnknownExample(
            f"no curated example {example_id!r}", hint=near(example_id, cards) or f"there are: {', '.join(cards)}"
        )
    return cards[example_id]


def source(example_id: str) -> str:
    """The text of one example. Raises `UnknownExample`."""
    return card(example_id).path.read_text(encoding="utf-8")


def load(example_id: str) -> Epilogue | Pointwise | PlanKernel:
    """The kernel object of one example. Raises `UnknownExample`."""
    module = importlib.import_module(f"{__name__}.{card(example_id).id}")
    kernel: Epilogue | Pointwise | PlanKernel = module.kernel
    return kernel


def _cards() -> dict[str, Card]:
    paths = [path for path in FOLDER.glob("*.py") if not path.name.startswith("_") and path.name not in NO_KERNELS]
    cards = sorted((_read(path, path.stat().st_mtime_ns) for path in paths), key=lambda c: (c.rung, c.id))
    return {c.id: c for c in cards}


@functools.lru_cache(maxsize=256)
def _read(path: pathlib.Path, stamp: int) -> Card:
    """The card of a file; `stamp` makes a changed file a new one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    rung, idea, doc = constants.get("RUNG"), constants.get("IDEA"), ast.get_docstring(tree)
    if not isinstance(rung, int) or not isinstance(idea, str) or not doc:
        raise InvalidExample(
            f"{path.name} has no readable card",
            got=f"RUNG = {rung!r}, IDEA = {idea!r}, {'a' if doc else 'no'} docstring",
            expected='a docstring, `RUNG = 3` and `IDEA = "…"`',
        )
    return Card(id=path.stem, rung=rung, idea=idea, title=doc.splitlines()[0], path=path)
