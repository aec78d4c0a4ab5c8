"""Writing files that other processes read at any time.

write   at once or not at all: under another name, then renamed
own     a folder below a shared one that belongs to this user alone
"""

from __future__ import annotations

import functools
import os
import pathlib
import stat
import tempfile


def write(path: pathlib.Path, text: str) -> None:
    """UTF-8 into a file of an existing folder, in place of an older one; what was begun is removed. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a file that was renamed first would be empty after a power cut
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def own(parent: pathlib.Path, name: str) -> pathlib.Path:
    """The folder of this name, which processes of this user share; where it is anybody else's, or open to others, a new one
    of this process alone. Everybody may write into a temporary folder, and what is imported from there runs."""
    folder = parent / name
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()  # a link is nobody's folder
        safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700
        if not safe:
            return _alone(parent, name)
    return folder


@functools.cache
def _alone(parent: pathlib.Path, name: str) -> pathlib.Path:
    return pathlib.Path(tempfile.mkdtemp(dir=parent, prefix=f"{name}-"))
