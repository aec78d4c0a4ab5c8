"""Writing files so that a reader finds the old one or the new one, never half of one.

write_text      temporary file in the same folder, fsync, rename
require_place   whether a file could be written, before what it is to hold is worked for
append_line     one line at the end, fsync; a torn last line of a killed writer is cut off first
read_bounded    a regular file, and no more of it than is wanted
publish         a finished folder under its final name, in one rename, never over another
spelled         the path that a person may have meant
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import tempfile

MODE = 0o644


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a UTF-8 file, at once or not at all; creates its folder. Raises `OSError` that names this path."""
    try:
        _write_text(path, text)
    except FileExistsError as error:  # of the folder's name, which is a file's
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno, error.strerror, str(path)
        ) from error  # not of a temporary file, of which nobody knows


def require_place(path: pathlib.Path) -> None:
    """Whether a file could be written there, by trying in the nearest folder that exists; nothing is left behind. Raises `OSError`."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".writable-", dir=place))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_text(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, MODE)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def append_line(path: pathlib.Path, line: str) -> None:
    """Append a line and wait until it is on disk."""
    data = line.encode("utf-8") + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, MODE)
    try:
        _cut_torn_line(descriptor)
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: pathlib.Path) -> list[str]:
    """The complete lines of a file that `append_line` wrote; what a killed writer left of a last one is ignored."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode("utf-8").split("\n")[
        :-1
    ]  # splitlines also cuts at U+2028 and others, which JSON leaves as they are


def read_bounded(path: pathlib.Path, most: int) -> bytes:
    """The bytes of a regular file, at most so many. Raises `OSError`, also for a device, a pipe or a folder: reading one may never
    end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(most)


def publish(finished: pathlib.Path, target: pathlib.Path) -> bool:
    """Rename a finished folder to its final name. False where that name is taken by anything."""
    if target.exists() or target.is_symlink():
        return False  # rename would replace an empty folder
    try:
        os.rename(finished, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            return False
        raise
    _sync_folder(target.parent)
    return True


def _cut_torn_line(descriptor: int) -> None:
    """Remove bytes after the last newline: the line they begin was never finished."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(end - 65536, 0)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)


def _sync_folder(folder: pathlib.Path) -> None:
    """Make a rename durable, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems refuse it for folders; the file itself is on disk
    finally:
        os.close(descriptor)


def spelled(text: str) -> pathlib.Path | None:
    """The path that a text is, whether anything is there or not; None where it can be none: it names a user who does not exist, or is
    longer than a name may be."""
    try:
        place = pathlib.Path(text).expanduser()
        place.stat()
    except FileNotFoundError:
        return place
    except (OSError, RuntimeError, ValueError):
        return None
    return place
