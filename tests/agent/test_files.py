"""Files that are written whole, and paths as people spell them; `tests/coda/test_files.py` has the library's own."""

from __future__ import annotations

import pathlib

import pytest

from agent.errors import UnknownRun, UnknownSubject
from agent.files import spelled
from agent.keeping import shelves
from agent.runs import store

pytestmark = pytest.mark.null


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "x" * 5000, "x\0y"])
def test_what_can_be_no_path_is_no_path(text: str, tmp_path: pathlib.Path) -> None:
    assert spelled(text) is None
    with pytest.raises(UnknownRun):
        store.find(text, tmp_path)
    with pytest.raises(UnknownSubject):
        shelves.find(text, folders=(), runs=tmp_path)


def test_a_path_need_not_be_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spelled(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert spelled("~") == tmp_path
