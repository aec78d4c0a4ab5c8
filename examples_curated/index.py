"""The index of the bank as Markdown: the ladder, and who shows which idiom and which primitive. `README.md` is made of it.

    ladder       a row for each example, from the lowest rung up
    idiom_table  a row for each idiom
    primitive_table  a row for each primitive, class by class

`make fix` writes the README again, `make check` compares. Neighbours: `idioms` defines what is looked for. Loads every
kernel, and no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import examples_curated
from coda.primitives import CLASSES
from examples_curated import idioms

__all__ = ["idiom_table", "ladder", "primitive_table"]


@functools.cache
def _shown() -> Mapping[str, tuple[frozenset[str], frozenset[str]]]:
    """Id -> primitives, idioms; in ladder order."""
    return {
        i: (idioms.primitives(examples_curated.source(i)), idioms.found(examples_curated.load(i).program))
        for i in examples_curated.catalog()
    }


def ladder() -> str:
    """Rung, example, what it computes, what it adds to those below it."""
    cards = (examples_curated.card(i) for i in examples_curated.catalog())
    return _table(
        ("rung", "example", "computes", "new idea"),
        ((str(c.rung), f"[`{c.id}`]({c.path.name})", c.title.rstrip("."), c.idea) for c in cards),
    )


def idiom_table() -> str:
    """Every idiom with the examples that show it."""
    rows = (
        (f"`{i.id}`", i.title, _names(k for k, (_, has) in _shown().items() if i.id in has))
        for i in idioms.IDIOMS.values()
    )
    return _table(("idiom", "what it is", "shown by"), rows)


def primitive_table() -> str:
    """Every primitive with the examples that use it."""
    rows = (
        (str(number), f"`{name}`", _names(k for k, (has, _) in _shown().items() if name in has))
        for number, (_, names) in sorted(CLASSES.items())
        for name in sorted(names)
    )
    return _table(("class", "primitive", "shown by"), rows)


def _names(ids: Iterable[str]) -> str:
    return ", ".join(f"`{i}`" for i in ids) or "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
