"""The backends by name, and what each must answer.

    reference   PyTorch on any device: the meaning of a program, rounded at its stores
    triton      our own generator over one GEMM template; NVIDIA sm_80 and newer, interpreter on a CPU
    cutedsl     quack-kernels' mainloop with our epilogues; Hopper and data-center Blackwell

A backend is found by its module path and imported when it is first asked for, so that importing coda imports none.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from coda.errors import BackendUnavailable, UnknownBackend, near
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

MODULES = {
    "reference": "coda.backends.reference",
    "triton": "coda.backends.triton",
    "cutedsl": "coda.backends.cutedsl",
}
"""Name -> module with a `BACKEND` object."""


@dataclass(frozen=True)
class Support:
    """Whether a backend can run a program on a problem; if not, the reason in one sentence."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Artifact:
    """A compiled program: what `launch` needs, and what a person asks about it."""

    backend: str
    program: EpilogueProgram
    problem: Problem
    schedule: Schedule
    source: str
    """Generated code, readable; empty for the reference backend."""
    cubin: bytes | None = field(default=None, repr=False)
    """Machine code of the GEMM kernel where it was compiled ahead of time."""
    registers: int | None = None
    """Per thread, of the GEMM kernel."""
    spills: int | None = None
    """Bytes of local memory per thread, of the GEMM kernel."""
    shared_memory: int | None = None
    """Bytes per program, of the GEMM kernel."""
    payload: Any = field(default=None, repr=False, compare=False)
    """The backend's own."""


class Backend(Protocol):
    """What a backend answers. All of it works without a GPU, except `launch` of the GPU backends."""

    name: str
    table: str
    """Version of its code generator and its list of candidates: schedules measured under another one are not used."""

    def available(self) -> Support:
        """Whether its packages and a device are here, for this process."""

    def supports(self, program: EpilogueProgram, problem: Problem) -> Support:
        """Whether it can express the program on such tensors."""

    def default_schedule(self, program: EpilogueProgram, problem: Problem) -> Schedule:
        """The shipped heuristic's choice."""

    def candidates(self, program: EpilogueProgram, problem: Problem) -> list[Schedule]:
        """Schedules worth measuring, the shipped heuristic's first. Empty where there is nothing to choose."""

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        """Raise `BadSchedule` where no kernel for this problem can have the schedule. Quick: nothing is compiled."""

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        """Generate and build. With `arch` ("sm_90") the code is compiled ahead of time for that GPU and its resources are
        reported; with None it is made ready for `launch` in this process. Raises `Unsupported`, `BadSchedule` or
        `CompileError`."""

    def prepare(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """Build now, and into the toolchain's own cache on disk, what `launch` on such tensors would build; run nothing.
        The artifact is one that was made ready for `launch`, the tensors need not hold values."""

    def launch(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """Run on the tensors' device and its current stream. `tensors` holds `a`, `b`, every operand, and every output
        as `out.NAME`, checked and allocated before; outputs are written completely."""


@runtime_checkable
class Straight(Protocol):
    """What a backend may have besides: a shorter way for launches that are alike."""

    def straight(
        self, artifact: Artifact, tensors: Mapping[str, Any], names: Sequence[str]
    ) -> Callable[..., None] | None:
        """A function of the values with these names, in order, that does what `launch` does: only for tensors of the dtypes,
        shapes, strides, device and 16-byte alignment of these, which have just been launched, on their device as the current
        one, and for numbers of the same types. What is not named is the same every time. It keeps no tensor alive. None where
        there is no shorter way."""


@functools.cache
def get(name: str) -> Backend:
    """A backend by name. Raises `UnknownBackend` or, where a package is missing, `BackendUnavailable`."""
    if name not in MODULES:
        raise UnknownBackend(f"no backend {name!r}", expected=", ".join(MODULES), hint=near(name, MODULES))
    try:
        module = importlib.import_module(MODULES[name])
    except ImportError as error:
        raise BackendUnavailable(
            f"backend {name!r} cannot be imported",
            got=f"{type(error).__name__}: {error}",
            hint="pip install 'coda-agent'",
        ) from error
    backend: Backend = module.BACKEND
    return backend


def available() -> dict[str, Support]:
    """Every backend with whether it can run here, and why not."""
    found = {}
    for name in MODULES:
        try:
            found[name] = get(name).available()
        except BackendUnavailable as error:
            found[name] = Support(False, str(error))
    return found
