"""What this machine and this installation can do, and what stands in the way: `doctor` and `--version`.

    Check       one finding: ok, note (worth knowing), warning (something will not work as expected), problem (mend it)
    examine     all checks, cheapest first
    doctor, version    the commands

Nothing is changed and nothing is created; the API key is reported as set or not, never shown. Neighbours: `agent.settings` for
variables and places, `coda.backends.registry` for what can run here.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from ..records import Environment
from ..settings import KEY_VARIABLE, Settings, unknown_variables
from . import render
from .terminal import Answer, Exit, Failure, Terminal

Status = Literal["ok", "note", "warning", "problem"]

DISTRIBUTION = "coda-agent"
HERE = Path(__file__).resolve().parents[2]
"""The folder that the top-level names of ours should come from."""
OURS = ("coda", "agent", "cli", "examples_curated", "authored_kernels")
"""Top-level names that this distribution installs; two of them are common enough to collide."""
NEEDED = (
    "torch",
    "triton",
    "numpy",
    "pydantic",
    "pydantic-settings",
    "typer",
    "rich",
    "jinja2",
    "anthropic",
    "filelock",
    "platformdirs",
)
OPTIONAL = {
    "quack-kernels": "the cutedsl backend and its human-written peers",
    "nvidia-cutlass-dsl": "the cutedsl backend",
    "liger-kernel": "a peer in comparisons",
    "flashinfer-python": "a peer in comparisons",
    "cut-cross-entropy": "a peer in comparisons",
}


@dataclass(frozen=True)
class Check:
    """One finding."""

    check: str
    status: Status
    found: str
    hint: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain JSON."""
        return asdict(self)


def examine(settings: Settings) -> tuple[Check, ...]:
    """Every check."""
    return (
        python(sys.version_info[:3]),
        *packages(metadata.version),
        *owners(metadata.packages_distributions()),
        *origins(),
        *devices(),
        *backends(),
        interpreter(),
        *variables(unknown_variables()),
        *folders(settings),
        key(settings),
        *configuration(settings),
        recordings(),
    )


def problems(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Those that must be mended."""
    return tuple(check for check in checks if check.status == "problem")


# the installation -----------------------------------------------------------------------------------------------------


def python(version: Sequence[int]) -> Check:
    """3.11 or newer."""
    found = f"{'.'.join(map(str, version))}, {platform.platform()}"
    if tuple(version[:2]) < (3, 11):
        return Check("python", "problem", found, "make PYTHON=python3.11 install")
    return Check("python", "ok", found)


def packages(version: Callable[[str], str]) -> Iterator[Check]:
    """Versions of what is needed and of what is used where present."""
    for name in (DISTRIBUTION, *NEEDED, *OPTIONAL):
        try:
            yield Check(f"package {name}", "ok", version(name))
        except metadata.PackageNotFoundError:
            if name in OPTIONAL:
                yield Check(f"package {name}", "note", f"not installed; for {OPTIONAL[name]}")
            elif name == DISTRIBUTION:
                yield Check(f"package {name}", "note", "run from a checkout that is not installed", "make install")
            elif name == "triton" and sys.platform != "linux":
                yield Check(f"package {name}", "note", "not installed; exists for Linux only")
            else:
                yield Check(f"package {name}", "problem", "not installed", f"pip install {name}")


def owners(distributions: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    """Other distributions that install a top-level name of ours: files of one overwrite files of the other."""
    clean = True
    for name in OURS:
        others = sorted({d for d in distributions.get(name, ()) if d.lower().replace("_", "-") != DISTRIBUTION})
        if others:
            clean = False
            hint = (
                f"pip uninstall {' '.join(others)}, or install coda-agent in an environment of its own (pipx, uv tool)"
            )
            yield Check(f"name {name!r}", "problem", f"also installed by {', '.join(others)}", hint)
    if clean:
        yield Check("top-level names", "ok", f"{', '.join(OURS)} belong to {DISTRIBUTION} alone")


def origins(here: Path = HERE) -> Iterator[Check]:
    """Whether the names resolve to the files beside this one."""
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None:
            yield Check(f"module {name!r}", "problem", "cannot be found", "make install")
        elif here not in origin.parents:
            yield Check(f"module {name!r}", "problem", f"comes from {origin}, not from {here}", "use one installation")


# the machine ----------------------------------------------------------------------------------------------------------


def devices() -> Iterator[Check]:
    """GPUs, or why there are none."""
    try:
        import torch
    except ImportError as error:
        yield Check("GPU", "problem", f"torch cannot be imported: {error}", "pip install torch")
        return
    if torch.version.cuda is None:
        yield Check(
            "GPU",
            "note",
            f"none: torch {torch.__version__} is built for the CPU",
            "gate bench needs a GPU and a CUDA build; numerics then runs there too",
        )
        return
    if not torch.cuda.is_available():
        yield Check("GPU", "note", f"none: torch {torch.__version__} (CUDA {torch.version.cuda}) sees no device")
        return
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        gib = torch.cuda.get_device_properties(index).total_memory / 2**30
        yield Check(f"GPU {index}", "ok", f"{torch.cuda.get_device_name(index)}, sm_{major}{minor}, {gib:.0f} GiB")


def backends() -> Iterator[Check]:
    """Each backend, and why it cannot run here."""
    from coda.backends import registry

    for name, support in registry.available().items():
        status: Status = "ok" if support.ok else "note"
        yield Check(f"backend {name}", status, "available" if support.ok else f"not here: {support.reason}")


def interpreter() -> Check:
    """Triton's interpreter, which cannot be trusted with bf16."""
    from coda.env import interpreting

    if interpreting():
        return Check(
            "TRITON_INTERPRET",
            "warning",
            "set: kernels of this process run in the interpreter; fp16 and fp32 only, its bf16 dot is wrong and refused",
            "unset it to use a GPU; the judge starts interpreting workers by itself",
        )
    return Check("TRITON_INTERPRET", "ok", "not set; the judge starts interpreting workers where it needs them")


# settings -------------------------------------------------------------------------------------------------------------


def variables(unknown: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Check]:
    """Variables that look like ours and that nothing reads, each with near names."""
    for name, near in unknown:
        hint = f"did you mean {' or '.join(near)}?" if near else "unset it"
        yield Check(f"variable {name}", "warning", "nothing reads it", hint)
    if not unknown:
        yield Check("CODA_* variables", "ok", "all known")


def folders(settings: Settings) -> Iterator[Check]:
    """Whether what commands write can be written, where that is, and what put it there."""
    from coda import env

    mine = "the platform's" if settings.home is None else f"below {settings.source_of('home')}"
    cache = "CODA_CACHE_DIR" if env.cache_dir_is_set() else "the platform's"
    for what, path, whence in (
        ("runs", settings.runs_dir, mine),
        ("kept kernels", *_kernels(settings, mine)),
        ("cache", settings.cache_dir, mine),
        ("kernel cache", env.cache_dir(), cache),
    ):
        if writable(path):
            yield Check(f"folder of {what}", "ok", f"{path} ({whence})")
        else:
            hint = "set CODA_AGENT_HOME or CODA_CACHE_DIR"
            yield Check(f"folder of {what}", "problem", f"{path} ({whence}) cannot be written", hint)


def _kernels(settings: Settings, mine: str) -> tuple[Path, str]:
    """Where a passing kernel is kept without --into, why there, and where else kept kernels are found."""
    from ..keeping.keep import default_folder
    from ..keeping.shelves import shelves

    path = default_folder(settings)
    whence = mine if path == settings.kernels_dir else "this checkout's; --into names another"
    others = [str(place) for place in shelves(settings) if place != path]
    return path, f"{whence}; found too: {', '.join(others)}" if others else whence


def writable(path: Path) -> bool:
    """Whether the folder can be written, or created: nothing is tried, only asked."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def key(settings: Settings) -> Check:
    """The API key: set or not."""
    if settings.anthropic_api_key is not None:
        return Check(KEY_VARIABLE, "ok", "set")
    return Check(KEY_VARIABLE, "note", "not set", "needed for --llm anthropic only; replay and folder:DIR work without")


def configuration(settings: Settings) -> Iterator[Check]:
    """Settings that are not the defaults, with their source."""
    for name, value, source in settings.explain():
        if source != "default" and name != "anthropic_api_key":
            yield Check(f"setting {name}", "note", f"{value} (from {source})")


def recordings() -> Check:
    """What `--llm replay` can play."""
    from ..llm.replay import bundled_names

    names = bundled_names()
    return Check("recordings", "ok" if names else "note", ", ".join(names) or "none bundled")


def versions() -> dict[str, Any]:
    """What `--version -v` adds: packages, GPU, places. Imports torch."""
    here = Environment.here()  # the same packages as in a verdict
    found: dict[str, Any] = {"python": here.python, **here.packages}
    try:
        import torch

        found["CUDA"] = torch.version.cuda or "none: torch is built for the CPU"
        found["GPU"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    except ImportError:
        found["GPU"] = "unknown: torch cannot be imported"
    return found


# the commands ---------------------------------------------------------------------------------------------------------


def doctor(terminal: Terminal) -> Answer:
    """The command `doctor`."""
    checks = examine(terminal.settings())
    bad = problems(checks)
    rows = [check.to_dict() for check in checks]
    data = {"checks": rows, "problems": len(bad)}
    failure = None
    if bad:
        first = bad[0]
        failure = Failure("environment", f"{len(bad)} to mend: {', '.join(p.check for p in bad)}", first.hint)
    return Answer(data, lambda: [render.checks_table(rows)], Exit.ENVIRONMENT if bad else Exit.OK, failure)


def version(terminal: Terminal) -> Answer:
    """`--version`; with -v what else matters for a report."""
    import coda

    data: dict[str, Any] = {"version": coda.__version__}
    if terminal.options.verbose:
        from ..keeping.keep import default_folder

        settings = terminal.settings()
        data |= versions()
        data |= {
            "runs": str(settings.runs_dir),
            "kernels": str(default_folder(settings)),
            "config": str(settings.config_file),
        }

    def show() -> Iterator[Any]:
        yield f"coda-agent {data['version']}"
        yield from (f"{name}: {value}" for name, value in data.items() if name != "version")

    return Answer(data, show)
