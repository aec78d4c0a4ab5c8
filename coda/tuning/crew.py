"""The tuner's child processes: several that build, and one that races. Nothing they do reaches the process that tunes.

    Answer   what came of a request: a value, what was raised, a deadline, or a process that died
    Crew     submit builds and go on; ask the racer and wait, while the builders work

One request at a time is with a child. At its deadline a child is killed with its process group; one that dies, or whose GPU
is lost, is replaced by a fresh one at the next request. Everything happens in the thread that tunes: it waits for all children
at once, so nothing here has a lock.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal, Self

from coda import env

PIPE_BYTES = 1 << 20
"""A request fits into the pipe to a child, so that writing it never waits for one that hangs."""
NICE = 10
"""Of builders: a race whose process waits for a processor measures the waiting."""
LOG_BYTES = 600
"""Of what a child printed last, in the reason of its death."""

Kind = Literal["value", "error", "timeout", "crash"]


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    kind: Kind
    seconds: float
    value: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    """Of an error: `code` of our own exceptions, else the class."""
    reason: str = ""
    lost: bool = False
    """Whether the child is of no more use; it has been replaced."""


@dataclass
class _Task:
    request: Mapping[str, Any]
    seconds: float
    done: Callable[[Answer], None]


class _Child:
    """One process."""

    def __init__(self, nice: int) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in `end`
        self.answers, theirs = os.pipe()
        self.buffer = bytearray()
        self.task: _Task | None = None
        self.started = self.deadline = 0.0
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "coda.tuning.child", str(theirs), str(nice)],
                stdin=subprocess.PIPE,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(theirs,),
                start_new_session=True,
                env=env.of_child(PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
                bufsize=0,
            )
        except BaseException:
            os.close(self.answers)
            self.log.close()
            raise
        finally:
            os.close(theirs)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, AttributeError):  # not on every system, and not beyond the user's limit
            fcntl.fcntl(self.process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def give(self, task: _Task) -> None:
        """Send a request; a child that has died meanwhile shows when its answers end."""
        assert self.process.stdin is not None
        self.task, self.started = task, time.monotonic()
        self.deadline = self.started + task.seconds
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(task.request).encode() + b"\n")

    @property
    def dead(self) -> bool:
        """Whether it died without being asked anything: nobody's fault."""
        return self.task is None and self.process.poll() is not None

    def end(self) -> None:
        """Kill it with everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a wedged driver lets nothing die
            self.process.wait(timeout=10)
        os.close(self.answers)
        self.log.close()

    def printed(self) -> str:
        """The end of its log."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - LOG_BYTES))
        return " ".join(self.log.read().decode("utf-8", "replace").split())


class Crew:
    """See the module's docstring. A context manager: leaving it ends every child."""

    def __init__(self, builders: int) -> None:
        self._most = max(1, builders)
        self._builders: list[_Child] = []
        self._racer: _Child | None = None
        self._queue: collections.deque[_Task] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self.starts = 0
        """How many processes were started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for child in (*self._builders, *([self._racer] if self._racer else [])):
            child.end()
        self._selector.close()

    # builders ---------------------------------------------------------------------------------------------------------
    def submit(self, request: Mapping[str, Any], seconds: float, done: Callable[[Answer], None]) -> None:
        """Have a builder do it within so many seconds of its start; `done` is called from `pump` or `ask`."""
        self._queue.append(_Task(request, seconds, done))

    def drop(self) -> None:
        """Forget what no builder has started."""
        self._queue.clear()

    def _assign(self) -> None:
        for child in [c for c in self._builders if c.dead]:
            self._builders.remove(child)
            self._close(child)
        idle = [child for child in self._builders if child.task is None]
        while self._queue and (idle or len(self._builders) < self._most):
            if not idle:
                idle.append(self._start(NICE))
                self._builders.append(idle[0])
            idle.pop().give(self._queue.popleft())

    # the racer --------------------------------------------------------------------------------------------------------
    def ask(self, request: Mapping[str, Any], seconds: float) -> Answer:
        """Have the racer do it, and wait. Its state is gone where the answer says that it was lost."""
        found: list[Answer] = []
        if self._racer is not None and self._racer.dead:
            self.dismiss()
        if self._racer is None:
            self._racer = self._start()
        self._racer.give(_Task(request, seconds, found.append))
        while not found:
            self.pump(1.0)
        return found[0]

    def dismiss(self) -> None:
        """End the racer; the next request starts another one."""
        if self._racer is not None:
            self._close(self._racer)
            self._racer = None

    # events -----------------------------------------------------------------------------------------------------------
    def pump(self, seconds: float) -> None:
        """Hand out builds, wait at most so long for anything to happen, and deal with it."""
        self._assign()
        working = [c for c in self._all() if c.task is not None]
        if not working:
            return
        wait = min(seconds, *(c.deadline - time.monotonic() for c in working))
        for key, _ in self._selector.select(max(0.0, wait)):
            self._read(key.data)
        now = time.monotonic()
        for child in working:
            if child.task is not None and now >= child.deadline:
                self._finish(child, Answer("timeout", now - child.started, reason=_late(child.task), lost=True))

    def _all(self) -> list[_Child]:
        return [*self._builders, *([self._racer] if self._racer is not None else [])]

    def _start(self, nice: int = 0) -> _Child:
        child = _Child(nice)
        self.starts += 1
        self._selector.register(child.answers, selectors.EVENT_READ, child)
        return child

    def _read(self, child: _Child) -> None:
        data = os.read(child.answers, 1 << 16)
        child.buffer += data
        if not data:
            self._finish(child, Answer("crash", time.monotonic() - child.started, reason=_death(child), lost=True))
        elif child.buffer.endswith(b"\n"):
            told = json.loads(bytes(child.buffer))
            child.buffer.clear()
            seconds = time.monotonic() - child.started
            if "value" in told:
                self._finish(child, Answer("value", seconds, told["value"]))
            else:
                lost = bool(told["sticky"])
                self._finish(child, Answer("error", seconds, code=told["code"], reason=told["reason"], lost=lost))

    def _finish(self, child: _Child, answer: Answer) -> None:
        task, child.task = child.task, None
        if answer.lost:
            if child is self._racer:
                self._racer = None
            else:
                self._builders.remove(child)
            self._close(child)
        if task is not None:
            task.done(answer)

    def _close(self, child: _Child) -> None:
        self._selector.unregister(child.answers)
        child.end()


def _late(task: _Task) -> str:
    return f"no answer within {task.seconds:g} s"


def _death(child: _Child) -> str:
    """How a process ended, and what it printed last."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(timeout=10)
    code = child.process.returncode
    how = f"exit code {code}"
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    said = child.printed()
    return f"the process ended with {how}" + (f": … {said}" if said else "")
