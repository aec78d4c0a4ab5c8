"""What flags hold, checked before anything slow, and how `--help` shows what a command takes.

    listed    the items of "a,b,c"; an empty one is a mistake and not nothing
    one_of    a word that must be one of several; near ones are named
    lengths   a shape as it is typed
    number    a count or an amount within its bounds
    Command   the help of a command: arguments by the name that the text has for them

Neighbours: `entry` makes the commands, `cli.py` has their flags. Nothing heavy is imported here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import typer.core

from ..errors import UsageError

MOST_DIGITS = 10
"""Of a length: no matrix has as many rows or columns."""


def listed(flag: str, text: str | None, example: str) -> tuple[str, ...]:
    """The items of a list as it is typed, each once; () where the flag was not given. Raises `UsageError`."""
    if text is None:
        return ()
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        said = "names nothing" if not any(items) else "has an empty item"
        raise UsageError(f"{flag} {text!r} {said}", hint=f"write {flag} {example}, or leave it out")
    return tuple(dict.fromkeys(items))


def one_of(what: str, value: str, known: Iterable[str], kind: str) -> None:
    """Raises `UsageError` for a value that is not among the known ones. `what` names the flag."""
    known = tuple(known)
    if value not in known:
        close = difflib.get_close_matches(value, known, n=2)
        near = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise UsageError(f"{what} {value!r} is no {kind}", hint=f"{near}there are: {', '.join(known)}")


def lengths(text: str, names: Sequence[str], of: str) -> tuple[int, ...]:
    """The lengths of "4096x4096x4096", one for each name. Raises `UsageError`."""
    found = text.split("x")
    if len(found) != len(names) or not all(n.isascii() and n.isdecimal() and int(n[:MOST_DIGITS]) > 0 for n in found):
        raise UsageError(f"--shapes {text!r} is no shape of {of}", hint=f"write it as {'x'.join(names)}, in numbers")
    if any(len(n) >= MOST_DIGITS for n in found):
        raise UsageError(f"--shapes {text!r} is larger than any matrix", hint=f"lengths below 10^{MOST_DIGITS - 1}")
    return tuple(map(int, found))


def number(flag: str, value: float | None, *, least: float | None = None, hint: str) -> None:
    """Raises `UsageError` for a number below the least one, or, without one, for one that is not above 0; NaN is neither."""
    if value is None:
        return
    said = f"{flag} {value:g}"
    if math.isnan(value):
        raise UsageError(f"{said} is no number", hint=hint)
    if least is None and value <= 0:
        raise UsageError(f"{said} is not positive", hint=hint)
    if least is not None and value < least:
        raise UsageError(f"{said} is less than {least:g}", hint=hint)


class Command(typer.core.TyperCommand):
    """A command whose arguments appear as "TASK", "[TASK]" and "[TASK...]", without the types that Python has for them."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = str(parameter.metavar) + ("..." if parameter.nargs == -1 else "")
                pieces.append(name if parameter.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        parameter: Any
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar), str(parameter.help)))
            else:
                options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
