"""What the tree promises: maps that are true, imports that flow one way, files with one subject, one place for each thing."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

pytestmark = pytest.mark.null

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("coda", "agent", "examples_curated", "authored_kernels")
MODULES = [*sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py")), ROOT / "cli.py"]
INITS = [p for p in MODULES if p.name == "__init__.py" and len(list(p.parent.glob("*.py"))) > 1]


def relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_file_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "path", [p for p in INITS if relative(p.parent) not in ("agent/tasks", "examples_curated")], ids=relative
)
def test_every_map_names_its_siblings(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    names = [p.stem for p in path.parent.glob("*.py") if p.stem != "__init__"]
    names += [p.parent.name for p in path.parent.glob("*/__init__.py")]
    missing = [n for n in names if not n.startswith("_") and not re.search(rf"\b{n}\b", text)]
    assert not missing, f"{relative(path)} does not name {missing}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_files_have_one_subject(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 520


def imported(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def test_nothing_imports_the_command_line():
    assert [relative(p) for p in MODULES if "cli" in imported(p)] == []


def test_the_environment_is_read_in_one_file_per_package():
    """`agent/verify/process.py` passes variables on to children by name; it interprets none."""
    reading = {relative(p) for p in MODULES if re.search(r"os\.(environ|getenv)", p.read_text(encoding="utf-8"))}
    assert reading <= {"coda/env.py", "agent/settings.py", "agent/verify/process.py"}, reading


def test_the_wheel_takes_the_agreed_names():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert wheel == ["coda", "agent", "examples_curated", "authored_kernels", "cli.py"]
    assert project["project"]["scripts"] == {"coda-agent": "cli:main"}


def test_the_help_is_quick_and_light():
    code = """
import sys
sys.argv = ["coda-agent", "--help"]
import cli
try:
    cli.main()
except SystemExit:
    pass
heavy = [m for m in ("torch", "anthropic", "pydantic_settings", "jinja2", "triton") if m in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_tests_have_no_packages():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_agents_md_stays_short():
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 220
