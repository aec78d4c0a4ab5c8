"""Which backend runs a program on a problem, and with which schedule.

    choose      the backend asked for, or the best one that supports the program here; its schedule
    is_measured whether a schedule is what was measured fastest on its backend for exactly this
    order       the fused backends as an untuned call prefers them
    standings   how each backend stands to a program on a problem: whether it can run it, and why not
    usable      those that can

In this order: what a call names (`backend=`, `config=`, CODA_BACKEND), what was measured for exactly this program, problem and
machine (`coda.schedules`), the shipped heuristic. `auto` takes a fused backend on a GPU and the reference elsewhere; what was
chosen, why, and what was passed over is logged at debug level. A backend that was named is never replaced: of what was
measured, only its own best counts then. A call never tunes; `coda.tuning` does.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coda import env, schedules
from coda.backends import registry
from coda.backends.registry import Backend, Support
from coda.errors import BackendError, BackendUnavailable, BadSchedule, SettingError, UnknownBackend, Unsupported, near
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram
from coda.schedules import Entry

log = logging.getLogger("coda")

LARGE = ("cutedsl", "triton", "reference")
SMALL = ("triton", "cutedsl", "reference")
"""Fused backends first, for a product of more, or of fewer, than `FEW` numbers."""
FEW = 512 * 4096
"""About one wave of tiles on an H200. Measured there on the suite (2026-11-29, bf16): from 1024×4096 on cutedsl is as fast or
up to 10 % faster; at 512×4096 triton is 3 % faster for light epilogues and 13 % for `swiglu_backward`."""
NARROW = 256
"""Up to so many columns cutedsl goes first whatever the size: `router_scores` at 512×256×4096 took 1.8 times as long with triton's
tiles of 16×32."""


def choose(
    program: EpilogueProgram,
    problem: Problem,
    backend: str | None,
    config: Schedule | None,
    device: int | None = None,
) -> tuple[Backend, Schedule]:
    """Backend and schedule of a call whose tensors are on this GPU, the current one where none is named.

    A `config` names its backend, also beside `backend="auto"`. Raises `UnknownBackend`, `BackendUnavailable` or `Unsupported`
    for a backend that was named, and `BadSchedule` for a `config` of another backend.
    """
    _log_to_stderr()
    if config is not None:
        return _configured(program, problem, backend, config), config
    name = backend or _preferred()
    known = None if name == "reference" else _measured(program, problem, device)
    chosen = _auto(program, problem, known) if name == "auto" else _named(name, program, problem)
    if chosen.name == "reference":  # which has none
        return chosen, chosen.default_schedule(program, problem)
    return chosen, _schedule(chosen, program, problem, known)


def _configured(program: EpilogueProgram, problem: Problem, backend: str | None, config: Schedule) -> Backend:
    """The backend of a call's own schedule."""
    named = config.backend if backend in (None, "auto") else backend
    if named == "auto":
        known = ", ".join(registry.MODULES)
        raise BadSchedule(f"{program.name}: config= names no backend", got="'auto'", expected=known)
    chosen = _named(named, program, problem, hint="leave out config=, and backend='auto' takes one that can")
    if config.backend != named:
        raise BadSchedule(
            f"{program.name}: the config is for another backend",
            got=config.backend,
            expected=named,
            hint="leave out backend=: the config names its own",
        )
    log.debug("%s: the call's own schedule: %s", program.name, config)
    return chosen


def _measured(program: EpilogueProgram, problem: Problem, device: int | None) -> Entry | None:
    """On a CPU nothing is fast enough to be worth a look at a file."""
    return None if problem.arch is None else schedules.find(program, problem, device)


def is_measured(program: EpilogueProgram, problem: Problem, schedule: Schedule, device: int | None = None) -> bool:
    """Whether a schedule is the one that measuring found fastest on its backend, for exactly this program and problem on a GPU of
    this machine, the current one where none is named."""
    known = _measured(program, problem, device)
    return known is not None and known.schedule(schedule.backend) == schedule


def _schedule(backend: Backend, program: EpilogueProgram, problem: Problem, known: Entry | None) -> Schedule:
    """The backend's measured best where there is one that it can run, else its heuristic's choice."""
    found = known.schedule(backend.name) if known is not None else None
    if found is not None and known is not None:
        try:
            backend.check(program, problem, found)
        except BackendError as error:
            log.debug("%s: the measured schedule is passed over: %s", program.name, error)
        else:
            log.debug("%s: the best of %d measured on %s: %s", program.name, _timed(known), known.created, found)
            return found
    schedule = backend.default_schedule(program, problem)
    log.debug("%s: the shipped heuristic's schedule: %s", program.name, schedule)
    return schedule


def _timed(known: Entry) -> int:
    return sum(bool(c.samples) for c in known.candidates)


def _preferred() -> str:
    name = env.backend()
    if name != "auto" and name not in registry.MODULES:
        raise SettingError(
            "CODA_BACKEND is no backend", got=repr(name), expected=", ".join(("auto", *registry.MODULES))
        )
    return name


@functools.cache
def _log_to_stderr() -> None:
    """With CODA_DEBUG=1, once per process; an application that configures logging itself needs no variable."""
    if env.debug():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.DEBUG)


def _named(
    name: str, program: EpilogueProgram, problem: Problem, hint: str = "backend='auto' takes one that can"
) -> Backend:
    try:
        backend = registry.get(name)
    except UnknownBackend as unknown:
        known = ("auto", *registry.MODULES)
        raise UnknownBackend(unknown.what, expected=", ".join(known), hint=near(name, known)) from None
    for support, error in (
        (backend.available(), BackendUnavailable),
        (backend.supports(program, problem), Unsupported),
    ):
        if not support.ok:
            raise error(f"{program.name}: backend {name!r}: {support.reason}", hint=hint)
    log.debug("%s: %s, because it was named", program.name, name)
    return backend


def _auto(program: EpilogueProgram, problem: Problem, known: Entry | None) -> Backend:
    """The measured winner's backend where the race was between all that can run here, else the first of them."""
    if problem.arch is None:
        log.debug("%s: reference, because its tensors are on a CPU", program.name)
        return registry.get("reference")
    where = f"{program.name} at {problem.m}×{problem.n}×{problem.k}"
    if known is not None:
        fused = {b.name: b for b in usable(program, problem)}
        winner = known.first.schedule.backend
        if winner in fused and all(name in known.backends for name in fused):
            log.debug("%s: %s, the fastest of %s when measured", where, winner, ", ".join(known.backends))
            return fused[winner]
        missing = ", ".join(name for name in fused if name not in known.backends) or winner
        log.debug("%s: what was measured does not decide between backends: %s", where, missing)
    chosen = next(usable(program, problem), None) or registry.get("reference")
    log.debug("%s: %s, the first that can", where, chosen.name)
    return chosen


def order(problem: Problem) -> tuple[str, ...]:
    """The fused backends by name, the first choice of an untuned call first."""
    return tuple(
        name
        for name in (SMALL if problem.m * problem.n <= FEW and problem.n > NARROW else LARGE)
        if name != "reference"
    )


@dataclass(frozen=True)
class Standing:
    """A backend that can run a program on a problem, or the reason why it cannot."""

    name: str
    backend: Backend | None
    reason: str = ""
    """One line; empty where it can."""


def standings(
    program: EpilogueProgram, problem: Problem, names: Sequence[str] = (), *, here: bool = True
) -> Iterator[Standing]:
    """How each backend stands to a program on a problem: those named, or the fused ones, the first choice first. `here`: for
    running in this process; else for compiling alone, which needs no device. Raises nothing for a name that no backend has."""
    for name in names or order(problem):
        try:
            backend = registry.get(name)
        except (BackendUnavailable, UnknownBackend) as error:
            yield Standing(name, None, _line(error))
            continue
        support = backend.available() if here else Support(True)
        if support.ok:
            support = backend.supports(program, problem)
        yield Standing(name, backend if support.ok else None, _line(support.reason))


def _line(text: object) -> str:
    return " ".join(str(text).split())


def usable(program: EpilogueProgram, problem: Problem) -> Iterator[Backend]:
    """The fused backends that can run a program on a problem in this process, the first choice first."""
    for standing in standings(program, problem):
        if standing.backend is None:
            log.debug("%s: %s passed over: %s", program.name, standing.name, standing.reason)
        else:
            yield standing.backend
