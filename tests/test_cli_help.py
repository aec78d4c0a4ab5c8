"""What `--help` says: every argument and every flag of every command has a name for its value, a sentence, and its default."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import cli
from agent.commands.flags import listed
from agent.errors import UsageError
from agent.settings import Settings

pytestmark = pytest.mark.null

ROOT: Any = get_command(cli.app)
COMMANDS: dict[str, Any] = {"": ROOT, **ROOT.commands}
NAME = re.compile(r"[A-Z][A-Z_]*(…)?|[A-Z]+\|FILE\.json|[a-z0-9]+(\|[a-z0-9]+)+|MxNxK,…|NAME,…|D:FFN")
"""A word for a value, the values themselves, or how a list is written."""
PARAMETERS = [(name, p) for name, command in COMMANDS.items() for p in command.params]
IDS = [f"{name or 'coda-agent'} {p.opts[0] if p.opts else p.name}" for name, p in PARAMETERS]


def lines(*args: str) -> str:
    result = CliRunner().invoke(cli.app, [*args, "--help"])
    assert result.exit_code == 0
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=IDS)
def test_every_value_has_a_name_a_sentence_and_a_default(name: str, parameter: Any) -> None:
    if parameter.name in ("install_completion", "show_completion"):
        return  # typer's own
    assert parameter.help, "a sentence"
    assert parameter.help.endswith(".")
    if parameter.param_type_name == "argument":
        assert NAME.fullmatch(parameter.metavar)
        return
    if parameter.is_flag or parameter.count:
        return
    assert parameter.metavar is not None
    assert NAME.fullmatch(parameter.metavar), parameter.metavar
    shown = lines(*([name] if name else []))
    entry = shown.partition(f"{parameter.opts[-1]} {parameter.metavar} ")[2]
    assert entry.startswith(" ".join(parameter.help.split())), "it is in the help text"
    if parameter.required:
        assert "[required]" in entry
    elif parameter.default in (None, ""):
        assert re.search(r"Default: |needed with", parameter.help), "what happens without it"
    else:
        assert f"[default: {parameter.default}]" in entry


def test_a_flag_has_one_name_for_its_value_and_one_meaning_in_every_command() -> None:
    names: dict[str, set[str]] = {}
    for _, p in PARAMETERS:
        if p.param_type_name == "option" and not (p.is_flag or p.count):
            names.setdefault(p.opts[0], set()).add(p.metavar)
    assert {flag: found for flag, found in names.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", [n for n in COMMANDS if n])
def test_the_usage_line_has_no_types_and_no_braces(name: str) -> None:
    shown = lines(name)
    assert shown.startswith((f"Usage: coda-agent {name} [OPTIONS]", f"Usage: root {name} [OPTIONS]"))
    assert not re.search(r"<\w+(\[\w+\])?>|\{|\.{4}|…\.", shown.partition(" Options:")[0])


def test_defaults_that_are_settings_are_those_of_the_settings() -> None:
    author = {p.name: p for p in COMMANDS["author"].params}
    for name in ("model", "rounds"):
        assert f"Default: {Settings.model_fields[name].default}." in author[name].help
    for name, setting in (("max_cost", "max_cost"), ("max_tokens_total", "max_tokens_total"), ("time", "time_limit")):
        assert Settings.model_fields[setting].default is None
        assert author[name].help.endswith("Default: no limit.")


# lists ----------------------------------------------------------------------------------------------------------------


def test_a_list_is_its_items_each_once() -> None:
    assert listed("--peers", None, "a,b") == ()
    assert listed("--peers", "a, b,a", "a,b") == ("a", "b")


@pytest.mark.parametrize("text", ["", " ", ",", ",,", "a,", ",a", "a,,b"])
def test_an_empty_item_is_a_mistake_and_not_nothing(text: str) -> None:
    with pytest.raises(UsageError, match=r"names nothing|has an empty item") as error:
        listed("--peers", text, "a,b")
    assert error.value.hint == "write --peers a,b, or leave it out"


LISTS = [
    (name, p.opts[0])
    for name, p in PARAMETERS
    if p.param_type_name == "option" and p.metavar is not None and p.metavar.endswith(",…")
]


@pytest.mark.parametrize(("name", "flag"), LISTS)
@pytest.mark.parametrize("text", ["", ",", "x,"])
def test_every_list_flag_refuses_it_before_anything_else(name: str, flag: str, text: str) -> None:
    result = CliRunner().invoke(cli.app, [name, "rms_scale", flag, text])
    assert result.exit_code == 2
    assert result.stdout == ""
    first, blank, hint = result.stderr.splitlines()
    assert first.startswith(f"error: {flag} {text!r} ")
    assert blank == ""
    assert hint.startswith(f"hint: write {flag} ")


def test_the_lists_are_known() -> None:
    assert set(LISTS) == {
        ("verify", "--shapes"), ("verify", "--peers"), ("tune", "--shapes"), ("bench", "--shapes"), ("bench", "--peers"),
    }  # fmt: skip
