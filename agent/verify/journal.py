"""Which variant is at work in a process, on disk before it starts: a process that dies names who killed it.

    Journal       around a variant's first calls; ends the process where the variant takes too long or breaks the device
    last_at_work  read afterwards, by the process that started it

Neighbours: `bench_worker.py` writes it, `suite.py` reads it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

TOO_LONG, BROKEN = 75, 76
"""Exit codes: a variant did not finish in its time, or the device cannot be used after it."""


class Journal:
    """Lines `> name` before a variant works, `< name` after it, `! name` when it took too long."""

    def __init__(self, path: pathlib.Path, seconds: float, *, leave: Callable[[int], Any] = os._exit) -> None:
        self.path, self.seconds, self._leave = path, seconds, leave

    def note(self, mark: str, name: str) -> None:
        """One line, in one write."""
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{mark} {name}\n".encode())

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Around a variant's work. What it raises is raised, if the device survived it."""

        def expired() -> None:
            self.note("!", name)
            self._leave(TOO_LONG)

        timer = threading.Timer(self.seconds, expired)
        timer.daemon = True
        self.note(">", name)
        timer.start()
        try:
            yield
        except Exception:
            if not _usable():  # which may hang: the timer still runs
                self._leave(BROKEN)
            raise
        finally:
            timer.cancel()  # before the note: a variant that has finished is not late
            self.note("<", name)


def last_at_work(path: pathlib.Path) -> tuple[str, bool] | None:
    """Who was at work when the journal ends, and whether it took too long; None where everybody had finished."""
    found: tuple[str, bool] | None = None
    lines = path.read_bytes().decode("utf-8", "replace").splitlines() if path.is_file() else []
    for line in lines:
        mark, _, name = line.partition(" ")
        if mark == "!":  # the process was about to end: nothing after it counts
            return name, True
        found = (name, False) if mark == ">" else None
    return found


def _usable() -> bool:
    """Whether the device still answers: an error of a kernel stays with its context for ever."""
    import torch

    if not torch.cuda.is_available():
        return True
    try:
        return int(torch.ones(8, device="cuda").sum().item()) == 8
    except Exception:
        return False
