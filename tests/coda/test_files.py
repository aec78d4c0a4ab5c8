"""A file that is written at once or not at all."""

from __future__ import annotations

import os
import pathlib

import pytest

from coda import files

pytestmark = pytest.mark.null


def test_a_write_replaces(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.json"
    for text in ("{}", "ä" * 100_000):
        files.write(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "x.json"
    files.write(path, "old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
