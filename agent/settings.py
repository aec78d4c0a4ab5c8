"""Where, who and how loud: what a user sets once. What is tuned is a schedule (`coda`), what is to be written is a
task.

Precedence, first match wins:

    flag > environment > [tool.coda-agent] of the nearest pyproject.toml > config.toml of the user > default

An unknown key in a file or a flag is an error. A misspelt *variable* cannot be told from somebody else's, so `doctor`
lists those that start with `CODA_` and that nobody reads (`unknown_variables`). The API key comes from the
environment only, is a `SecretStr`, and is no valid key of a file: files get committed.

This is the only file of `agent` that reads environment variables. Neighbours: `errors`; `agent.llm.select` takes the
key, the loop the limits, the store the paths.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator

from .errors import SettingsInvalid

APPLICATION = "coda-agent"
PREFIX = "CODA_AGENT_"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
PYPROJECT_DEPTH = 8
"""How many folders above the working folder are searched for a pyproject.toml with our table."""

EXAMPLE_TOKENS = 12_000
"""Of curated examples in a prompt, estimated; the whole bank fits."""
Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much a model should think, as its provider calls it."""


class Settings(BaseModel):
    """Resolved values. A field may be set by a flag, `CODA_AGENT_<FIELD>` or a file, unless it says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    llm: str | None = None
    """Who answers: anthropic, replay, replay:RUN, folder:DIR, scripted:FILE. The default is anthropic, given a key."""
    model: str = Field(default="claude-opus-5-5", min_length=1)
    """Model id. Any string: new models need no new release."""
    effort: Effort | None = None
    """How much the model should think; the provider's default if unset."""
    max_tokens: int = Field(default=32_000, ge=1)
    """Longest single reply in tokens, thinking included."""
    rounds: int = Field(default=8, ge=1)
    """Most rounds of one run."""
    max_cost: float | None = Field(default=None, gt=0)
    """Most US dollars of one run."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Most tokens of one run, input and output."""
    example_tokens: int = Field(default=EXAMPLE_TOKENS, ge=0)
    """Most tokens of curated examples in a prompt, estimated at four characters each."""
    time_limit: str | None = None
    """Longest run, such as 20m."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Longest silence on the connection to the model, in seconds."""
    max_retries: int = Field(default=2, ge=0, le=10)
    """Attempts added on rate limits, overload and connection failures."""
    reply_deadline: float | None = Field(default=3600.0, gt=0)
    """Longest wait for a reply file of folder:DIR, in seconds."""
    progress: bool = True
    """Show progress on a terminal."""
    home: Path | None = None
    """One folder for runs, kept kernels, cache and config.toml, instead of the places of the platform."""
    anthropic_api_key: SecretStr | None = Field(default=None, validation_alias=KEY_VARIABLE)
    """API key. From the environment only."""

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path | None) -> Path | None:
        return home.expanduser().absolute() if home is not None else None

    @property
    def runs_dir(self) -> Path:
        """Run folders: `$XDG_STATE_HOME/coda-agent/runs`."""
        return self._place("state") / "runs"

    @property
    def kernels_dir(self) -> Path:
        """Kept kernels of the user, where no checkout is at hand."""
        return self._place("data") / "authored_kernels"

    @property
    def cache_dir(self) -> Path:
        return self._place("cache")

    @property
    def config_file(self) -> Path:
        return _config_file(self.home)

    def source_of(self, name: str) -> str:
        """Where the value of a field came from: flag, a variable, a file, or default."""
        return self._sources.get(name, "default")

    def explain(self) -> list[tuple[str, str, str]]:
        """(name, value, source) of every field, for `--version -v` and `doctor`. The key shows as set or not."""
        rows = []
        for name in _FIELDS:
            value = getattr(self, name)
            shown = ("set" if value else "not set") if name == "anthropic_api_key" else str(value)
            rows.append((name, shown, self.source_of(name)))
        return rows

    def _place(self, kind: Literal["state", "data", "cache"]) -> Path:
        if self.home is not None:
            return self.home / "cache" if kind == "cache" else self.home
        import platformdirs

        where = {
            "state": platformdirs.user_state_path,
            "data": platformdirs.user_data_path,
            "cache": platformdirs.user_cache_path,
        }[kind]
        return where(APPLICATION, appauthor=False)


_FIELDS = tuple(Settings.model_fields)
_FILE_FIELDS = tuple(name for name in _FIELDS if name not in ("anthropic_api_key", "home"))
"""`home` says where config.toml is, so it cannot be in it."""


def load(
    flags: Mapping[str, Any] | None = None, *, folder: Path | None = None, config_file: Path | None = None
) -> Settings:
    """Resolve all settings.

    Args:
        flags: Values from the command line by field name; None values were not given.
        folder: Working folder (`-C`), where the search for a pyproject.toml begins.
        config_file: Replaces the user's config.toml (`--config`) and must exist.

    Raises:
        SettingsInvalid: An unknown key or a value that does not fit; names the source, the key and what is possible.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    environment = _environment()
    _refuse_unknown(given, "a flag", _FIELDS)
    home = given.get("home", environment.get("home"))
    layers = [("flag", given), *(_variable_layer(environment)), *_file_layers(folder or Path.cwd(), config_file, home)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for name, value in layer.items():
            if name not in values:
                values[name], sources[name] = value, source
    key = values.pop("anthropic_api_key", None)
    if key is not None:
        values[KEY_VARIABLE] = key
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _invalid(error, values, sources) from None
    settings._sources.update(sources)
    return settings


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[tuple[str, list[str]]]:
    """Variables (of this process unless given) that start with `CODA_` and that nothing reads, each with near names: most
    likely misspelt."""
    from coda.env import VARIABLES

    environ = os.environ if environ is None else environ

    known = [variable.name for variable in VARIABLES] + [name for name, _, _ in variables()]
    return [
        (name, difflib.get_close_matches(name, known, n=2, cutoff=0.6))
        for name in sorted(environ)
        if name.startswith("CODA_") and name not in known
    ]


def variables() -> list[tuple[str, str, str]]:
    """(name, meaning, default) of every variable read here, for the generated table."""
    rows = [(KEY_VARIABLE, "API key of `--llm anthropic`; never written or printed", "")]
    for name in _FIELDS:
        if name != "anthropic_api_key":
            field = Settings.model_fields[name]
            rows.append(
                (variable_of(name), field.description or "", "" if field.default is None else str(field.default))
            )
    return rows


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return KEY_VARIABLE if name == "anthropic_api_key" else PREFIX + name.upper()


def _environment() -> dict[str, Any]:
    """Fields set by variables. Empty variables count as unset."""
    # Imported here: pydantic-settings takes a quarter of a second, and `--help` needs none of it.
    from pydantic_settings import BaseSettings, EnvSettingsSource

    class Environment(BaseSettings, Settings):  # type: ignore[misc]
        """`Settings`, in the shape that pydantic-settings reads."""

    found = EnvSettingsSource(Environment, env_prefix=PREFIX, env_ignore_empty=True, case_sensitive=False)()
    if KEY_VARIABLE in found:
        found["anthropic_api_key"] = SecretStr(found.pop(KEY_VARIABLE))
    return found


def _variable_layer(environment: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """One layer per variable, so that each value's source names its own."""
    return [(variable_of(name), {name: value}) for name, value in environment.items()]


def _file_layers(folder: Path, config_file: Path | None, home: object) -> list[tuple[str, dict[str, Any]]]:
    layers = []
    project = _project_table(folder)
    if project is not None:
        layers.append(project)
    path = config_file or _config_file(Path(str(home)).expanduser() if home else None)
    if path.is_file():
        layers.append((str(path), _checked(path, _toml(path))))
    elif config_file is not None:
        raise SettingsInvalid(f"--config {str(config_file)!r} does not exist", hint="name a TOML file")
    return layers


def _project_table(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The nearest pyproject.toml that speaks to us; one without our table does not hide the one above it."""
    for place in [folder.absolute(), *folder.absolute().parents][: PYPROJECT_DEPTH + 1]:
        path = place / "pyproject.toml"
        if not path.is_file():
            continue
        table = _toml(path).get("tool", {}).get(APPLICATION)
        if isinstance(table, dict):
            return f"{path} [tool.{APPLICATION}]", _checked(path, table)
        if table is not None:
            raise SettingsInvalid(
                f"tool.{APPLICATION} in {str(path)!r} is not a table", hint=f"write [tool.{APPLICATION}]"
            )
    return None


def _config_file(home: Path | None) -> Path:
    if home is not None:
        return home / "config.toml"
    import platformdirs

    return platformdirs.user_config_path(APPLICATION, appauthor=False) / "config.toml"


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"{str(path)!r} cannot be read: {error}", hint="mend the file") from error


def _checked(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    secret = [name for name in table if name.lower() in ("anthropic_api_key", "anthropic-api-key", "api_key")]
    if secret:
        raise SettingsInvalid(
            f"{secret[0]!r} in {str(path)!r}: a key in a file is soon in a repository",
            hint=f"remove it there, set {KEY_VARIABLE} instead, and replace the key if the file was shared",
        )
    _refuse_unknown(table, repr(str(path)), _FILE_FIELDS)
    return table


def _refuse_unknown(table: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=2, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise SettingsInvalid(f"unknown setting {name!r} in {where}", hint=hint)


def _invalid(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> SettingsInvalid:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if name == KEY_VARIABLE:
        return SettingsInvalid(f"{KEY_VARIABLE} is not usable: {first['msg']}", hint="set it again")
    meaning = Settings.model_fields[name].description or ""
    return SettingsInvalid(
        f"{name} = {values.get(name)!r} from {sources.get(name, 'default')}: {first['msg']}", hint=meaning
    )
