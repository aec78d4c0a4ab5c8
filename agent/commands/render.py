"""Records drawn for a terminal: the gate table, listings, the comparison, progress. The only file but `cli.py` that knows rich.

Colour only repeats what the text says: green a pass, red a refusal, yellow what did not run or needs a person, cyan a path.
NO_COLOR, FORCE_COLOR and TERM=dumb are honoured by rich itself. What is not a terminal gets one record per line, unwrapped,
so that it can be searched; a narrow terminal gets wrapped cells and loses nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from ..records import GateRecord, Status, Verdict
from ..runs.events import Asked, Event, Judged, Judging, Kept, Replied, ReplyUnusable, Resumed, Started, Stopped, Warned
from .terminal import escaped, write_line

PIPE_WIDTH = 400
"""Columns where nobody sees an edge: records stay on one line."""
NARROW = 11
"""Columns of the terminal per column of a table, below which words would be torn apart in most cells."""
_HINT = re.compile(r"\s+[Hh]int:\s+")
STYLE = {"good": "green", "bad": "bold red", "open": "yellow", "path": "cyan", "dim": "dim"}


def console(stream: TextIO, color: str = "auto") -> Console:
    """A console on a stream under `--color`."""
    forced = {"auto": None, "always": True, "never": None}[color]
    systems: dict[str, Literal["standard", "auto"] | None] = {"auto": "auto", "always": "standard", "never": None}
    system = systems[color]  # with none there is no bold either
    made = Console(
        file=stream,
        force_terminal=forced,
        no_color=True if color == "never" else False if color == "always" else None,
        color_system=system,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    if not _is_terminal(stream):
        made = Console(
            file=stream,
            width=PIPE_WIDTH,
            force_terminal=forced,
            no_color=made.no_color,
            color_system=system,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
        )
    return made


def draw(stream: TextIO, color: str, items: Iterable[Any]) -> None:
    """Lines of text and renderables, one after the other. Lines are never wrapped: a terminal does that by itself."""
    target = console(cast("TextIO", _Draft(stream)), color)
    for item in items:
        with target.capture() as drawn:
            target.print(escaped(item) if isinstance(item, str) else item, soft_wrap=isinstance(item, str | Text))
        for line in drawn.get().splitlines():  # cells are padded to their column, the last one for nothing
            write_line(stream, line.rstrip())


class _Draft:
    """A stream for rich to draw on: like the real one in all but that it takes nothing. `write_line` alone writes, and knows what
    to do where it cannot; rich writes even when it captures."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _text(*parts: str | tuple[str, str] | Text, style: str = "") -> Text:
    """Text in one piece or several, each with its style or the common one. The only place that makes one: what a candidate, a
    file name or a tool says is harmless from here on."""
    made = Text(style=style)
    for part in parts:
        if isinstance(part, Text):
            made.append_text(part)
        else:
            made.append(escaped(part if isinstance(part, str) else part[0]), None if isinstance(part, str) else part[1])
    return made


def error_line(message: str) -> Text:
    """`error: …`."""
    return _text(("error", STYLE["bad"]), ": ", message)


# gates ----------------------------------------------------------------------------------------------------------------


def gate_word(gate: GateRecord) -> Text:
    """What a gate says in one line: PASS, `not run: reason`, or its failure word with the reason."""
    if gate.status is Status.NOT_RUN:
        return _text(f"not run: {gate.reason}", style=STYLE["open"])
    style = STYLE["good"] if gate.status.good else STYLE["open"] if gate.status is Status.SUSPECT else STYLE["bad"]
    word = _text(str(gate.status), style=style)
    return _text(word, f"  {gate.reason}") if gate.reason else word


def reason_and_hint(gate: GateRecord) -> tuple[str, str]:
    """What a gate says, and the advice that the library's own error ends in: an error line shows one hint, not two."""
    reason, _, hint = _HINT.sub("\0", gate.reason, count=1).partition("\0")
    return reason, hint


def gate_table(gates: Iterable[GateRecord]) -> Table:
    """One line per gate."""
    table = _table("gate", ("s", "right"), "result")
    for gate in gates:
        seconds = "" if gate.status is Status.NOT_RUN else f"{gate.seconds:.2f}"
        table.add_row(gate.name, seconds, gate_word(gate))
    return table


def gate_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """The gates for `--json`."""
    return [gate.model_dump(mode="json") for gate in verdict.gates]


def verdict_line(verdict: Verdict) -> Text:
    """The whole in one line."""
    if verdict.passed:
        open_gates = [g.name for g in verdict.not_run]
        rest = f" ({', '.join(open_gates)} not run)" if open_gates else ""
        return _text("verdict: ", (str(verdict.status), STYLE["good"]), rest)
    style = STYLE["open"] if verdict.status in (Status.NOT_RUN, Status.SUSPECT) else STYLE["bad"]
    where = f" at gate {verdict.first_failure}" if verdict.first_failure else ""
    if verdict.status is Status.NOT_RUN:
        where = f": {', '.join(g.name for g in verdict.not_run)} could not run, so this is no pass"
    return _text("verdict: ", (str(verdict.status), style), where)


# tables ---------------------------------------------------------------------------------------------------------------


class _Rows:
    """A table; where the terminal is too narrow for its columns, one block of lines "name, text" per row instead."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], right: Sequence[str]) -> None:
        self.rows, self.columns, self.right = rows, columns, right

    def __rich_console__(self, target: Console, options: ConsoleOptions) -> RenderResult:
        table = _table(*((name, "right") if name in self.right else name for name in self.columns))
        for row in self.rows:
            table.add_row(*(_cell(row.get(name)) for name in self.columns))
        natural = Measurement.get(target, options.update(width=10**6), table).maximum
        if natural <= options.max_width or options.max_width >= NARROW * len(self.columns):
            yield table
            return
        for at, row in enumerate(self.rows):
            if at:
                yield ""
            yield facts_table((name, text) for name in self.columns if (text := _cell(row.get(name)).plain))


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, right: Sequence[str] = ()) -> _Rows:
    """Rows by column name; a missing or None cell is empty, True and False are yes and no."""
    return _Rows(rows, columns, right)


def checks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What `doctor` found."""
    table = _table("", "check", "found")
    style = {"ok": STYLE["good"], "note": STYLE["dim"], "warning": STYLE["open"], "problem": STYLE["bad"]}
    for row in rows:
        found = _text(str(row["found"]))
        if row.get("hint"):
            found.append(escaped(f"\nhint: {row['hint']}"), style=STYLE["dim"])
        table.add_row(_text(str(row["status"]), style=style.get(str(row["status"]), "")), str(row["check"]), found)
    return table


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """What is known of one thing, a line each: a name and a text."""
    table = _table("", "")
    table.show_header = False
    for name, text in facts:
        table.add_row(_text(name, style=STYLE["dim"]), _text(text))
    return table


def heading(text: str) -> Text:
    """A line above a block."""
    return _text(text, style="bold")


def path(value: object) -> Text:
    """A path."""
    return _text(str(value), style=STYLE["path"])


def _table(*columns: str | tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=True)
    for column in columns:
        name, side = column if isinstance(column, tuple) else (column, "left")
        justify: Literal["left", "right"] = "right" if side == "right" else "left"
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _cell(value: Any) -> Text:
    if value is None:
        return _text("")
    if isinstance(value, (list, tuple)):
        return _text(", ".join(map(str, value)))
    if isinstance(value, bool):
        return _text("yes" if value else "no")
    return _text(str(value))


# progress -------------------------------------------------------------------------------------------------------------


def money(usd: float | None) -> str:
    """A cost as text; unknown is not zero."""
    return "cost unknown" if usd is None else f"${usd:.4f}" if 0 < usd < 0.01 else f"${usd:.2f}"


def count(number: int, what: str) -> str:
    """ "1 reply", "2 replies"."""
    many = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{number} {what if number == 1 else many}"


def event_line(event: Event) -> str | None:
    """One line of progress; None for an event that says nothing new to a person."""
    match event:
        case Started():
            shown = f", {count(len(event.shown), 'example')} shown"
            model = event.model or "the model is unknown until it answers"
            withheld = f", withheld {', '.join(event.withheld)}" if event.withheld else ""
            return f"task {event.task}, {event.llm} ({model}){shown}{withheld}"
        case Resumed():
            return f"resumed: {count(event.replies, 'reply')} and {count(event.verdicts, 'verdict')} on disk to reuse"
        case Warned():
            return f"warning: {event.message}"
        case Replied():
            cost = f", {money(event.cost_usd)}" if event.billed else ""
            reused = ", read from the run" if event.reused else ""
            return f"round {event.round}: reply of {event.usage.total} tokens from {event.model}{cost}{reused}"
        case ReplyUnusable():
            return f"round {event.round}: no kernel in the reply ({event.problem}): {event.message}"
        case Judging():
            return f"round {event.round}: judging"
        case Judged():
            gates = "  ".join(f"{name} {'-' if status is Status.NOT_RUN else status}" for name, status in event.gates)
            return f"round {event.round}: {event.status}  [{gates}]"
        case Kept():
            return f"kept: {event.id}" + (" (the same program was kept already)" if event.same_program else "")
        case Stopped():
            return f"stopped: {event.reason}"
    return None


class Heard(Protocol):
    """What the judge tells: see `agent.verify.judge.Progress`."""

    @property
    def gate(self) -> str: ...

    @property
    def state(self) -> str: ...


class Progress:
    """What a run tells its events to: on a terminal lines above a transient spinner, elsewhere a plain line per round."""

    def __init__(self, say: Callable[[str], None], live: Console | None = None) -> None:
        self._say, self._live = say, live
        self.shown: set[str] = set()
        """Lines so far that stay, as far as `say` writes."""
        self._status = live.status("starting", spinner="dots") if live is not None else None

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def gate(self, progress: Heard) -> None:
        """Told by the judge: a gate starts or has ended."""
        if self._status is not None and progress.state == "started":
            self._status.update(f"gate {progress.gate}")

    def __call__(self, event: Event) -> None:
        line = event_line(event)
        if self._status is None or self._live is None:
            if line is not None and not isinstance(event, Judging | Replied):
                self.shown.add(line)
                self._say(line)
        elif isinstance(event, Asked | Judging):
            what = "waiting for the model" if isinstance(event, Asked) else "judging"
            self._status.update(f"round {event.round}: {what}")
        elif line is not None:
            self.shown.add(line)
            self._live.print(escaped(line), soft_wrap=True)


class _Shown:
    """A bar on a terminal while the block lasts; elsewhere a plain line now and then."""

    EVERY_S = 10.0

    def __init__(self, say: Callable[[str], None], live: Console | None, what: str, total: int | None) -> None:
        self._say, self._told_at = say, time.monotonic()
        self._bar = _bar(live) if live is not None else None
        self._task = self._bar.add_task(what, total=total) if self._bar is not None else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _due(self) -> bool:
        """Whether it is time for another line."""
        now = time.monotonic()
        if now - self._told_at < self.EVERY_S:
            return False
        self._told_at = now
        return True


class Counting(_Shown):
    """Progress over many alike things: a bar on a terminal, elsewhere a plain line now and then. What went wrong is always told."""

    def __init__(self, total: int, say: Callable[[str], None], live: Console | None = None, *, unit: str) -> None:
        super().__init__(say, live, f"0 of {count(total, unit)}", total)
        self._total, self._unit, self._done = total, unit, 0

    def advance(self, what: str, *lines: str) -> None:
        """One more is done; the lines are worth reading even now."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            for line in lines:
                self._bar.console.print(_text(line), soft_wrap=True)
            self._bar.update(self._task, advance=1, description=escaped(f"{self._done} of {self._total}  {what}"))
            return
        for line in lines:
            self._say(line)
        if self._due() or self._done == self._total:
            self._say(f"{self._done} of {count(self._total, self._unit)}")


class Share(_Shown):
    """Progress as a share of what is to be done, which may grow: a bar on a terminal, elsewhere a plain line now and then."""

    def __init__(self, what: str, say: Callable[[str], None], live: Console | None = None) -> None:
        super().__init__(say, live, what, None)
        self._what = what

    def __call__(self, done: float, total: int, text: str) -> None:
        """So much is done, and what is being done now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=escaped(text))
        elif self._due():
            self._say(f"{self._what}: {done:.0f} of {total}: {text}")


def _bar(live: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), console=live, transient=True
    )
