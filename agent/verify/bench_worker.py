"""The worker of `suite.py`: one kernel on one shape, in two steps of one process.

    work   {"step": "device" | "ready" | "race", …} -> what that step found

`ready` draws inputs, compiles, runs and checks every entrant and leaves it all in memory; `race` times what is ready. Between
the two the process waits, so that many kernels can be compiled at once and timed one after another, on a GPU that does nothing
else. A variant that takes too long, or leaves the device unusable, ends the process at once (`journal.py`): the suite starts
another one without it.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import filelock
import torch

from coda.bench.record import environment
from coda.bench.roofline import copy_bandwidth, device_copy
from coda.bench.timing import CudaClock, current_gpu

from ..records import Status
from ..task import Dims, Task
from .bench import blamed, contest_of, plain, refusal
from .entrants import Entrants, checker, enter, sets_of
from .journal import Journal
from .racing import Answer, race
from .subject import Subject, load_task

# steps ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Ready:
    task: Task
    subject: Subject
    dims: Dims
    sets: Sequence[Mapping[str, Any]]
    check: checker
    found: Entrants
    seed: int


_READY: list[_Ready] = []
"""Of the payload before, for the step that follows."""


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """One step. `device`: {} -> gpu, memory, environment. `ready`: {"program", "task", "seed", "schedule", "backends", "dims",
    "peers", "excluded", "any_backend", "journal", "turn", "seconds"} -> status, reason, absent. `race`: {"rounds", "protocol"}
    -> status, reason, record; INFRA_ERROR in a process where nothing is ready."""
    torch.backends.cuda.matmul.allow_tf32 = False
    steps = {"device": _device, "ready": _get_ready, "race": _race}
    with torch.no_grad():
        return steps[payload["step"]](payload)


def _device(payload: Mapping[str, Any]) -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"gpu": str(current_gpu()), "memory": properties.total_memory, "environment": environment()}


def _get_ready(payload: Mapping[str, Any]) -> dict[str, Any]:
    _READY.clear()
    task = load_task(payload["task"])
    subject = Subject.read(payload["program"], task)
    dims, seed = payload["dims"], payload["seed"]
    guard = Journal(pathlib.Path(payload["journal"]), payload["seconds"])

    def make() -> Answer:
        sets = sets_of(task, dims, seed=seed)
        check = checker(task, dims, sets, seed, alone=lambda: filelock.FileLock(payload["turn"]))
        found = enter(task, subject, sets, check, payload, guard, alike=check.peer)
        check.forget()
        refused = refusal(found)
        if refused is None:
            _READY.append(_Ready(task, subject, dims, sets, check, found, seed))
        return refused or (Status.PASS, "", None)

    status, reason, _ = blamed(make)
    torch.cuda.empty_cache()
    absent = dict(_READY[0].found.absent) if _READY else {}
    return {"status": str(status), "reason": reason, "absent": absent}


def _race(payload: Mapping[str, Any]) -> dict[str, Any]:
    if not _READY:
        reason = "the process in which everything was ready has ended: this one has nothing to race"
        return {"status": str(Status.INFRA_ERROR), "reason": reason, "record": None}
    ready = _READY.pop()

    def run() -> Answer:
        clock = CudaClock()
        copy, moved = device_copy()
        bandwidth = copy_bandwidth(clock, copy, moved)
        del copy
        contest = contest_of(ready.task, ready.subject, ready.dims, ready.found, bandwidth)
        return race(
            contest,
            ready.sets,
            ready.check,
            clock,
            rounds=payload["rounds"],
            seed=ready.seed,
            protocol=payload["protocol"],
        )

    status, reason, record = blamed(run)
    return {"status": str(status), "reason": reason, "record": None if record is None else plain(record)}
