"""How a command speaks: which stream, which form, which exit code. Commands in `cli.py` return an `Answer`; the rest is here.

    Exit        the exit codes, with what they mean
    Options     what every command takes: --json, -v, -q, --color, --no-progress, --config, -C
    Answer      what a command found: data for programs, text for people, the next command
    Terminal    prints answers, errors, progress and hints, each to its stream
    escaped     text of others, harmless to a terminal: everything that is printed goes through it
    write_line  a line on a stream; `OutputLost` where stdout takes none

The answer goes to stdout; progress, logs, hints and paths go to stderr, so that piping stays clean. Under `--json` stdout
holds exactly one document, the same on failure:

    {"schema": "coda-agent/<command>/1", "ok": …, "data": …, "warnings": […], "error": null | {"code", "message", "hint"}}

Nothing heavy is imported here: rich comes with `render`, and only when something is drawn.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..settings import Settings

_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and those that turn the direction of text: what a terminal obeys, or shows in
another order than it is read."""


class Exit(enum.IntEnum):
    """Exit codes. 1 and 2 are those of every Python command line; ours start at 3."""

    OK = 0
    BUG = 1
    USAGE = 2
    GOAL_NOT_MET = 3
    REFUSED = 4
    ENVIRONMENT = 5
    LLM = 6
    REGRESSION = 7
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """For `--help`."""
        return _MEANING[self]


_MEANING = {
    Exit.OK: "goal met",
    Exit.BUG: "a bug in the tool (with a traceback)",
    Exit.USAGE: "usage: a flag, an argument or a setting makes no sense",
    Exit.GOAL_NOT_MET: "finished, goal not met (limits reached; the best so far is kept)",
    Exit.REFUSED: "a gate refused",
    Exit.ENVIRONMENT: "environment (GPU, backend, toolchain, folder)",
    Exit.LLM: "language model (key, quota, network)",
    Exit.REGRESSION: "regression (compare --threshold)",
    Exit.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True)
class Options:
    """What every command takes, before or after its name."""

    json: bool = False
    verbose: int = 0
    quiet: bool = False
    color: str = "auto"
    progress: bool = True
    config: Path | None = None
    folder: Path | None = None

    def merged(self, other: Options) -> Options:
        """Options given after the command, over those given before it."""
        return Options(
            json=self.json or other.json,
            verbose=max(self.verbose, other.verbose),
            quiet=self.quiet or other.quiet,
            color=other.color if other.color != "auto" else self.color,
            progress=self.progress and other.progress,
            config=other.config or self.config,
            folder=other.folder or self.folder,
        )


@dataclass(frozen=True)
class Failure:
    """Why a command did not reach its goal."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Answer:
    """What a command found."""

    data: Mapping[str, Any]
    """For programs: plain JSON."""
    show: Callable[[], Iterable[Any]]
    """For people: lines of text and what `render` makes, for stdout."""
    exit: Exit = Exit.OK
    failure: Failure | None = None
    """Set exactly when `exit` is not OK."""
    warnings: tuple[str, ...] = ()
    paths: tuple[tuple[str, Path], ...] = ()
    """Where things were written: (what, path), to stderr."""
    next: str = ""
    """The next useful command."""

    def __post_init__(self) -> None:
        if (self.failure is None) != (self.exit is Exit.OK):
            raise ValueError("an answer has a failure exactly when its exit code is not 0")


@dataclass
class Terminal:
    """One command's mouth. Made by `cli.py` once the options are known."""

    command: str
    options: Options = field(default_factory=Options)
    run_path: Path | None = None
    """Set by a command as soon as it has one: shown with a bug, and after an interrupt."""
    resume: str = ""
    """The command that goes on after an interrupt."""
    seen: set[str] = field(default_factory=set)
    """Lines that a display of progress has shown: an answer's warnings are not repeated."""

    # consoles ---------------------------------------------------------------------------------------------------------
    @property
    def live(self) -> Any:
        """The console of a live display on stderr, or None where none may be drawn."""
        from . import render

        return render.console(sys.stderr, self.options.color) if self.animated else None

    @property
    def animated(self) -> bool:
        """Whether a live display may be drawn on stderr."""
        return self.options.progress and not self.options.quiet and _is_terminal(sys.stderr)

    @property
    def interactive(self) -> bool:
        """Whether a question may be asked: a terminal at both ends, and nobody reading JSON."""
        return not self.options.json and _is_terminal(sys.stdin) and _is_terminal(sys.stderr)

    # speaking ---------------------------------------------------------------------------------------------------------
    def say(self, text: str) -> None:
        """A line for the person, unless --quiet."""
        if not self.options.quiet:
            write_line(sys.stderr, escaped(text))

    def detail(self, text: str) -> None:
        """A line that only -v shows."""
        if self.options.verbose:
            write_line(sys.stderr, escaped(text))

    def warn(self, text: str) -> None:
        """A warning, even under --quiet."""
        write_line(sys.stderr, escaped(f"warning: {text}"))

    def answer(self, answer: Answer) -> Exit:
        """Print an answer in the form asked for."""
        if self.options.json:
            self._document(answer.data, answer.warnings, answer.failure)
        else:
            self._show(answer.show())
        for warning in answer.warnings:
            if f"warning: {warning}" not in self.seen:
                self.warn(warning)
        for what, path in answer.paths:
            self.say(f"{what}: {path}")
        if answer.failure is not None:
            self._error(answer.failure)
        if answer.next:
            self.say(f"next: {answer.next}")
        return answer.exit

    def failed(self, error: BaseException) -> Exit:
        """Print an exception as an error and say the exit code. Never raises."""
        exit_code, failure = classify(error)
        if exit_code is Exit.BUG or self.options.verbose >= 2:
            write_line(sys.stderr, escaped("".join(traceback.format_exception(error)).rstrip()))
        if self.options.json and not isinstance(error, OutputLost | BrokenPipeError):
            with suppress(OutputLost, BrokenPipeError):  # the error line says more than a second one about stdout
                self._document(_partial(error), (), failure)
        self._error(failure)
        if self.run_path is not None and exit_code in (Exit.BUG, Exit.INTERRUPTED, Exit.LLM):
            self.say(f"run: {self.run_path}")
        if self.resume and exit_code in (Exit.INTERRUPTED, Exit.LLM):
            self.say(f"next: {self.resume}")
        return exit_code

    def refuse(self, failure: Failure, exit_code: Exit = Exit.USAGE) -> Exit:
        """Print a failure that is no exception of ours."""
        if self.options.json:
            self._document(None, (), failure)
        self._error(failure)
        return exit_code

    def document(self, answer: Answer) -> dict[str, Any]:
        """What `--json` prints."""
        return _document(self.command, answer.data, answer.warnings, answer.failure)

    def settings(self, **flags: Any) -> Settings:
        """The settings under this command's options. Raises `SettingsInvalid`."""
        from .. import settings

        found = settings.load(flags, config_file=self.options.config)  # `-C` has changed the working folder already
        for name, value, source in found.explain():
            self.detail(f"setting {name} = {value} ({source})")
        return found

    def confirm(self, question: str, *, yes: bool, hint: str) -> None:
        """Ask, or take --yes; without a terminal nobody is asked and the answer is no.

        Raises `NotConfirmed`.
        """
        from ..errors import NotConfirmed

        if yes:
            return
        if not self.interactive:
            raise NotConfirmed(f"{question} nobody to ask: this is no terminal", hint=hint)
        sys.stderr.write(escaped(f"{question} [y/N] "))
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotConfirmed(f"{question} not confirmed", hint=hint)

    # ------------------------------------------------------------------------------------------------------------------
    def _document(self, data: Any, warnings: tuple[str, ...], failure: Failure | None) -> None:
        document = _document(self.command, data, warnings, failure)
        write_line(sys.stdout, json_text(document, indent=2))

    def _show(self, items: Iterable[Any]) -> None:
        from . import render

        render.draw(sys.stdout, self.options.color, items)

    def _error(self, failure: Failure) -> None:
        from . import render

        hint = ("", f"hint: {failure.hint}") if failure.hint else ()
        render.draw(sys.stderr, self.options.color, (render.error_line(failure.message), *hint))


def _document(command: str, data: Any, warnings: tuple[str, ...], failure: Failure | None) -> dict[str, Any]:
    error = {"code": failure.code, "message": failure.message, "hint": failure.hint} if failure else None
    return {
        "schema": f"coda-agent/{command}/1",
        "ok": failure is None,
        "data": data,
        "warnings": list(warnings),
        "error": error,
    }


def classify(error: BaseException) -> tuple[Exit, Failure]:
    """Exit code and message of an exception."""
    from coda.errors import BackendError, CodaError

    from ..errors import AgentError

    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED, Failure("interrupted", "interrupted", "")
        case OutputLost():
            return Exit.ENVIRONMENT, Failure("output", str(error))
        case AgentError():
            return Exit(error.exit_code), Failure(error.code, error.what, error.hint)
        case BackendError():
            return Exit.ENVIRONMENT, Failure(error.code, _sentence(error), error.hint or "")
        case CodaError():
            return Exit.USAGE, Failure(error.code, _sentence(error), error.hint or "")
        case OSError() if error.filename is not None:
            hint = "check that the path exists and that you may use it"
            return Exit.ENVIRONMENT, Failure("file", f"{error.strerror}: {error.filename!r}", hint)
    hint = "this is a bug: report it with the traceback above"
    return Exit.BUG, Failure("bug", f"{type(error).__name__}: {error}", hint)


def _sentence(error: Any) -> str:
    """A `CodaError` without its hint line."""
    return str(error).partition("\n  hint: ")[0]


def _partial(error: BaseException) -> Any:
    """What an error knows besides its message, for the document."""
    near = getattr(error, "near", None)
    return {"near": list(near)} if near else None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # replaced or closed
        return False


def escaped(text: str) -> str:
    """The text with what a terminal would obey spelled as escapes; newlines and tabs stay."""
    return _HARMFUL.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A JSON document whose strings are harmless to a terminal too; read back it is the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=str)
    return _HARMFUL.sub(lambda m: f"\\u{ord(m[0]):04x}", text)  # outside strings there is none


class OutputLost(Exception):
    """stdout cannot be written to: it is closed, or its device is full."""


def write_line(stream: TextIO, text: str) -> None:
    """A line, on a stream of any encoding. Where stderr takes none it is lost, and the command goes on.

    Raises `OutputLost`, or `BrokenPipeError` where the reader of stdout has gone.
    """
    try:
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except OSError as error:
        silence(stream)
        if stream is sys.stderr:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputLost(f"the answer cannot be written to stdout: {error.strerror}") from error


def silence(stream: TextIO) -> None:
    """Let what is written from here on go nowhere, or the flush at exit fails as well."""
    with suppress(OSError, ValueError):  # a stream without a descriptor has no such flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_streams() -> None:
    """Standard streams that were closed (`>&-`) lead nowhere. Else the next file opened would get their number, and what
    children print would end in it.

    Raises `OutputLost` where stdout is one of them: nobody could read an answer.
    """
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for number in closed:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    if 1 in closed:
        raise OutputLost("the answer cannot be written to stdout: it is closed")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class _Escaping(logging.Formatter):
    """Records may quote what others wrote."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


@contextmanager
def logging_to_stderr(verbose: int) -> Iterator[None]:
    """The libraries' log records on stderr: warnings, with -v what was chosen, with -vv everything."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Escaping("%(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("coda", "agent", "authored_kernels", "examples_curated")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)
