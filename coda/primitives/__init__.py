"""The primitives: the closed vocabulary that an epilogue is written in, one file per class.

    types.py      the type of a value, and how types combine
    value.py      operations, nodes, and the traced value with its operators
    instead.py    what others call it: hints
    map.py        class 1  elementwise and pairwise map
    vector.py     class 2  vector load and store
    tile.py       class 3  tile load and store
    reduce.py     class 4  tile reduction
    stateful.py   class 5  stateful transform

A new primitive is added in one of these files (rule, reference, cost, formula) and in the table of lowerings of each
backend (`coda/backends/*/lowering.py`); nothing else knows the list.
"""

from __future__ import annotations

from typing import NoReturn

from coda.errors import UnknownPrimitive
from coda.primitives import map as _map
from coda.primitives import reduce as _reduce
from coda.primitives import stateful as _stateful
from coda.primitives import tile as _tile
from coda.primitives import vector as _vector
from coda.primitives.instead import instead as _instead
from coda.primitives.map import *  # noqa: F403
from coda.primitives.reduce import *  # noqa: F403
from coda.primitives.stateful import *  # noqa: F403
from coda.primitives.tile import *  # noqa: F403
from coda.primitives.vector import *  # noqa: F403

CLASSES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("elementwise and pairwise map", tuple(_map.__all__)),
    2: ("vector load and store", tuple(_vector.__all__)),
    3: ("tile load and store", tuple(_tile.__all__)),
    4: ("tile reduction", tuple(_reduce.__all__)),
    5: ("stateful transform", tuple(_stateful.__all__)),
}
"""Number of a class -> its name and what an author may import from it."""

NAMES = tuple(sorted(name for _, names in CLASSES.values() for name in names))
"""The closed list."""

FUNCTIONS = tuple(name for name in NAMES if name.islower())
"""Those of values; the others annotate parameters."""

__all__ = [*NAMES]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnknownPrimitive(f"coda.primitives has no {name!r}", hint=_instead(name, NAMES))
