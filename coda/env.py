"""Every CODA_* variable that the library reads; nothing else in `coda` looks at the environment.

A bad value is an error that names the variable, the value and the options. Read at each call, so that a test or a
long-lived process may change them.
"""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass

from coda.errors import SettingError


@dataclass(frozen=True)
class Variable:
    """A variable: its name, what it does, its default as text."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable("CODA_BACKEND", "backend of calls that name none: auto, reference, triton, cutedsl", "auto"),
    Variable("CODA_CACHE_DIR", "folder of compiled and tuned kernels", "the user's cache folder / coda"),
    Variable("CODA_DEBUG", "1 logs to stderr which backend and schedule each new kind of call takes, and why", "0"),
)


_SET, _BACKEND = getattr(os.environ, "_data", None), os.environ.encodekey("CODA_BACKEND")
"""What `os.environ` looks its names up in, and such a name: an eager call asks every time, and this takes a tenth of the time."""


def backend() -> str:
    """The backend of calls that name none, as it was set: `coda.tune` knows which there are."""
    if _SET is not None and _BACKEND not in _SET:
        return "auto"
    return os.environ.get("CODA_BACKEND", "auto")


def cache_dir_is_set() -> bool:
    """Whether a variable names that folder."""
    return bool(os.environ.get("CODA_CACHE_DIR"))


def cache_dir() -> pathlib.Path:
    """The folder of compiled and tuned kernels. It need not exist yet."""
    value = os.environ.get("CODA_CACHE_DIR")
    if value:
        return pathlib.Path(value)
    import platformdirs

    return pathlib.Path(platformdirs.user_cache_dir("coda"))


def debug() -> bool:
    """Whether choices are logged to stderr."""
    value = os.environ.get("CODA_DEBUG", "0")
    if value not in ("0", "1"):
        raise SettingError("CODA_DEBUG is not a switch", got=repr(value), expected="0 or 1")
    return value == "1"


def interpreting() -> bool:
    """Whether Triton runs in its interpreter in this process (Triton's own variable TRITON_INTERPRET)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def of_child(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's, with changes."""
    return {**os.environ, **changes}
