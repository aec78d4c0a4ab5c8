"""Generated files: one folder for any number of processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest

pytest.importorskip("triton")

from coda import files
from coda.backends.finishing import modules

pytestmark = pytest.mark.interp

WRITE = "from coda.backends.finishing.modules import module; print(module('VALUE = 17\\n' * 2000, 'race').__file__)"


def test_many_processes_share_one_folder(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "CODA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(pathlib.Path(__file__).parents[4])}

    def race(count: int) -> set[str]:
        children = [
            subprocess.Popen([sys.executable, "-c", WRITE], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        return {child.communicate(timeout=120)[0].strip() for child in children}

    (path,) = map(pathlib.Path, race(4))
    assert path.is_file()
    assert [x.name for x in (tmp_path / "triton").iterdir() if x.is_file()] == [path.name]
    path.write_text("damaged")
    assert race(1) == {str(path)}
    assert path.read_text().startswith("VALUE = 17")


def test_no_thread_gets_a_module_that_is_half_made(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))
    text = f"import time\ntime.sleep(0.3)\nVALUE = {str(tmp_path)!r}\n"
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(getattr(modules.module(text, "slow"), "VALUE", "half made")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(tmp_path)] * 3


def test_a_module_that_raises_is_made_anew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path))
    text = f"# {tmp_path}\nimport pathlib\nVALUE = pathlib.Path({str(tmp_path / 'there')!r}).read_text()\n"
    with pytest.raises(FileNotFoundError):
        modules.module(text, "raises")
    (tmp_path / "there").write_text("now")
    assert modules.module(text, "raises").VALUE == "now"


@pytest.fixture
def only_temporary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The shared folder of a machine on which the cache folder cannot be made; the path of this user's folder in it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(modules.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"coda-triton-{os.getuid()}"


def test_the_temporary_folder_is_shared_by_the_processes_of_one_user(only_temporary: pathlib.Path) -> None:
    for _ in range(2):
        assert modules._written("x.py", "VALUE = 1\n").parent == only_temporary
    assert only_temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["open", "link", "file", "another's"])
def test_a_temporary_folder_that_others_can_write_is_not_used(
    only_temporary: pathlib.Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    text = "VALUE = 1\n"
    if how == "link":
        theirs = only_temporary.with_name("theirs")
        theirs.mkdir(mode=0o700)
        only_temporary.symlink_to(theirs)
    elif how == "file":
        only_temporary.write_text("")
    else:
        only_temporary.mkdir(mode=0o700)
        if how == "open":
            only_temporary.chmod(0o777)
        else:
            name = only_temporary.name
            other = os.getuid() + 1
            monkeypatch.setattr(files.os, "getuid", lambda: other)
            monkeypatch.setattr(modules, "_temporary", lambda: files.own(only_temporary.parent, name))
    if how != "file":
        (only_temporary / "x.py").write_text(text)  # the right text now, and whatever they like later
    path = modules._written("x.py", text)
    assert path.parent.parent == only_temporary.parent
    assert path.parent.name.startswith(f"{only_temporary.name}-")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_text() == text
    assert modules._written("y.py", text).parent == path.parent
