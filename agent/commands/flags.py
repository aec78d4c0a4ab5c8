"""Flags that hold a list, and how `--help` shows what a command takes.

    listed    the items of "a,b,c"; an empty one is a mistake and not nothing
    Command   the help of a command: arguments by the name that the text has for them

Neighbours: `entry` makes the commands, `cli.py` has their flags. Nothing heavy is imported here.
"""

from __future__ import annotations

from typing import Any

import typer.core

from ..errors import UsageError


def listed(flag: str, text: str | None, example: str) -> tuple[str, ...]:
    """The items of a list as it is typed, each once; () where the flag was not given. Raises `UsageError`."""
    if text is None:
        return ()
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        said = "names nothing" if not any(items) else "has an empty item"
        raise UsageError(f"{flag} {text!r} {said}", hint=f"write {flag} {example}, or leave it out")
    return tuple(dict.fromkeys(items))


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
