"""What a child of the tuner does, one function per step: a request in, plain JSON out.

    build   compile one schedule: ahead of time for an architecture, or for this machine's GPU without running it
    setup   draw a problem's inputs, compute what its outputs must be; forget the problem before
    trial   compile, launch once into poisoned outputs, compare: the reason why it is wrong, or none
    race    time several that were tried, interleaved

The steps of one problem belong together and share its tensors. Every schedule is held against the fp64 reference with the
tolerance of `coda.numerics`, without spreads: they take many more evaluations, here of full size, and without them the rule is
never wider. The trusted kernel is the reference backend in the problem's own dtypes, on the accumulators of
the vendor's GEMM: a tensor core drops the low bits of every addition, in one direction, which no fp32 product shows and a
log-sum-exp of large logits passes on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.backends import registry
from coda.backends.registry import Artifact, Backend
from coda.bench.timing import Clock, CudaClock, Sample, measure
from coda.evaluate import evaluate
from coda.numerics import response, within
from coda.problem import Problem, Schedule, TensorSpec
from coda.program import EpilogueProgram
from coda.testing import on_tensor_cores
from coda.tuning import tensors as synthetic

Request = Mapping[str, Any]


def request_of(program: EpilogueProgram, problem: Problem) -> dict[str, Any]:
    """The part of a request that says what it is about."""
    specs = [[name, spec.dtype, spec.layout, spec.aligned] for name, spec in problem.tensors]
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "arch": problem.arch}
    return {"program": program.to_json(), "problem": sizes, "tensors": specs}


@functools.lru_cache(maxsize=64)
def _program(text: str) -> EpilogueProgram:
    return EpilogueProgram.from_json(text)


def _subject(request: Request) -> tuple[EpilogueProgram, Problem]:
    specs = tuple((name, TensorSpec(dtype, layout, aligned)) for name, dtype, layout, aligned in request["tensors"])
    return _program(request["program"]), Problem(tensors=specs, **request["problem"])


def _backend(request: Request) -> tuple[Backend, Schedule]:
    registry.MODULES.update(request["modules"])  # what is registered where the tuner runs is registered here
    schedule = Schedule.from_dict(request["schedule"])
    return registry.get(schedule.backend), schedule


def _device(request: Request, problem: Problem) -> torch.device:
    if problem.arch is None:
        return torch.device("cpu")
    torch.cuda.set_device(request["device"])
    return torch.device("cuda", request["device"])


def gpu_is_lost() -> bool:
    """Whether an error has made the GPU unusable for this process: after some, every later call fails too."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


# building -----------------------------------------------------------------------------------------------------------


def build(request: Request) -> dict[str, Any]:
    """With `arch`: machine code and what it takes. Without: whatever a launch here would have to build."""
    program, problem = _subject(request)
    backend, schedule = _backend(request)
    started = time.monotonic()
    if request.get("arch") is not None:
        made = backend.compile(program, problem, schedule, request["arch"])
        used = {"registers": made.registers, "spills": made.spills, "shared_memory": made.shared_memory}
        return {"seconds": time.monotonic() - started, **used}
    device = _device(request, problem)
    made = backend.compile(program, problem, schedule, None)
    try:
        backend.prepare(made, synthetic.empty(program, problem, device))
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"seconds": time.monotonic() - started}


# one problem --------------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A problem under way."""

    program: EpilogueProgram
    problem: Problem
    device: torch.device
    inputs: dict[str, Any]
    outputs: dict[str, torch.Tensor]
    right: dict[str, torch.Tensor]
    """In fp64."""
    trusted: dict[str, torch.Tensor]
    noise: dict[str, torch.Tensor]
    ready: dict[str, tuple[Backend, Artifact]] = field(default_factory=dict)
    """What was tried and found right, by name."""


_now: list[Subject] = []


def setup(request: Request) -> dict[str, Any]:
    """Inputs and what the outputs must be."""
    _now.clear()
    program, problem = _subject(request)
    device = _device(request, problem)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    inputs = synthetic.draw(program, problem, device, request["seed"])

    def exact(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return evaluate(program, values, m=problem.m, n=problem.n, dtype=torch.float64, stored_as=None)

    wide = synthetic.doubled(inputs)
    right = exact(wide)
    noise = response(exact, wide, right, seed=request["seed"])
    compute = getattr(torch, problem.compute)
    m, n = problem.m, problem.n
    product = on_tensor_cores if device.type == "cuda" and compute is torch.float32 else None
    trusted = evaluate(program, inputs, m=m, n=n, dtype=compute, stored_as=problem.dtype, product=product)
    outputs = synthetic.results(program, problem, device)
    _now.append(Subject(program, problem, device, inputs, outputs, right, trusted, noise))
    return {"bytes": synthetic.size(program, problem)}


def trial(request: Request) -> dict[str, Any]:
    """{"name", "schedule", …} -> what is wrong with its outputs, or None; and the seconds of compiling and launching."""
    s = _now[0]
    backend, schedule = _backend(request)
    started = time.monotonic()
    made = backend.compile(s.program, s.problem, schedule, None)
    synthetic.poison(s.outputs.values())
    backend.launch(made, {**s.inputs, **s.outputs})
    _wait(s.device)
    seconds = time.monotonic() - started
    wrong = _wrong(s)
    if wrong is None:
        s.ready[request["name"]] = (backend, made)
    return {"wrong": wrong, "seconds": seconds}


def _wrong(s: Subject) -> str | None:
    length = max(s.problem.m, s.problem.n, s.problem.k, 1)
    for name, reference in s.right.items():
        found = within(
            s.outputs[f"out.{name}"],
            s.trusted[name],
            reference,
            working=s.problem.dtype,
            noise=s.noise[name],
            length=length,
        )
        if not found.ok:
            return f"output {name!r}: {found.why}, {found.bad_blocks} of {found.blocks} blocks, {found.detail or found.excess}"
    return None


def race(request: Request) -> dict[str, Any]:
    """{"names", "rounds", "seed"} -> device and host seconds of every call by name, and the noise floor."""
    s = _now[0]
    tensors = {**s.inputs, **s.outputs}

    def call_of(backend: Backend, made: Artifact) -> Callable[[int], None]:
        return lambda at: backend.launch(made, tensors)

    calls = {name: call_of(*s.ready[name]) for name in request["names"]}
    timings = measure(calls, _clock(s.device.type), rounds=request["rounds"], seed=request["seed"])
    samples = {name: [[x.device_s, x.host_s] for x in values] for name, values in timings.samples.items()}
    return {"samples": samples, "floor": timings.floor}


class HostClock:
    """For a CPU: the time of the call itself."""

    def time(self, call: Callable[[], Any]) -> Sample:
        """One call."""
        started = time.perf_counter()
        call()
        seconds = max(time.perf_counter() - started, 1e-9)
        return Sample(seconds, seconds)


@functools.cache
def _clock(device: str) -> Clock:
    return CudaClock() if device == "cuda" else HostClock()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


STEPS: dict[str, Callable[[Request], dict[str, Any]]] = {
    "build": build,
    "setup": setup,
    "trial": trial,
    "race": race,
}
