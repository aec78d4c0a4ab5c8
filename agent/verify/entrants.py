"""What races on one shape, built, warmed up and checked: the kernel on every backend, the peers, the ceilings.

    Entrants  everything that is ready, and why the rest is absent
    enter     make all of it for a task's inputs
    Guard     told before and after each variant's first calls: who was at work when a process died
    checker   compares outputs with the task's reference, one input set at a time
    sets_of   input sets drawn on the device

A kernel that is wrong here never races; a peer that is wrong, fails or is not installed is absent with the reason, and the
others go on. A peer's inputs are prepared once per set, outside the timed region, as its candidate says. Neighbours:
`racing.py` times what is here, `bench.py` does both in a gate, `bench_worker.py` in two steps.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.backends import registry
from coda.bench import empty, peers
from coda.bench.candidates import Candidate, Setting
from coda.bench.record import origin_of
from coda.errors import BackendUnavailable, CodaError
from coda.kernel import from_json
from coda.numerics import Comparison, roughly, within
from coda.problem import Schedule
from coda.tune import choose, is_measured

from ..task import Dims, Task, lengths
from . import floors
from . import inputs as draws
from .blame import OUT_OF_MEMORY, blame, out_of_memory, trusted
from .numerics import Case, expected
from .racing import DTYPE, Check, Tensors, Variant
from .runner import arch_here, own, problems, schedule_of
from .subject import Subject

SETS = 3
"""Input sets that calls rotate through."""

AUTO = "auto"
"""The backend that a call without `backend` has, and the variant that is one."""

Inputs = Mapping[str, Any]
Guard = Callable[[str], contextlib.AbstractContextManager[None]]
"""Around the first calls of the variant of this name."""


def unguarded(name: str) -> contextlib.AbstractContextManager[None]:
    """Nobody wants to know."""
    return contextlib.nullcontext()


@dataclass
class Entrants:
    """What can race."""

    kernels: dict[str, Variant] = field(default_factory=dict)
    others: dict[str, Variant] = field(default_factory=dict)
    ceiling: Variant | None = None
    beside: dict[str, Variant] = field(default_factory=dict)
    prepared: dict[str, Sequence[Inputs]] = field(default_factory=dict)
    peer_of: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Of the kernel's variants: where their schedules come from, in the words of a record."""
    notes: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Of those that are absent, the kernel's own, each with the reason."""
    unavailable: set[str] = field(default_factory=set)
    """Of these, the ones whose backend this machine does not have."""
    default: str = ""
    """The one of `kernels` that a call without `backend` and `config` takes, where it is ready."""
    wrong: str = ""
    """A kernel whose outputs are not right, and what is wrong with them."""


def enter(
    task: Task,
    subject: Subject,
    sets: Sequence[Inputs],
    check: Check,
    payload: Mapping[str, Any],
    guard: Guard = unguarded,
    *,
    alike: Check | None = None,
) -> Entrants:
    """Everything for these inputs; nothing but the reasons where no kernel is right. `alike` is what peers must pass instead of
    `check`. `payload`: program, schedule, backends, peers, `excluded`, names with the reason why they must not be tried again,
    and `any_backend`, whether one wrong backend leaves the others in the race."""
    found = Entrants()
    found.absent |= payload.get("excluded") or {}
    _kernels(found, subject, payload, sets[0], guard)
    for name, variant in list(found.kernels.items()):
        wrong = check(0, variant(sets[0]))
        if not wrong:
            continue
        found.absent[name] = found.refused[name] = f"wrong: {wrong}"
        del found.kernels[name]
        if not (payload.get("any_backend") and found.kernels):
            found.wrong = f"{name}: {wrong}"
            return found
    if not found.kernels:
        return found
    roles = {i.role: i.name for i in task.inputs}
    a_b = (roles["a"], roles["b"]) if {"a", "b"} <= roles.keys() else None
    if a_b is not None:
        _empty_epilogues(found, sets[0], a_b, guard)
    setting = Setting(task.id, task.baseline, sets[0], floors.gemms(task, sets[0]), a_b)
    _peers(found, task, setting, sets, alike or check, payload.get("peers") or (), guard)
    return found


# kernels --------------------------------------------------------------------------------------------------------------


def _kernels(found: Entrants, subject: Subject, payload: Mapping[str, Any], inputs: Inputs, guard: Guard) -> None:
    """The candidate on every fused backend that runs it here, called as a user calls it; the others with their reason."""
    schedule = schedule_of(payload)
    kernel = from_json(payload["program"])
    for name in payload["backends"] or [n for n in registry.MODULES if n != "reference"]:
        theirs = next((s for part in subject.parts if (s := own(schedule, name, part))), None)
        for label, config in {name: None, **({f"{name}, author's schedule": theirs} if theirs else {})}.items():
            if label in found.absent:
                found.refused[label] = found.absent[label]
                continue
            try:
                ready = registry.get(name).available()
                if not ready.ok:
                    raise BackendUnavailable(ready.reason)
                variant = caller(kernel, subject, name, config)
                with guard(label):
                    variant(inputs)
                    synchronize()
                found.configs[label] = _schedules(subject, inputs, name, config)
                found.origins[label] = _origin(subject, inputs, config, found.configs[label])
            except CodaError as error:
                found.absent[label] = found.refused[label] = str(error)[:500]
                if isinstance(error, BackendUnavailable):
                    found.unavailable.add(label)
                continue
            except Exception as error:
                if blame(error) is not None:  # the task's or the machine's fault is no word about a backend
                    raise
                found.absent[label] = found.refused[label] = _failed(error)
                continue
            found.kernels[label] = variant
    if found.kernels:
        _default(found, subject, kernel, inputs, guard, alone=bool(payload["backends"]))


def _default(found: Entrants, subject: Subject, kernel: Any, inputs: Inputs, guard: Guard, *, alone: bool) -> None:
    """Which variant a call that names no backend takes. Where it runs a plan's programs on several backends it is a variant of
    its own, which races like the others, unless backends were named: those stay `alone`."""
    try:
        config = _schedules(subject, inputs, AUTO, None)
    except CodaError as error:  # what a user's call would meet; the backends by name have been tried already
        found.absent[AUTO] = str(error)[:500]
        return
    found.default = next((name for name in found.kernels if found.configs[name] == config), "")
    mixed = len({schedule["backend"] for schedule in config.values()}) > 1
    if found.default or alone or not mixed:
        return
    if AUTO in found.absent:
        found.refused[AUTO] = found.absent[AUTO]
        return
    variant = caller(kernel, subject, AUTO, None)
    try:
        with guard(AUTO):
            variant(inputs)
            synchronize()
    except Exception as error:
        if blame(error) is not None:
            raise
        found.absent[AUTO] = found.refused[AUTO] = _failed(error)
        return
    found.kernels[AUTO], found.configs[AUTO], found.default = variant, config, AUTO
    found.origins[AUTO] = _origin(subject, inputs, None, config)


def caller(kernel: Any, subject: Subject, backend: str, config: Schedule | None) -> Variant:
    """A kernel as a user calls it."""

    def call(inputs: Inputs) -> Tensors:
        return kernel(**subject.bind(inputs), backend=backend, config=config)._asdict()  # type: ignore[no-any-return]

    return call


def _schedules(subject: Subject, inputs: Inputs, backend: str, config: Schedule | None) -> dict[str, Any]:
    """What each of its programs ran with."""
    arch = arch_here()
    found: dict[str, Any] = {}
    for part, problem in problems(subject, inputs, arch):
        found[part.name] = choose(part, problem, backend, own(config, backend, part))[1].to_dict()
    return found


def _origin(subject: Subject, inputs: Inputs, config: Schedule | None, schedules: Mapping[str, Any]) -> str:
    """Where the schedules of a variant come from, as `coda.bench.record.Measured.origin` has it."""
    if config is not None:
        return "author"
    arch = arch_here()
    found = [
        part.name in schedules and is_measured(part, problem, Schedule.from_dict(schedules[part.name]))
        for part, problem in problems(subject, inputs, arch)
    ]
    return origin_of(found)


def _empty_epilogues(found: Entrants, inputs: Inputs, a_b: tuple[str, str], guard: Guard) -> None:
    """The mainloop of every kernel with nothing behind it, in the schedule that the kernel has."""
    a, b = a_b
    for name in found.kernels:
        schedules = list(found.configs[name].values())
        if len(schedules) != 1:
            continue
        config, label = Schedule.from_dict(schedules[0]), empty.label(name)

        def call(inputs: Inputs, config: Schedule = config) -> Any:
            return empty.product(inputs[a], inputs[b], backend=config.backend, config=config)

        if label in found.absent:
            continue
        try:
            with guard(label):
                call(inputs)
                synchronize()
        except Exception as error:  # a schedule may not fit a smaller program; a ceiling must not cost the race
            found.absent[label] = _failed(error)
            continue
        found.beside[label], found.configs[label] = call, schedules[0]


# peers ----------------------------------------------------------------------------------------------------------------


def _peers(
    found: Entrants,
    task: Task,
    setting: Setting,
    sets: Sequence[Inputs],
    check: Check,
    wanted: Sequence[str],
    guard: Guard = unguarded,
) -> None:
    """Every ready peer (of those wanted, if any are named; the ceiling always), warmed up and, if it competes, checked; the
    others are absent with the reason."""
    for entry in peers.lineup(task.id, task.peers, gemms=task.gemms):
        name = entry.peer.name
        if name in found.absent:
            continue
        if entry.state != "ready":
            found.absent[name] = f"{entry.state}: {entry.reason}"
        elif wanted and entry.peer.competes and not _asked_for(name, wanted):
            found.absent[name] = "not asked for"
        else:
            try:
                with guard(name):
                    candidates = peers.build(name, setting)
            except Exception as error:
                found.absent[name] = _failed(error)
                continue
            _candidates(found, name, candidates, sets, check if entry.peer.competes else None, guard)


def _asked_for(name: str, wanted: Sequence[str]) -> bool:
    """torch.compile is asked for in both layouts at once: the better one is what it can do."""
    return name in wanted or (name == "compile-halves" and "compile" in wanted)


def _candidates(
    found: Entrants,
    peer: str,
    candidates: Mapping[str, Candidate],
    sets: Sequence[Inputs],
    check: Check | None,
    guard: Guard,
) -> None:
    layouts: dict[Any, Sequence[Inputs]] = {}
    ready, reasons = 0, []
    for label, candidate in candidates.items():
        if label in found.absent:
            reasons.append(found.absent[label])
            continue
        try:
            with guard(label):
                if candidate.prepare not in layouts:
                    layouts[candidate.prepare] = [candidate.prepare(s) for s in sets]
                own_sets = layouts[candidate.prepare]
                out = candidate.run(own_sets[0])
                out = candidate.run(own_sets[0])
                synchronize()
                wrong = check(0, candidate.finish(out)) if check else None
        except Exception as error:
            found.absent[label] = _failed(error)
            reasons.append(found.absent[label])
            continue
        if wrong:
            found.absent[label] = f"wrong: {wrong}"
            reasons.append(found.absent[label])
            continue
        ready += 1
        found.prepared[label] = own_sets
        found.configs[label] = dict(candidate.config)
        if candidate.note:
            found.notes[label] = candidate.note
        if check is None:
            found.ceiling = candidate.run
        else:
            found.others[label], found.peer_of[label] = candidate.run, peer
    if not ready and peer not in found.absent:
        found.absent[peer] = f"none of its {len(candidates)} configurations ran; the first: {reasons[0]}"


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _failed(error: Exception) -> str:
    """Memory that was full says something about the moment, so it has a word of its own."""
    said = " ".join(_COLOURS.sub("", str(error)).split())
    return f"{OUT_OF_MEMORY if out_of_memory(error) else 'failed'}: {type(error).__name__}: {said[:300]}"


def synchronize() -> None:
    """Errors of a launch show when the device is waited for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# inputs and what is right ---------------------------------------------------------------------------------------------


def sets_of(task: Task, dims: Dims, *, seed: int, device: str = "cuda") -> list[dict[str, Any]]:
    """Input sets, drawn on the device itself: large ones would take a CPU longer than the benchmark. Not the numbers that the
    same seed gives on a CPU."""

    def one(seed: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for i in task.inputs:
            if i.default is not None:
                found[i.name] = i.default
                continue
            generator = torch.Generator(device).manual_seed(draws.subseed(seed, i.name) % 2**63)
            with torch.device(device):
                value = draws.DRAWS[i.draw](lengths(i.shape, dims), dims, generator)
            found[i.name] = value.to(getattr(torch, draws.input_dtype(i, DTYPE)))
        return found

    with trusted(f"drawing the inputs of {task.id}"):
        return [one(draws.subseed(seed, at)) for at in range(SETS)]


class checker:  # noqa: N801 - a function with a memory
    """Compares on the device, with the reference of one set at a time: audits come sorted by set."""

    def __init__(
        self,
        task: Task,
        dims: Dims,
        sets: Sequence[Inputs],
        seed: int,
        *,
        alone: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """`alone` is around the evaluation of a reference, which needs many times the memory of what it is compared with."""
        self.task, self.dims, self.sets, self.seed, self.alone = task, dims, sets, seed, alone
        self._known: dict[int, tuple[dict[str, torch.Tensor], ...]] = {}

    def __call__(self, at: int, out: Tensors) -> str | None:
        """As right as a kernel must be, by the rule without spreads: on `normal` inputs they decide nothing, and to measure them
        takes many more evaluations of this size. Without them the rule is never wider."""
        right, today, noise = self._expected(at)
        length = max(self.dims.values())
        return self._wrong(
            out,
            right,
            lambda n: within(out[n], today[n], right[n], working=DTYPE, noise=noise[n], length=length),
        )

    def peer(self, at: int, out: Tensors) -> str | None:
        """The same mathematics, rounded where the peer's package rounds."""
        right, today, _ = self._expected(at)
        return self._wrong(out, right, lambda n: roughly(out[n], today[n], right[n], working=DTYPE))

    def _expected(self, at: int) -> tuple[dict[str, torch.Tensor], ...]:
        if at not in self._known:
            self.forget()
            case = Case("benchmark", self.dims, DTYPE, "normal", draws.subseed(self.seed, at))
            with self.alone():
                self._known[at] = expected(self.task, case, self.sets[at])
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()  # other processes need the memory
        return self._known[at]

    def _wrong(self, out: Tensors, right: Tensors, compare: Callable[[str], Comparison]) -> str | None:
        for name in (o.name for o in self.task.outputs):
            if tuple(out[name].shape) != tuple(right[name].shape):
                return f"output {name!r} (shape {tuple(out[name].shape)} instead of {tuple(right[name].shape)})"
            found = compare(name)
            if not found.ok:
                return f"output {name!r} ({found.why}, {found.bad_blocks} of {found.blocks} blocks)"
        return None

    def forget(self) -> None:
        """Free the references."""
        self._known.clear()
