"""Measured schedules, kept in the user's cache folder: what was raced for a program on a problem, and what won.

    Key        everything that a measurement depends on; its digest names the file
    Candidate  one schedule with its samples, or with the reason why it has none
    Entry      a key's record: every candidate, the winner of each backend and of all
    find       the entry of a program on a problem on this machine, read once per process; None where there is none
    write      at once or not at all
    forget     look at the files again

The sizes in a key are exact. A schedule wins by how its tiles fill the multiprocessors in whole waves, and one row more may
start another wave: between two measured sizes nothing is known, and a call there gets the shipped heuristic, never a guess
that looks like a measurement. Dtypes, stride classes and alignments are the problem's own: with other ones it is another
kernel. The values of scalars and the addresses of tensors are not in it.

Any number of processes may share the folder. There is one file per key, written under another name and renamed, so a reader
needs no lock and finds the old file or the new one, whenever a writer was killed. A file that is damaged, of a newer format
or about another key is ignored, with one warning per process that says what becomes of it; a schedule found here is checked by its backend before it is
used (`coda.tune`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
import pathlib
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

from coda import env, files
from coda.backends import registry
from coda.errors import BackendUnavailable, CodaError, FormatError
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

log = logging.getLogger("coda")

FORMAT = "coda.tuned/1"
"""The format of a file, and with the backends' own `table` the version of what is raced: see `Key`."""
FOLDER = "tuned"
MAX_BYTES = 4 << 20
"""Of a file: an entry has some tens of kilobytes."""
DISTRIBUTIONS = ("torch", "triton", "quack-kernels", "nvidia-cutlass-dsl")
MAX_KEPT = 4096
"""Entries, and absences of one, that a process remembers."""
_STALE_S = 24 * 3600.0

Status = Literal["timed", "refused", "failed", "wrong", "timeout", "crash"]
"""`refused`: no kernel can have it; `failed`: it raised; `wrong`: its outputs differ from the reference's; `timeout` and
`crash`: it took its process with it."""
Origin = Literal["default", "candidate", "author"]


# keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What a measurement is about."""

    program: str
    """Digest."""
    problem: Problem
    gpu: str
    """Name of the one that the tensors are on: two products of one architecture differ in multiprocessors, clocks, memory."""
    versions: tuple[tuple[str, str], ...]
    """Of the compilers, of CUDA, and of each backend's generator and list of candidates."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = dataclasses.asdict(self.problem)
        plain["tensors"] = {name: dataclasses.asdict(spec) for name, spec in self.problem.tensors}
        return {
            "format": FORMAT,
            "program": self.program,
            "problem": plain,
            "gpu": self.gpu,
            "versions": dict(self.versions),
        }

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def key_of(program: EpilogueProgram, problem: Problem, device: int | None = None) -> Key | None:
    """The key on a GPU of this machine, the current one where none is named; None where it is not of the problem's
    architecture."""
    gpu = gpu_name(problem.arch, device)
    return None if gpu is None else Key(program.digest, problem, gpu, versions())


def gpu_name(arch: str | None, device: int | None = None) -> str | None:
    """Name of a GPU, the current one where none is named, if it is of this architecture; "CPU" without one."""
    if arch is None:
        return "CPU"
    import torch

    if not torch.cuda.is_available():
        return None
    name, its = _device(torch.cuda.current_device() if device is None else device)
    return name if its == arch else None


@functools.cache
def _device(index: int) -> tuple[str, str]:
    """Name and architecture."""
    import torch

    return str(torch.cuda.get_device_name(index)), "sm_{}{}".format(*torch.cuda.get_device_capability(index))


def versions() -> tuple[tuple[str, str], ...]:
    """Of this process's toolchain and backends."""
    return _versions(tuple(sorted(registry.MODULES.items())))


@functools.cache
def _versions(modules: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    import torch

    found = {"cuda": str(torch.version.cuda)}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for name, _ in modules:
        with contextlib.suppress(BackendUnavailable):
            found[f"backend {name}"] = registry.get(name).table
    return tuple(sorted(found.items()))


# entries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One schedule in a race. Times are seconds."""

    schedule: Schedule
    origin: Origin
    status: Status
    reason: str = ""
    samples: tuple[float, ...] = ()
    """Device time of each call, in the order of rounds; every finalist has the same number."""
    host: float | None = None
    """Median host time of a call."""
    finalist: bool = False
    """Whether it was raced again with those that were nearly as fast as the first."""
    build_s: float = 0.0
    """Compiling it, in a process of its own."""

    @property
    def median(self) -> float:
        """Infinite where it was not timed."""
        return statistics.median(self.samples) if self.samples else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**dataclasses.asdict(self), "schedule": self.schedule.to_dict()}


@dataclass(frozen=True)
class Entry:
    """What was measured for one key."""

    key: Key
    name: str
    """The program's, for people."""
    backends: tuple[str, ...]
    """All that were in the race: nothing is known of others."""
    candidates: tuple[Candidate, ...]
    best: Mapping[str, int]
    """Backend -> position of its best candidate."""
    winner: int
    """Position of the best of all."""
    default: int | None
    """Position of what an untuned call runs."""
    created: str
    """Date and time, ISO 8601."""
    seconds: float
    protocol: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def schedule(self, backend: str) -> Schedule | None:
        """A backend's best, if it was measured."""
        at = self.best.get(backend)
        return None if at is None else self.candidates[at].schedule

    @property
    def first(self) -> Candidate:
        """The winner."""
        return self.candidates[self.winner]

    @property
    def gain(self) -> float | None:
        """Time of an untuned call over the winner's; None where the untuned one was not timed."""
        if self.default is None or not self.candidates[self.default].samples:
            return None
        return self.candidates[self.default].median / self.first.median

    def to_json(self) -> str:
        """As text."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"key": self.key.to_dict(), "candidates": [c.to_dict() for c in self.candidates]}
        plain |= {"best": dict(self.best), "protocol": dict(self.protocol), "environment": dict(self.environment)}
        return json.dumps({"format": FORMAT, **plain}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, key: Key) -> Entry:
        """Read the entry of a key. Raises `FormatError` for anything that is not exactly that."""
        try:
            data = json.loads(text)
            found = data.pop("format", None) if isinstance(data, dict) else None
            if found != FORMAT:
                other = isinstance(found, str) and found.startswith(FORMAT.partition("/")[0] + "/")
                raise FormatError(
                    "not of a known format", got=f"{found!r:.40}", expected=FORMAT, hint=_OTHER if other else None
                )
            if data.pop("key") != key.to_dict():
                raise FormatError("it is about something else")
            candidates = tuple(_candidate(c) for c in data.pop("candidates"))
            data["backends"], data["best"] = tuple(data["backends"]), dict(data["best"])
            entry = cls(key=key, candidates=candidates, **data)
            entry.check()
        except FormatError:
            raise
        except (CodaError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError("malformed", got=f"{type(error).__name__}: {error}"[:300]) from error
        return entry

    def check(self) -> None:
        """Raise `FormatError` where the winners are not among the timed candidates of their backends."""
        wrong = FormatError("the winners are not among what was timed")
        for backend, at in {**self.best, "": self.winner}.items():
            if type(at) is not int or not 0 <= at < len(self.candidates):
                raise wrong
            found = self.candidates[at]
            if not found.samples or found.status != "timed" or (backend and found.schedule.backend != backend):
                raise wrong
        if self.default is not None and (type(self.default) is not int or not 0 <= self.default < len(self.candidates)):
            raise FormatError("there is no such default", got=self.default)


def _candidate(data: Mapping[str, Any]) -> Candidate:
    fields = dict(data)
    fields["schedule"] = Schedule.from_dict(fields["schedule"])
    fields["samples"] = tuple(float(x) for x in fields["samples"])
    found = Candidate(**fields)
    if not all(math.isfinite(x) and x > 0 for x in found.samples):
        raise ValueError("a sample is not a positive number")
    return found


# files ------------------------------------------------------------------------------------------------------------

_OTHER = "another version of coda wrote the file; tuning with this one would overwrite it: a CODA_CACHE_DIR for each keeps both"

_found: dict[Any, Entry | None] = {}
_warned: list[str] = []


def find(program: EpilogueProgram, problem: Problem, device: int | None = None) -> Entry | None:
    """The entry of a program on a problem on a GPU of this machine, the current one where none is named. A file is looked for
    once per process; a damaged one is ignored."""
    gpu = gpu_name(problem.arch, device)
    if gpu is None:
        return None
    memo = (program.digest, problem, gpu, env.cache_dir())
    if memo not in _found:
        if len(_found) >= MAX_KEPT:  # sizes that never come again, from a program that meets many
            _found.clear()
        _found[memo] = read(Key(program.digest, problem, gpu, versions()))
    return _found[memo]


def path_of(key: Key) -> pathlib.Path:
    """The file of a key."""
    return env.cache_dir() / FOLDER / f"{key.digest[:40]}.json"


def read(key: Key) -> Entry | None:
    """The entry from its file, or None: where there is none, and with a warning where it cannot be used."""
    path = path_of(key)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise FormatError("too large", got=f"more than {MAX_BYTES} bytes")
        return Entry.from_json(data.decode("utf-8"), key)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, FormatError) as error:
        _warn(path, error)
        return None


def _warn(path: pathlib.Path, error: Exception) -> None:
    """One warning per process; what follows it is for the debug log."""
    level = logging.DEBUG if _warned else logging.WARNING
    _warned.append(str(path))
    hint = getattr(error, "hint", None)
    reason = " ".join(str(error).removesuffix(f"\n  hint: {hint}").split())
    log.log(level, "measured schedules in %s are ignored: %s; %s", path, reason, _remedy(path, hint))


def _remedy(path: pathlib.Path, hint: str | None) -> str:
    """What becomes of a file that cannot be used."""
    if os.path.isdir(path):  # and no OSError, where the folder may not be looked into
        return "a folder has the file's name, and until it is removed tuning cannot keep its result"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return "tuning cannot replace it, because its folder is not writable: CODA_CACHE_DIR names another one"
    return hint or "tuning again replaces the file"


def write(entry: Entry) -> pathlib.Path:
    """Store an entry under its key, in place of an older one. Raises `OSError`."""
    entry.check()
    path = path_of(entry.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    files.write(path, entry.to_json())
    forget()
    return path


def _sweep(folder: pathlib.Path) -> None:
    """Remove what writers that were killed have left."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()


def forget() -> None:
    """Look at the files again from here on. What calls have chosen already is `coda.call`'s to forget."""
    _found.clear()


@contextlib.contextmanager
def turn_to_tune(key: Key, *, timeout_s: float) -> Iterator[bool]:
    """Hold the right to tune a key, across processes; yields whether it was had in time. Readers never wait for it."""
    import filelock

    path = path_of(key).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
