"""`doctor`: every finding by itself, on machines that are made up."""

from __future__ import annotations

import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

import authored_kernels
from agent.commands import doctor
from agent.commands.doctor import Check
from agent.keeping.keep import default_folder
from agent.settings import load

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No variable of ours, all platform folders below tmp_path."""
    for name in ("ANTHROPIC_API_KEY", "CODA_AGENT_HOME", "CODA_CACHE_DIR", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(checks: object) -> dict[str, str]:
    return {check.check: check.status for check in checks}  # type: ignore[attr-defined]


def test_python() -> None:
    assert doctor.python((3, 11, 7)).status == "ok"
    assert doctor.python((3, 10, 12)) == Check(
        "python", "problem", doctor.python((3, 10, 12)).found, "make PYTHON=python3.11 install"
    )


def test_packages_by_what_they_are_for() -> None:
    have = {"torch": "2.13.0", "rich": "15.0.0"}

    def version(name: str) -> str:
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    found = {check.check: check for check in doctor.packages(version)}
    assert (found["package torch"].status, found["package torch"].found) == ("ok", "2.13.0")
    assert (found["package jinja2"].status, found["package jinja2"].hint) == ("problem", "pip install jinja2")
    assert found["package liger-kernel"].status == "note"
    assert found["package coda-agent"].hint == "make install"


def test_another_owner_of_our_names_is_a_problem() -> None:
    """`coda-kernels` also installs `coda`: files of one overwrite files of the other."""
    mine = {name: ["coda-agent"] for name in doctor.OURS}
    (clean,) = doctor.owners(mine)
    assert clean.status == "ok"
    (found,) = doctor.owners({**mine, "coda": ["coda-agent", "coda-kernels"]})
    assert (found.check, found.status) == ("name 'coda'", "problem")
    assert "coda-kernels" in found.found
    assert "pip uninstall coda-kernels" in found.hint
    assert words(doctor.owners({"cli": ["other"], "agent": ["agent"]})) == {
        "name 'agent'": "problem",
        "name 'cli'": "problem",
    }
    assert words(doctor.owners({"coda": ["coda_agent"]})) == {"top-level names": "ok"}  # one spelling of our own


def test_modules_from_elsewhere_are_a_problem(tmp_path: Path) -> None:
    assert list(doctor.origins()) == []
    assert set(words(doctor.origins(tmp_path)).values()) == {"problem"}


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def torch(cuda: str | None, devices: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            __version__="2.13.0",
            version=types.SimpleNamespace(cuda=cuda),
            cuda=types.SimpleNamespace(
                is_available=lambda: devices > 0,
                device_count=lambda: devices,
                get_device_capability=lambda i: (9, 0),
                get_device_properties=lambda i: types.SimpleNamespace(total_memory=141 * 2**30),
                get_device_name=lambda i: "NVIDIA H200",
            ),
        )

    def found(*machine: object) -> list[tuple[str, str, str]]:
        monkeypatch.setitem(sys.modules, "torch", torch(*machine))  # type: ignore[arg-type]
        return [(c.check, c.status, c.found) for c in doctor.devices()]

    assert found(None, 0) == [("GPU", "note", "none: torch 2.13.0 is built for the CPU")]
    assert found("13.0", 0) == [("GPU", "note", "none: torch 2.13.0 (CUDA 13.0) sees no device")]
    assert found("13.0", 2)[1] == ("GPU 1", "ok", "NVIDIA H200, sm_90, 141 GiB")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [c.status for c in doctor.devices()] == ["problem"]


def test_the_interpreter_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.interpreter().status == "ok"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = doctor.interpreter()
    assert found.status == "warning"
    assert "bf16" in found.found
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert doctor.interpreter().status == "ok"


def test_misspelt_variables() -> None:
    assert words(doctor.variables([])) == {"CODA_* variables": "ok"}
    (found,) = doctor.variables([("CODA_BACKND", ["CODA_BACKEND"])])
    assert (found.check, found.status, found.hint) == ("variable CODA_BACKND", "warning", "did you mean CODA_BACKEND?")


def test_folders(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(words(doctor.folders(load())).values()) == {"ok"}
    assert not (places / "state").exists()  # asked, not tried
    (places / "file").write_text("")
    monkeypatch.setenv("CODA_AGENT_HOME", str(places / "file" / "below"))
    assert words(doctor.folders(load()))["folder of runs"] == "problem"


def test_the_folder_of_kernels_is_the_one_that_is_used_and_says_why(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernels() -> str:
        return next(check.found for check in doctor.folders(load()) if check.check == "folder of kept kernels")

    checkout = places / "checkout" / "authored_kernels"
    checkout.mkdir(parents=True)
    monkeypatch.setattr(authored_kernels, "FOLDER", checkout)
    (checkout.parent / "pyproject.toml").write_text("")
    assert default_folder(load()) == checkout
    assert kernels() == f"{checkout} (this checkout's; --into names another)"
    load().kernels_dir.mkdir(parents=True)
    assert kernels().endswith(f"; found too: {load().kernels_dir})")
    (checkout.parent / "pyproject.toml").unlink()  # installed as a package
    assert kernels() == f"{load().kernels_dir} (the platform's; found too: {checkout})"
    monkeypatch.setenv("CODA_AGENT_HOME", str(places / "home"))
    assert kernels() == f"{places / 'home' / 'authored_kernels'} (below CODA_AGENT_HOME; found too: {checkout})"
    monkeypatch.setenv("CODA_CACHE_DIR", str(places / "c"))
    found = {check.check: check.found for check in doctor.folders(load())}
    assert found["folder of kernel cache"] == f"{places / 'c'} (CODA_CACHE_DIR)"
    assert found["folder of runs"] == f"{places / 'home' / 'runs'} (below CODA_AGENT_HOME)"


def test_the_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.key(load()).found == "not set"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-5ecre7")
    checks = [doctor.key(load()), *doctor.configuration(load())]
    assert checks[0].found == "set"
    assert "5ecre7" not in str(checks)


def test_settings_that_are_not_defaults_name_their_source(places: Path) -> None:
    (places / "pyproject.toml").write_text('[tool.coda-agent]\nmodel = "m"\n')
    (found,) = doctor.configuration(load())
    assert (found.check, found.found.split(" (")[0]) == ("setting model", "m")
    assert "pyproject.toml" in found.found


def test_everything_together_here() -> None:
    checks = doctor.examine(load())
    assert {"python", "package torch", "top-level names", "backend reference", "TRITON_INTERPRET", "recordings"} <= set(
        words(checks)
    )
    assert all(check.to_dict().keys() == {"check", "status", "found", "hint"} for check in checks)
    assert doctor.problems([Check("a", "ok", ""), Check("b", "problem", "")]) == (Check("b", "problem", ""),)
