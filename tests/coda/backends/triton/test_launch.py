"""What a launch is asked before Triton sees it, and launches that are alike, in one function."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from launch_support import Driver, Function  # noqa: E402

import examples_curated  # noqa: E402
from coda.backends.finishing import dispatch  # noqa: E402
from coda.backends.triton import BACKEND, launch  # noqa: E402
from coda.binding import Bound, bind  # noqa: E402
from coda.kernel import PlanKernel  # noqa: E402
from coda.program import EpilogueProgram  # noqa: E402

pytestmark = pytest.mark.interp


def test_aliasing() -> None:
    x, y, z = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    shares = launch.aliasing(["out.p", "out.q"], ["x", "y"])
    assert not shares({"x": x, "y": y, "out.p": z, "out.q": z})
    assert shares({"x": x, "y": y, "out.p": z, "out.q": y})
    assert not launch.aliasing(["out.p"], [])({"out.p": z})


# launches in one function -------------------------------------------------------------------------------------------

PROGRAMS = {
    name: kernel.program
    for name in examples_curated.catalog()
    if not isinstance(kernel := examples_curated.load(name), PlanKernel)
}
SIZE = 128


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but Triton's compiler, its driver and the device."""
    import triton.runtime

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(), raising=False)
    monkeypatch.setattr(dispatch.private, "launcher", dispatch.private.public)
    monkeypatch.setattr(launch, "multiprocessors", lambda device: 5)
    monkeypatch.setattr(launch.Runner, "run", lambda self, tensors: self._launch(tensors, tensors[self._first].device))


def given(program: EpilogueProgram) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if program.kind == "epilogue":
        found = {name: torch.zeros(SIZE, SIZE, dtype=torch.bfloat16) for name in ("a", "b")}
    for o in program.operands:
        shape = o.shape(SIZE, SIZE)
        dtype = torch.int64 if o.dtype == "int" else torch.bfloat16 if o.kind == "tile" else torch.float32
        found[o.name] = 0.5 if o.kind == "scalar" else torch.zeros(shape, dtype=dtype)
    return found


def runner_of(program: EpilogueProgram, bound: Bound, **changes: Any) -> tuple[Any, list[Function]]:
    problem = dataclasses.replace(bound.problem, arch="sm_90")
    schedule = dataclasses.replace(BACKEND.default_schedule(program, problem), **changes)
    runner = BACKEND.compile(program, problem, schedule, None).payload
    functions = [Function(), Function(), Function()]
    kernels = (runner._product, runner._kernel, runner._finisher)
    for kernel, function in zip(kernels, functions, strict=True):
        if kernel is not None:
            kernel._function, kernel._known, kernel._compiled = function, {}, {}
    return runner, functions


def seen(args: tuple[Any, ...], known: set[int]) -> list[Any]:
    """A descriptor by what it says; addresses of a workspace, which is new every time, are left out."""
    found = [(a.base.data_ptr(), a.shape, a.strides, a.block_shape) if hasattr(a, "base") else a for a in args]
    return [x for x in found if not (isinstance(x, int) and x > 2**31 and x not in known)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_straight_launch_gives_every_kernel_the_same(no_gpu: None, name: str) -> None:
    program = PROGRAMS[name]
    bound = bind(program, (), given(program), None)
    runner, functions = runner_of(program, bound)
    tensors = bound.tensors
    names = list(tensors)
    assert BACKEND.straight(types.SimpleNamespace(payload=runner), tensors, names) is None  # never launched
    for _ in range(2):
        runner.run(tensors)
    BACKEND.straight(types.SimpleNamespace(payload=runner), tensors, names)(*tensors.values())
    known = {x.data_ptr() for x in tensors.values() if isinstance(x, torch.Tensor)}
    launched = [f for f in functions if f.slow]
    assert launched
    for function in launched:
        assert len(function.slow) == 1
        general, straight = (seen(args, known) for args in function.fast)
        assert general == straight
        assert len(function.fast[0]) == len(function.fast[1])


def test_slices_of_k_are_launched_first_and_share_the_workspace(no_gpu: None) -> None:
    program = PROGRAMS["residual_rms"]
    arguments = {**given(program), "a": torch.zeros(SIZE, 4096, dtype=torch.bfloat16)}
    arguments["b"] = torch.zeros(4096, SIZE, dtype=torch.bfloat16)
    bound = bind(program, (), arguments, None)
    runner, functions = runner_of(program, bound, tile_m=64, tile_n=64, tile_k=64, split=1, split_k=4)
    order: list[Any] = []
    for function in functions:
        function.run = lambda *args, function=function: order.append((function, args))
    runner.run(bound.tensors)
    runner.straight(bound.tensors, list(bound.tensors))(*bound.tensors.values())
    assert [function for function, _ in order] == functions
    known = {x.data_ptr() for x in bound.tensors.values() if isinstance(x, torch.Tensor)}
    workspaces = [{x for x in args if isinstance(x, int) and x > 2**31} - known for _, args in order]
    assert len(set.union(*workspaces)) == 1
