"""Whose fault is an exception? A candidate is charged with nothing that our own part, its task or the machine did.

    Blamed        an exception that already says whose fault it is, with a word of the judge
    trusted       a context for the judge's own part: what fails inside is the task's fault, or the machine's
    out_of_memory whether an exception says that memory is full, on a GPU or not: the machine's fault wherever it is raised
    blame         the word for an exception of unknown origin, None where nothing speaks against the candidate's own fault

`worker.py` asks `blame` about everything that leaves a gate; the gates put `trusted` around references, baselines, draws.
Imports nothing heavy: the worker must be able to ask before torch is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..records import Status

OUT_OF_MEMORY = "out of memory"
"""How the reason begins for which a peer or a ceiling is absent that had not enough."""
_FULL = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""In the texts of errors that have no class of their own."""


class Blamed(Exception):
    """Something failed that is not the candidate's: `status` is INVALID_SPEC or INFRA_ERROR."""

    def __init__(self, status: Status, what: str) -> None:
        super().__init__(what)
        self.status, self.what = status, what

    @property
    def code(self) -> str:
        """For a worker's answer."""
        return "task-at-fault" if self.status is Status.INVALID_SPEC else "machine-at-fault"


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was full. `torch.OutOfMemoryError` is known by its name, which needs no import."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _FULL)


def blame(error: BaseException) -> Status | None:
    """INVALID_SPEC or INFRA_ERROR where the exception says so; None where it may be the candidate's own."""
    if isinstance(error, Blamed):
        return error.status
    return Status.INFRA_ERROR if out_of_memory(error) else None


def described(error: BaseException) -> str:
    """One line."""
    return error.what if isinstance(error, Blamed) else f"{type(error).__name__}: {str(error)[:500]}"


@contextlib.contextmanager
def trusted(what: str) -> Iterator[None]:
    """Around a part that no candidate has a hand in, named by `what`. Raises `Blamed` for whatever is raised inside."""
    try:
        yield
    except Blamed:
        raise
    except Exception as error:
        status = blame(error) or Status.INVALID_SPEC
        raise Blamed(status, f"{what} fails: {described(error)}") from error
