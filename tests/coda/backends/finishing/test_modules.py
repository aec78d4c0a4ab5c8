"""Generated files: one folder for any number of processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("triton")

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
