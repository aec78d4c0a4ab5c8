"""Which backend runs a program on a problem, and with which schedule.

    choose   the backend asked for, or the best one that supports the program here; its schedule

`auto` takes a fused backend on a GPU and the reference elsewhere; what it passes over is logged at debug level with the
reason. A backend that was named is never replaced. A call never tunes: without a measured choice it uses the backend's
shipped heuristic.
"""

from __future__ import annotations

import functools
import logging

from coda import env
from coda.backends import registry
from coda.backends.registry import Backend
from coda.errors import BackendUnavailable, BadSchedule, SettingError, Unsupported
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

log = logging.getLogger("coda")

AUTO_ORDER = ("triton", "reference")
"""Fused backends first."""


def choose(
    program: EpilogueProgram, problem: Problem, backend: str | None, config: Schedule | None
) -> tuple[Backend, Schedule]:
    """Backend and schedule of a call.

    Raises `UnknownBackend`, `BackendUnavailable` or `Unsupported` for a backend that was named, and `BadSchedule` for a
    `config` of another backend.
    """
    _log_to_stderr()
    name = backend or (config.backend if config else None) or _preferred()
    chosen = _auto(program, problem) if name == "auto" else _named(name, program, problem)
    if config is not None:
        if config.backend != chosen.name:
            raise BadSchedule(
                f"{program.name}: the config is for another backend", got=config.backend, expected=chosen.name
            )
        return chosen, config
    schedule = chosen.default_schedule(program, problem)
    if chosen.name != "reference":  # which has none
        log.debug("%s: the shipped heuristic's schedule: %s", program.name, schedule)
    return chosen, schedule


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


def _named(name: str, program: EpilogueProgram, problem: Problem) -> Backend:
    backend = registry.get(name)
    for support, error in (
        (backend.available(), BackendUnavailable),
        (backend.supports(program, problem), Unsupported),
    ):
        if not support.ok:
            raise error(f"{program.name}: backend {name!r}: {support.reason}", hint="backend='auto' takes one that can")
    log.debug("%s: %s, because it was named", program.name, name)
    return backend


def _auto(program: EpilogueProgram, problem: Problem) -> Backend:
    if problem.arch is None:
        log.debug("%s: reference, because its tensors are on a CPU", program.name)
        return registry.get("reference")
    for name in AUTO_ORDER:
        try:
            backend = registry.get(name)
        except BackendUnavailable as error:
            log.debug("%s: %s passed over: %s", program.name, name, error)
            continue
        for support in (backend.available(), backend.supports(program, problem)):
            if not support.ok:
                log.debug("%s: %s passed over: %s", program.name, name, support.reason)
                break
        else:
            log.debug("%s at %d×%d×%d: %s", program.name, problem.m, problem.n, problem.k, name)
            return backend
    raise AssertionError("the reference backend supports everything")
