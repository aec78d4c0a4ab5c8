"""From generated text to an imported module: Triton reads a kernel's source from its file.

    GENERATOR   version of what is generated: in every text, and part of every key and of the triton backend's schedules
    module      write the text once, import it from there

Any number of processes may share the cache folder: a file is written under another name and renamed, its name is a hash
of its text, and a file that does not hold that text is replaced.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import threading
from types import ModuleType

from coda import env, files
from coda.errors import BackendUnavailable

GENERATOR = 5
"""Raised with every change of generated code, of a tile or of the finisher."""


_MAKING = threading.RLock()
"""A module is among `sys.modules` before it is complete, since Triton looks for it there: nobody may find it so."""


def module(text: str, name: str) -> ModuleType:
    """The module with this text, complete, whichever thread asks."""
    import triton

    key = hashlib.sha256(f"{GENERATOR} {triton.__version__}\n{text}".encode()).hexdigest()[:24]
    full = f"coda_triton_{key}"
    with _MAKING:
        found = sys.modules.get(full)
        if found is None:
            found = _imported(full, _written(f"{re.sub('[^A-Za-z0-9_]', '_', name)[:40]}_{key}.py", text))
        return found


def _imported(full: str, path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(full, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[full] = found
    try:
        spec.loader.exec_module(found)
    except BaseException:
        del sys.modules[full]
        raise
    return found


def _written(name: str, text: str) -> pathlib.Path:
    """The path of a file with this text, in the cache folder or, where that cannot be written, in a temporary one."""
    for place in (_cached, _temporary):
        try:
            folder = place()
            path = folder / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                files.write(path, text)
        except OSError as error:
            last = error
            continue
        return path
    raise BackendUnavailable(
        "the folder of generated kernels cannot be written",
        got=str(last),
        hint="set CODA_CACHE_DIR to a folder of yours",
    )


def _cached() -> pathlib.Path:
    folder = env.cache_dir() / "triton"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _temporary() -> pathlib.Path:
    return files.own(pathlib.Path(tempfile.gettempdir()), f"coda-triton-{os.getuid()}")
