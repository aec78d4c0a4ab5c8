"""Run a program under limits, hear what it says, and leave nothing of it behind: the parent's side.

The one file that starts processes for the judge. `tracer.py` runs a candidate through it once; `worker.py` runs our own
gates (compile, numerics, bench) through it and may talk to one process several times.

    with Child(argv, env=…, limits=Limits(wall_s=10)) as child:
        child.send(b"request")                        # to its stdin
        why = child.pump(until=lambda: b"\\n" in child.answer)
        ending = child.end()                          # kills whatever still runs, collects the evidence

- Between us and the program sits a watchdog (`supervise.py`): it kills the *whole* tree, also what changed its session,
  when we ask, when we raise, and when we are killed ourselves. Only descendants of that watchdog are ever signalled.
- The answer comes on a private pipe, so what is printed never counts. stdout and stderr are drained all the time and
  kept as head and tail; beyond `output_mb` in total the program is killed.
- The environment is built from nothing (`scrubbed_environment`) or from a list of names (`tool_environment`): no keys.
- Every wait has a deadline and is interruptible; leaving the `with` block by an exception kills everything first.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from . import wire

MARK = "JUDGED_PROCESS"
"""Name of the variable that every process of one child inherits: how survivors are found if the watchdog is lost."""

Why = Literal["done", "ended", "timeout", "output", "answer"]
"""Why `pump` returned: what was waited for came, the program ended, or a limit was hit."""

_WATCHDOG = pathlib.Path(__file__).with_name("supervise.py")
_CHUNK = 1 << 18
_END_S = 8.0

_TOOLS = (
    "PATH", "HOME", "USER", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "VIRTUAL_ENV", "CC",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
_TOOL_PREFIXES = ("LC_", "CODA_", "TRITON_", "TORCH", "PYTORCH_", "CUTE_DSL_", "XDG_CACHE")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")


class Frozen(BaseModel):
    """Records of this layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Frozen):
    """What one child may use. Every limit kills the whole tree."""

    wall_s: float = Field(default=10.0, gt=0)
    """Seconds from the start (or, in a session, per request)."""
    memory_mb: int | None = Field(default=None, gt=0)
    """Resident memory of the tree together, looked at ten times a second."""
    output_mb: float = Field(default=256.0, gt=0)
    """stdout and stderr together. Below it output is kept as head and tail and the program goes on."""
    answer_bytes: int = Field(default=1 << 20, gt=0)
    """Size of what comes back on the private pipe."""
    keep_bytes: int = Field(default=4096, ge=0)
    """How much of the head and of the tail of each stream is kept."""


class Captured(Frozen):
    """A stream: its first and last bytes as text (undecodable bytes escaped), and how much there was."""

    head: str = ""
    tail: str = ""
    total_bytes: int = 0

    @property
    def text(self) -> str:
        """Head and tail with a note on what is missing between them."""
        if not self.tail:
            return self.head
        return f"{self.head}\n[… {self.total_bytes} bytes in all …]\n{self.tail}"


class Ending(Frozen):
    """How a child ended, and what it used."""

    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, for example "SIGSEGV"; None when it exited or we ended it."""
    killed: Literal["", "timeout", "output", "answer", "memory", "closed", "watchdog-lost"] = ""
    """Why we ended it; empty when it ended by itself."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    max_rss_mb: float = 0.0
    leftovers: int = 0
    """Processes that still ran when the program had ended, all killed."""
    unkillable: int = 0
    """Processes that no signal ended in time: a wedged driver."""
    stdout: Captured = Captured()
    stderr: Captured = Captured()


class BadEnd(NamedTuple):
    """Why a child's answer does not count, whatever it said: a word of the judge, a stable code, a sentence."""

    status: Literal["TIMEOUT", "CRASH", "INFRA_ERROR"]
    code: str
    message: str


def bad_end(ending: Ending, limits: Limits, *, cpu_s: float | None = None) -> BadEnd | None:
    """None where the child ended by itself with exit code 0. `cpu_s` is a limit that the child has set itself."""
    killed: dict[str, BadEnd] = {
        "timeout": BadEnd("TIMEOUT", "wall-limit", f"no answer within the time limit of {limits.wall_s:g} s"),
        "output": BadEnd("CRASH", "output-limit", f"more than {limits.output_mb:g} MB were printed"),
        "memory": BadEnd("CRASH", "memory-limit", f"more than {limits.memory_mb} MB were used by the process and its children"),
        "answer": BadEnd("CRASH", "answer-limit", f"the answer is larger than {limits.answer_bytes} bytes"),
        "watchdog-lost": BadEnd("INFRA_ERROR", "watchdog-lost", "the watchdog process was killed"),
        "closed": BadEnd("INFRA_ERROR", "closed", "the judge ended the process before it had answered"),
    }  # fmt: skip
    if ending.killed:
        return killed[ending.killed]
    if cpu_s is not None and (
        ending.signal == "SIGXCPU" or (ending.signal == "SIGKILL" and ending.cpu_s >= 0.9 * cpu_s)
    ):
        return BadEnd("TIMEOUT", "cpu-limit", f"more than {cpu_s:g} s of CPU time were used")
    if ending.signal:
        return BadEnd("CRASH", ending.signal, f"the process was ended by {ending.signal}")
    if ending.exit_code == 127 and "cannot start" in ending.stderr.head:
        return BadEnd("INFRA_ERROR", "not-started", ending.stderr.head[:300])
    if ending.exit_code:
        return BadEnd("CRASH", "exit-code", f"the process ended with exit code {ending.exit_code}")
    return None


class HeadTail:
    """The first and the last `keep` bytes of a stream of any length."""

    def __init__(self, keep: int) -> None:
        self.keep, self.total = keep, 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total += len(data)
        room = self.keep - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :][-self.keep :] if self.keep else b""
        del self._tail[: max(0, len(self._tail) - self.keep)]

    def captured(self) -> Captured:
        """What was kept, as text."""
        head, tail = (part.decode("utf-8", "backslashreplace") for part in (self._head, self._tail))
        return Captured(head=head, tail=tail, total_bytes=self.total)


def scrubbed_environment() -> dict[str, str]:
    """For candidates: what the interpreter needs to start, and a fixed hash seed so that tracing is repeatable."""
    kept = {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ
    }
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        **kept,
    }


def tool_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """For our own workers: the caller's toolchain variables by name, never one that may hold a secret.

    The values are handed on, not interpreted: settings are read in `agent/settings.py` and `coda/env.py` alone.
    """
    source = os.environ if source is None else source
    return {
        name: value
        for name, value in source.items()
        if (name in _TOOLS or name.startswith(_TOOL_PREFIXES)) and not any(word in name.upper() for word in _SECRET)
    }


class Child:
    """A program under a watchdog. See the module's docstring for the shape of its use."""

    def __init__(
        self,
        argv: Callable[[int], Sequence[str]],
        *,
        env: Mapping[str, str],
        limits: Limits,
        mark: str | None = None,
    ) -> None:
        """Start `argv(answer_descriptor)` in a private folder that `end` removes. `env` is the whole environment."""
        self.limits = limits
        self.mark = mark or secrets.token_hex(8)
        self.answer = bytearray()
        self.started = time.monotonic()
        self._killed: str = ""
        self._swept = 0
        self._ending: Ending | None = None
        self._out, self._err = HeadTail(limits.keep_bytes), HeadTail(limits.keep_bytes)
        self._status, self._stdin = bytearray(), bytearray()
        self._close_stdin = False
        self._selector = selectors.DefaultSelector()
        self._open: dict[str, int] = {}
        self._folder = tempfile.mkdtemp(prefix="coda-judge-")
        try:
            self._start(argv, {"TMPDIR": self._folder, **env, MARK: self.mark})
        except BaseException:
            self._abandon()
            raise

    def _start(self, argv: Callable[[int], Sequence[str]], env: dict[str, str]) -> None:
        theirs: dict[str, int] = {}
        try:
            theirs["control"], self._open["control"] = os.pipe()
            self._open["answer"], theirs["result"] = os.pipe()
            self._open["status"], theirs["status"] = os.pipe()
            config = {**theirs, "argv": list(argv(theirs["result"])), "memory_mb": self.limits.memory_mb}
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-S", "-B", str(_WATCHDOG), json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(theirs.values()),
                start_new_session=True,
                env=env,
                cwd=self._folder,
                bufsize=0,
            )
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)
        streams = {"stdin": self._process.stdin, "out": self._process.stdout, "err": self._process.stderr}
        for name, stream in streams.items():
            assert stream is not None
            self._open[name] = os.dup(stream.fileno())
            stream.close()
        for name in ("out", "err", "answer", "status"):
            os.set_blocking(self._open[name], False)
            self._selector.register(self._open[name], selectors.EVENT_READ, name)
        os.set_blocking(self._open["stdin"], False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def is_alive(self) -> bool:
        """Whether the program still runs, after a look at what has come in meanwhile."""
        if self._ending is None:
            self._move(0)
        return self._ending is None and "status" in self._open and not self._status

    def send(self, data: bytes, *, close: bool = False) -> None:
        """Queue bytes for the program's stdin; they leave while `pump` runs. `close` ends its stdin after them."""
        if "stdin" not in self._open:
            return
        if not self._stdin:
            self._selector.register(self._open["stdin"], selectors.EVENT_WRITE, "stdin")
        self._stdin += data
        self._close_stdin |= close

    def pump(self, *, until: Callable[[], bool], seconds: float | None = None) -> Why:
        """Move bytes until `until()` holds, the program ends, or a limit is hit, which kills the program."""
        deadline = (self.started if seconds is None else time.monotonic()) + (seconds or self.limits.wall_s)
        while True:
            why = self._limit_hit(deadline)
            if why is not None:
                self.kill(why)
                return why
            if until():
                return "done"
            if "status" not in self._open:
                return "ended"
            self._move(max(0.0, deadline - time.monotonic()))

    def _limit_hit(self, deadline: float) -> Literal["answer", "output", "timeout"] | None:
        if len(self.answer) > self.limits.answer_bytes:
            return "answer"
        if self._out.total + self._err.total > self.limits.output_mb * 2**20:
            return "output"
        if time.monotonic() >= deadline and "status" in self._open:
            return "timeout"
        return None

    def kill(self, why: Literal["answer", "output", "timeout", "closed"]) -> None:
        """Have the watchdog kill everything; `end` collects."""
        if not self._killed and "status" in self._open:
            self._killed = why
        self._shut("control")

    def end(self) -> Ending:
        """Kill whatever still runs, wait for the watchdog's report, remove the folder. Safe to call twice."""
        if self._ending is not None:
            return self._ending
        try:
            self.kill("closed")
            until = time.monotonic() + _END_S
            while {"status", "out", "err", "answer"} & self._open.keys() and time.monotonic() < until:
                self._move(until - time.monotonic())
                if "status" not in self._open and not self._status:
                    self._swept += sweep(self.mark)  # the watchdog was killed: its tree holds the pipes open
            self._ending = self._report()
        finally:
            self._abandon()
        return self._ending

    def _report(self) -> Ending:
        try:
            told: dict[str, Any] = wire.parse(bytes(self._status), max_bytes=4096)
        except wire.BadDocument:  # the watchdog itself was killed
            told = {"killed": "watchdog-lost", "leftovers": self._swept + sweep(self.mark)}
        by_judge = told["killed"] == "judge"
        number = told.get("signal")
        return Ending.model_validate(
            {
                "exit_code": told.get("exit_code"),
                "signal": signal_name(number) if number and not told["killed"] else None,
                "killed": (self._killed or "closed") if by_judge else told["killed"],
                "seconds": round(time.monotonic() - self.started, 4),
                "cpu_s": round(told.get("cpu_s", 0.0), 4),
                "max_rss_mb": told.get("max_rss_mb", 0.0),
                "leftovers": told.get("leftovers", 0),
                "unkillable": told.get("unkillable", 0),
                "stdout": self._out.captured(),
                "stderr": self._err.captured(),
            }
        )

    def _move(self, seconds: float) -> None:
        """Wait for one round of events and move the bytes that are there."""
        for key, _ in self._selector.select(min(seconds, 1.0)):
            name = key.data
            if name == "stdin":
                self._write()
                continue
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if not data:
                self._shut(name)
            elif name == "answer":
                self.answer += data[: self.limits.answer_bytes + 1 - len(self.answer)]
            elif name == "status":
                self._status += data
            else:
                (self._out if name == "out" else self._err).add(data)

    def _write(self) -> None:
        try:
            del self._stdin[: os.write(self._open["stdin"], self._stdin)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin.clear()
            self._close_stdin = True
        if not self._stdin:
            self._selector.unregister(self._open["stdin"])
            if self._close_stdin:
                self._shut("stdin")

    def _shut(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            registered = self._selector.get_map()
            if registered and descriptor in registered:  # None once closed, which another thread's `kill` may meet
                self._selector.unregister(descriptor)
            os.close(descriptor)

    def _abandon(self) -> None:
        """Close every pipe (which makes the watchdog kill its tree), collect the watchdog, remove the folder."""
        for name in tuple(self._open):
            self._shut(name)
        self._selector.close()
        process = getattr(self, "_process", None)
        if process is not None:
            try:
                process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                sweep(self.mark)
        shutil.rmtree(self._folder, ignore_errors=True)


def signal_name(number: int) -> str:
    """ "SIGSEGV" for 11; numbers without a name stay numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def marked(mark: str) -> list[int]:
    """Processes that were started with this mark in their environment (Linux; elsewhere none are found)."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def sweep(mark: str) -> int:
    """Kill survivors by their mark, for when the watchdog that would know them is gone. How many there were."""
    killed: set[int] = set()
    for _ in range(50):
        alive = marked(mark)
        if not alive:
            break
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in alive:
                try:
                    os.kill(pid, number)
                    killed.add(pid)
                except (ProcessLookupError, PermissionError):
                    continue
        time.sleep(0.01)
    return len(killed)
