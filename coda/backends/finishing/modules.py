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
from types import ModuleType

from coda import env
from coda.errors import BackendUnavailable

GENERATOR = 3
"""Raised with every change of generated code, of a tile or of the finisher."""


def module(text: str, name: str) -> ModuleType:
    """The module with this text."""
    import triton

    key = hashlib.sha256(f"{GENERATOR} {triton.__version__}\n{text}".encode()).hexdigest()[:24]
    full = f"coda_triton_{key}"
    if full in sys.modules:
        return sys.modules[full]
    path = _written(f"{re.sub('[^A-Za-z0-9_]', '_', name)[:40]}_{key}.py", text)
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
    for folder in (env.cache_dir() / "triton", pathlib.Path(tempfile.gettempdir()) / f"coda-triton-{os.getuid()}"):
        path = folder / name
        try:
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                return path
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError as error:
            last = error
            continue
        return path
    raise BackendUnavailable(
        "the folder of generated kernels cannot be written",
        got=str(last),
        hint="set CODA_CACHE_DIR to a folder of yours",
    )
