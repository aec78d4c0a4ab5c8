"""What every command of the command line shares: how it is entered, its common options, and every way that it can end.

    Root        the group of commands: turns every way a command can end into a message and an exit code
    command     gives a command the options that all have, a `Terminal`, and an `Answer` to return
    app         the group itself; `cli.py` adds the commands

Nothing heavy is imported before a command runs: `--help` needs typer alone. Neighbours: `cli.py` has one function per command,
`terminal` speaks.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from .flags import Command
from .terminal import (
    Answer,
    Exit,
    Failure,
    Options,
    OutputLost,
    Terminal,
    logging_to_stderr,
    open_streams,
    silence,
    write_line,
)

EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in Exit)
STREAMS = "The answer goes to stdout; progress, logs, hints and paths go to stderr. --json prints one document, also on failure."
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Root(typer.core.TyperGroup):
    """The group. Its `main` is the only place that turns an exception into an exit code outside a command."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = self._run(given, prog_name or "coda-agent", complete_var, windows_expand_args, **extra)
        except BrokenPipeError:  # the reader of a help text or of a refusal has read enough
            silence(sys.stdout)
            code = Exit.OK
        except (OutputLost, OSError) as error:
            silence(sys.stdout)
            lost = error if isinstance(error, OutputLost) else OutputLost(f"stdout takes nothing: {error.strerror}")
            code = _speaker(given, self.commands).failed(lost)
        sys.exit(int(code) if isinstance(code, int) else 0)

    def _run(self, given: list[str], name: str, complete_var: str | None, expand: bool, **extra: Any) -> Any:
        """A command, or the refusal of a command line that cannot be parsed."""
        try:
            open_streams()
            return super().main(
                args=given,
                prog_name=name,
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=expand,
                **extra,
            )
        except typer.Abort:
            return _speaker(given, self.commands).failed(KeyboardInterrupt())
        except typer.TyperException as error:
            return _speaker(given, self.commands).refuse(_usage(error))


def _usage(error: typer.TyperException) -> Failure:
    """A mistake in the command line, in our words."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "coda-agent"
    message = error.format_message().rstrip(".")
    hint = f"`{path} --help` shows what it takes"
    if message.startswith("Missing") and context is not None and (required := _required(context.command)):
        hint = f"the whole command: `{path} {required}`; {hint}"
    return Failure("usage", message[:1].lower() + message[1:], hint)


def _required(command: Any) -> str:
    """What a command cannot do without, as it is typed."""
    found = []
    for parameter in command.params:
        if parameter.required:
            shown = parameter.metavar or parameter.name.upper()
            found.append(shown if parameter.param_type_name == "argument" else f"{parameter.opts[0]} {shown}")
    return " ".join(found)


def _speaker(args: Sequence[str], commands: Mapping[str, Any]) -> Terminal:
    """A terminal for a command line that could not be parsed: as much of it as can be told."""
    name = next((a for a in args if a in commands), "coda-agent")
    color = next((a.partition("=")[2] for a in args if a.startswith("--color=")), "auto")
    return Terminal(name, Options(json="--json" in args, color=color if color in ("always", "never") else "auto"))


app = typer.Typer(
    name="coda-agent",
    cls=Root,
    help="Have GEMM-plus-epilogue kernels written by a language model, judge them, keep, review, promote and compare them.",
    epilog=f"{STREAMS}\n\n{EXIT_CODES}",
    context_settings=CONTEXT,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
)


# options that every command has ---------------------------------------------------------------------------------------

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="More on stderr: settings and their sources; -vv tracebacks.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but warnings and errors.")]
Color = Annotated[
    str, typer.Option("--color", metavar="auto|always|never", help="auto heeds NO_COLOR, FORCE_COLOR and TERM=dumb.")
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No live display.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file. Default: the user's config.toml.")
]
Folder = Annotated[Path | None, typer.Option("-C", metavar="DIR", help="As if started there. Default: here.")]

COMMON: tuple[tuple[str, Any, Any], ...] = (
    ("json_", Json, False),
    ("verbose", Verbose, 0),
    ("quiet", Quiet, False),
    ("color", Color, "auto"),
    ("no_progress", NoProgress, False),
    ("config", Config, None),
    ("folder", Folder, None),
)


def _options(values: dict[str, Any]) -> Options:
    taken = {name: values.pop(name) for name, _, _ in COMMON}
    if taken["color"] not in ("auto", "always", "never"):
        raise typer.BadParameter(f"{taken['color']!r} is not one of auto, always, never", param_hint="--color")
    if taken["verbose"] and taken["quiet"]:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    if taken["folder"] is not None and not taken["folder"].is_dir():
        raise typer.BadParameter(f"{str(taken['folder'])!r} is not a folder", param_hint="-C")
    return Options(
        json=taken["json_"],
        verbose=taken["verbose"],
        quiet=taken["quiet"],
        color=taken["color"],
        progress=not taken["no_progress"],
        config=taken["config"],
        folder=taken["folder"],
    )


@contextlib.contextmanager
def _in_folder(folder: Path | None) -> Iterator[None]:
    with contextlib.chdir(folder) if folder is not None else contextlib.nullcontext():
        yield


def _require_config(options: Options) -> None:
    """A file that was named must be right, whether or not the command reads a setting. Raises `SettingsInvalid`."""
    if options.config is not None:
        from .. import settings

        settings.load(config_file=options.config)


def command(name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Make `body(terminal, …) -> Answer` a command with its own parameters and the common ones."""

    def decorate(body: Callable[..., Answer]) -> Callable[..., Answer]:
        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
        common = [inspect.Parameter(n, keyword, annotation=a, default=d) for n, a, d in COMMON]
        parameters = [context, *(p.replace(kind=keyword) for p in own), *common]

        def run(ctx: typer.Context, **values: Any) -> int:
            options = (ctx.obj if isinstance(ctx.obj, Options) else Options()).merged(_options(values))
            terminal = Terminal(name, options)
            try:
                with _in_folder(options.folder), logging_to_stderr(options.verbose):
                    _require_config(options)
                    return terminal.answer(body(terminal, **values))
            except BrokenPipeError:  # `| head` has read enough
                silence(sys.stdout)
                return Exit.OK
            except (typer.TyperException, typer.Exit):
                raise
            except (Exception, KeyboardInterrupt) as error:  # every way to end has a message and a code
                return terminal.failed(error)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = body.__name__, body.__doc__
        app.command(name, cls=Command, context_settings=CONTEXT, epilog=STREAMS)(run)
        return body

    return decorate


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Version; with -v also torch, triton, GPU and folders.")
    ] = False,
    json_: Json = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    color: Color = "auto",
    no_progress: NoProgress = False,
    config: Config = None,
    folder: Folder = None,
) -> int:
    values = {k: v for k, v in locals().items() if k not in ("ctx", "version")}
    ctx.obj = _options(values)
    if version:
        from . import doctor as examination

        terminal = Terminal("version", ctx.obj)
        try:
            with _in_folder(ctx.obj.folder):
                _require_config(ctx.obj)
                return terminal.answer(examination.version(terminal))
        except BrokenPipeError:
            raise
        except Exception as error:  # as in `command`
            return terminal.failed(error)
    if ctx.invoked_subcommand is None:
        terminal = Terminal("coda-agent", ctx.obj)
        if ctx.obj.json:
            return terminal.refuse(Failure("usage", "no command was given", "`coda-agent --help` lists them"))
        write_line(sys.stderr, ctx.get_help())
        return Exit.USAGE
    return Exit.OK
