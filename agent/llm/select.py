"""Turns `--llm` into a provider. The only place that knows all of them.

    anthropic          the Anthropic API (the default, given a key)
    replay             the bundled recording of the task
    replay:RUN         a run folder, a run's name, or the name of a bundled recording
    folder:DIR         requests and replies as files
    scripted:FILE      canned replies

Without `--llm` and without a key this is an error that says so. A recording is never played unless asked for: whoever
reads the result must know that no model was asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from ..errors import ProviderMisused, UnknownProvider
from ..settings import Settings
from . import replay
from .anthropic import AnthropicLLM
from .folder import FolderLLM
from .protocol import LLM
from .scripted import ScriptedLLM

PROVIDERS = ("anthropic", "replay", "folder", "scripted")
DEFAULT = "anthropic"
_ARGUMENT = {"folder": "DIR", "scripted": "FILE"}
_HELP = "anthropic, replay, replay:RUN, folder:DIR or scripted:FILE"


class Choice(NamedTuple):
    """`--llm`, parsed."""

    provider: str
    argument: str


def parse(spec: str | None) -> Choice:
    """Split `--llm`; None is the default provider. Touches neither files nor the network.

    Raises:
        UnknownProvider: No provider of that name; the hint has near ones.
        ProviderMisused: The argument is missing where one is needed, or given where none is.
    """
    name, colon, argument = (spec if spec is not None else DEFAULT).strip().partition(":")
    if name not in PROVIDERS:
        near = difflib.get_close_matches(name.lower(), PROVIDERS, n=2, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownProvider(f"--llm names no provider: {name!r}", hint=f"{meant}use {_HELP}")
    if name == "anthropic" and colon:
        raise ProviderMisused(
            f"--llm anthropic takes no argument, got {argument!r}", hint="choose the model with --model"
        )
    if name in _ARGUMENT and not argument:
        raise ProviderMisused(f"--llm {name} needs an argument", hint=f"--llm {name}:{_ARGUMENT[name]}")
    if colon and not argument:
        raise ProviderMisused(f"--llm {name}: names nothing after the colon", hint=f"use {_HELP}")
    return Choice(name, argument)


def asked_model(settings: Settings) -> str | None:
    """The model that the settings ask for by name, or None where the provider decides who answers: its replies will say."""
    provider = parse(settings.llm).provider
    named = provider == "anthropic" or (provider == "folder" and settings.source_of("model") != "default")
    return settings.model if named else None


def from_settings(
    settings: Settings, *, task_id: str, time_s: float | None = None, announce: Callable[[str], None] | None = None
) -> LLM:
    """The provider that the settings ask for. `settings.llm` is `--llm`; see `select` for the rest.

    A reply in a folder is waited for no longer than `time_s`, the longest run.
    """
    chosen = settings.source_of("model") != "default"
    waits = [seconds for seconds in (settings.reply_deadline, time_s) if seconds is not None]
    return select(
        settings.llm,
        key=settings.anthropic_api_key,
        task_id=task_id,
        runs=settings.runs_dir,
        model=settings.model if chosen else None,
        timeout_s=settings.request_timeout,
        max_retries=settings.max_retries,
        reply_deadline_s=min(waits, default=None),
        announce=announce,
    )


def select(
    spec: str | None,
    *,
    key: SecretStr | None,
    task_id: str,
    runs: Path | None = None,
    model: str | None = None,
    timeout_s: float = 600.0,
    max_retries: int = 2,
    reply_deadline_s: float | None = 3600.0,
    announce: Callable[[str], None] | None = None,
) -> LLM:
    """The provider that `--llm` asks for.

    Args:
        spec: `--llm`, or None where it was not given.
        key: The API key, if one is set.
        task_id: For `replay`, which plays the recording of the task.
        runs: Folder of runs, for `replay:RUN` by name.
        model: `--model` as the *person* gave it (None for the default): whom `folder` records as the answerer.
        timeout_s: `anthropic`: longest silence on the connection.
        max_retries: `anthropic`: the SDK's retries.
        reply_deadline_s: `folder`: longest wait for a reply.
        announce: `folder`: told which file is waited for.

    Raises:
        MissingKey: `anthropic`, chosen or by default, without a key. Decided before anything slow is imported.
    """
    provider, argument = parse(spec)
    match provider:
        case "replay":
            recording = replay.find(argument, runs=runs) if argument else replay.bundled(task_id)
            return replay.ReplayLLM(recording, task_id=task_id)
        case "folder":
            folder = Path(argument).expanduser()
            return FolderLLM(folder, model=model, deadline_s=reply_deadline_s, announce=announce)
        case "scripted":
            return ScriptedLLM.from_file(Path(argument).expanduser())
        case _:
            return AnthropicLLM(key, timeout_s=timeout_s, max_retries=max_retries)
