"""Settings: precedence, sources, strict keys, places, and the key that is in no file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent import settings
from agent.errors import SettingsInvalid
from agent.settings import Settings, load, unknown_variables

pytestmark = pytest.mark.null

ROOT = Path(__file__).parents[2]
KEY = "sk-ant-5ecre7"


@pytest.fixture(autouse=True)
def places(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No variable of ours, all platform folders below tmp_path, working folder own_folders/project."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    project = own_folders / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return own_folders


def user_file(places: Path, text: str) -> Path:
    path = places / "config" / "coda-agent" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def project_file(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    found = load()
    assert (found.model, found.llm, found.max_cost, found.anthropic_api_key) == ("claude-opus-5-5", None, None, None)
    assert {source for _, _, source in found.explain()} == {"default"}


def test_each_layer_hides_those_below(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(**flags: Any) -> tuple[str, str]:
        found = load(flags)
        return found.model, found.source_of("model")

    assert model() == ("claude-opus-5-5", "default")
    user = user_file(places, 'model = "user"\nrounds = 3\n')
    assert model() == ("user", str(user))
    project = project_file(places / "project", '[tool.coda-agent]\nmodel = "project"\n')
    assert model() == ("project", f"{project} [tool.coda-agent]")
    monkeypatch.setenv("CODA_AGENT_MODEL", "variable")
    assert model() == ("variable", "CODA_AGENT_MODEL")
    assert model(model="flag") == ("flag", "flag")
    assert model(model=None) == ("variable", "CODA_AGENT_MODEL")
    assert (load().rounds, load().source_of("rounds")) == (3, str(user))


def test_the_nearest_project_that_speaks_to_us_counts(places: Path) -> None:
    inner = places / "project" / "a" / "b"
    inner.mkdir(parents=True)
    project_file(places / "project", "[tool.coda-agent]\nrounds = 2\n")
    project_file(inner, "[tool.other]\nx = 1\n")
    assert load(folder=inner).rounds == 2
    project_file(inner, "[tool.coda-agent]\nrounds = 4\n")
    assert load(folder=inner).rounds == 4
    deep = places / "project" / Path(*("d" * settings.PYPROJECT_DEPTH)) / "e"
    assert load(folder=deep.parent).rounds == 2
    assert load(folder=deep).rounds == 8


def test_config_flag_replaces_the_users_file(places: Path) -> None:
    user_file(places, "rounds = 3\n")
    other = places / "other.toml"
    other.write_text("max_cost = 1.5\n")
    found = load(config_file=other)
    assert (found.max_cost, found.rounds) == (1.5, 8)
    with pytest.raises(SettingsInvalid, match="does not exist"):
        load(config_file=places / "missing.toml")


@pytest.mark.parametrize("name", ["modle", "max-cost"])
def test_unknown_keys_are_errors_with_near_names(places: Path, name: str) -> None:
    near = {"modle": "model", "max-cost": "max_cost"}[name]
    path = user_file(places, f"{name} = 1\n")
    with pytest.raises(SettingsInvalid, match=name) as caught:
        load()
    assert str(path) in caught.value.what
    assert near in caught.value.hint
    assert caught.value.exit_code == 2
    path.unlink()
    project_file(places / "project", f"[tool.coda-agent]\n{name} = 1\n")
    with pytest.raises(SettingsInvalid, match="pyproject"):
        load()
    with pytest.raises(SettingsInvalid, match="flag"):
        load({name: 1}, folder=places)


@pytest.mark.parametrize("name", ["anthropic_api_key", "ANTHROPIC_API_KEY", "api_key"])
def test_a_key_in_a_file_is_refused_and_not_shown(places: Path, name: str) -> None:
    user_file(places, f'{name} = "{KEY}"\n')
    with pytest.raises(SettingsInvalid) as caught:
        load()
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert KEY not in str(caught.value)


def test_a_broken_file_is_named(places: Path) -> None:
    path = user_file(places, "model = \n")
    with pytest.raises(SettingsInvalid, match="cannot be read") as caught:
        load()
    assert str(path) in caught.value.what
    path.unlink()
    project_file(places / "project", "[tool]\ncoda-agent = 3\n")
    with pytest.raises(SettingsInvalid, match="not a table"):
        load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ROUNDS", "many"), ("ROUNDS", "0"), ("MAX_COST", "-1"), ("EFFORT", "huge"), ("PROGRESS", "perhaps")],
)
def test_bad_values_name_variable_and_value(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"CODA_AGENT_{variable}", value)
    with pytest.raises(SettingsInvalid) as caught:
        load()
    assert f"CODA_AGENT_{variable}" in caught.value.what
    assert repr(value) in caught.value.what


@pytest.mark.parametrize("value", ["0", "false", "no", "False", "NO", "off"])
def test_no_means_no(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CODA_AGENT_PROGRESS", value)
    assert load().progress is False


def test_empty_variables_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    monkeypatch.setenv("CODA_AGENT_MODEL", "")
    found = load()
    assert (found.anthropic_api_key, found.model) == (None, "claude-opus-5-5")


def test_the_key_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    found = load()
    assert found.anthropic_api_key is not None
    assert found.anthropic_api_key.get_secret_value() == KEY
    assert ("anthropic_api_key", "set", "ANTHROPIC_API_KEY") in found.explain()
    for text in (repr(found), str(found), found.model_dump_json(), repr(found.model_dump()), repr(found.explain())):
        assert KEY not in text


def test_places(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load()
    assert found.runs_dir == places / "state" / "coda-agent" / "runs"
    assert found.kernels_dir == places / "data" / "coda-agent" / "authored_kernels"
    assert found.cache_dir == places / "cache" / "coda-agent"
    assert found.config_file == places / "config" / "coda-agent" / "config.toml"
    monkeypatch.setenv("CODA_AGENT_HOME", str(places / "home"))
    (places / "home").mkdir()
    (places / "home" / "config.toml").write_text("rounds = 5\n")
    moved = load()
    for path in (moved.runs_dir, moved.kernels_dir, moved.cache_dir, moved.config_file):
        assert path.is_relative_to(places / "home")
    assert len({moved.runs_dir, moved.kernels_dir, moved.cache_dir}) == 3
    assert moved.rounds == 5


def test_settings_are_frozen_and_closed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().model = "x"
    with pytest.raises(ValueError, match="Extra inputs"):
        Settings(modle="x")  # type: ignore[call-arg]


def test_every_field_has_a_variable_and_a_meaning() -> None:
    rows = settings.variables()
    assert [name for name, _, _ in rows][:2] == ["ANTHROPIC_API_KEY", "CODA_AGENT_LLM"]
    assert len(rows) == len(Settings.model_fields)
    assert all(meaning for _, meaning, _ in rows)


def test_misspelt_variables_are_found() -> None:
    environ = {"CODA_AGENT_MODLE": "x", "CODA_AGENT_MODEL": "x", "CODA_BACKEND": "x", "CODA_DBUG": "1", "PATH": "/"}
    found = dict(unknown_variables(environ))
    assert list(found) == ["CODA_AGENT_MODLE", "CODA_DBUG"]
    assert found["CODA_AGENT_MODLE"][0] == "CODA_AGENT_MODEL"
    assert "CODA_DEBUG" in found["CODA_DBUG"]


def test_importing_is_cheap() -> None:
    program = (
        "import sys, agent.settings; print(sorted({'pydantic_settings', 'anthropic', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == "[]"
