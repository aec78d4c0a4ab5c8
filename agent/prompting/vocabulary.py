"""The vocabulary as a prompt shows it, generated from `coda` so that it cannot fall behind.

primitive_classes   signature and docstring of every primitive, class by class
schedule_fields     the fields of a schedule with their defaults, as JSON
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass

from coda import primitives
from coda.problem import Schedule


@dataclass(frozen=True)
class Entry:
    """One primitive."""

    name: str
    signature: str
    doc: str


@dataclass(frozen=True)
class PrimitiveClass:
    """One of the five classes."""

    number: int
    name: str
    intro: str
    """The docstring of its module."""
    entries: tuple[Entry, ...]


def primitive_classes() -> tuple[PrimitiveClass, ...]:
    """The closed list, in the order of `coda.primitives.CLASSES`."""
    found = []
    for number, (name, names) in sorted(primitives.CLASSES.items()):
        entries = tuple(_entry(n) for n in names)
        module = inspect.getmodule(getattr(primitives, names[0]))
        intro = inspect.cleandoc(module.__doc__ or "") if module is not None else ""
        found.append(PrimitiveClass(number, name, intro, entries))
    return tuple(found)


def schedule_fields() -> str:
    """The default schedule as one line of JSON."""
    return json.dumps(Schedule().to_dict())


def _entry(name: str) -> Entry:
    function = getattr(primitives, name)
    doc = " ".join((inspect.getdoc(function) or "").split())
    return Entry(name, f"{name}{_signature(function)}", doc)


def _signature(function: object) -> str:
    """Parameter names and defaults, without annotations: every argument is a value or a number."""
    assert callable(function)
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
