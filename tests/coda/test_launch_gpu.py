"""Launches on a GPU: captured in graphs, on any stream and device, without waiting, and inside torch.compile.

Every kernel of the curated bank that computes a task is called with that task's inputs, on every backend of the GPU that
supports it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import coda.call
import examples_curated
from agent import task as tasks
from agent.verify import inputs
from coda.backends import registry
from coda.errors import Unsupported
from coda.kernel import PlanKernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="TRITON_INTERPRET is set"),
]
KERNELS = [task for task in examples_curated.catalog() if task in tasks.cards()]
BACKENDS = [name for name in registry.MODULES if name != "reference"]
DIMS = {"M": 256, "N": 512, "K": 512, "P": 256}


def drawn(task_id: str, device: str = "cuda", seed: int = 1) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A function that calls the kernel on inputs by name, and such inputs."""
    task, kernel = tasks.load(task_id), examples_curated.load(task_id)
    dims = task.shapes_of("smoke")[0].dims
    dims = {name: DIMS.get(name, size) for name, size in dims.items()}
    given = inputs.draw(task, dims, seed=seed, dtype="bfloat16", device=device)
    places = [i.name for i in task.inputs if i.role in ("a", "b")]

    def call(backend: str, /, **named: Any) -> Any:
        try:
            if isinstance(kernel, PlanKernel):
                return kernel(**named, backend=backend)
            rest = {name: x for name, x in named.items() if name not in places}
            return kernel(*(named[p] for p in places), **rest, backend=backend)
        except Unsupported as error:
            pytest.skip(f"{backend}: {error}")

    return call, given


WARM = 3
"""Calls until what is called is a written function: checked, found by its kind and written, called."""


def warmed(call: Callable[..., Any], backend: str, given: dict[str, Any]) -> Any:
    """The results of a warm call."""
    return [call(backend, **given) for _ in range(WARM)][-1]


def equal(got: Any, expected: Any) -> bool:
    """The same bits, NaN included."""
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for x, y in zip(got, expected, strict=True)
    )


def copy_into(given: dict[str, Any], other: dict[str, Any]) -> None:
    for name, x in given.items():
        if isinstance(x, torch.Tensor):
            x.copy_(other[name])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", KERNELS)
def test_a_warm_call_is_captured_and_replayed(task: str, backend: str) -> None:
    call, given = drawn(task)
    _, other = drawn(task, seed=2)
    first = warmed(call, backend, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(backend, **given)
    for t in captured:
        t.view(torch.uint8).fill_(255)
    graph.replay()
    assert equal(captured, first)
    copy_into(given, other)
    graph.replay()
    assert equal(captured, call(backend, **other))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", KERNELS)
def test_a_warm_call_waits_for_nothing(task: str, backend: str) -> None:
    call, given = drawn(task)
    expected = warmed(call, backend, given)
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        busy = torch.cuda.Event()
        torch.cuda._sleep(200_000_000)
        busy.record()
        got = call(backend, **given)
        waited = busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not waited, "the call came back after the work before it"
    assert equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", KERNELS)
def test_every_launch_has_its_shorter_way(task: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    cls = type(registry.get(backend))
    straight = cls.straight
    general: list[int] = []
    launch = cls.launch
    monkeypatch.setattr(cls, "straight", lambda *args: (way := straight(*args), found.append(way is not None))[0])
    monkeypatch.setattr(cls, "launch", lambda *args: (general.append(1), launch(*args))[1])
    call, given = drawn(task)
    coda.call.forget()
    expected = call(backend, **given)
    again = call(backend, **given)
    assert found
    assert all(found)
    general.clear()
    assert equal(call(backend, **given), expected)
    assert not general
    assert equal(again, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_of_a_tile(backend: str) -> None:
    call, given = drawn("residual_rms")
    expected = call(backend, **given)
    kernel = examples_curated.load("residual_rms")
    places = [i.name for i in tasks.load("residual_rms").inputs if i.role in ("a", "b")]
    rest = {name: x for name, x in given.items() if name not in places}
    for attempt in range(2 * WARM):
        residual = rest["residual"].clone()
        target = residual if attempt % 2 else torch.empty_like(residual)
        got = kernel(*(given[p] for p in places), **{**rest, "residual": residual}, out={"h": target}, backend=backend)
        assert got.h is target
        assert equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", ["residual_rms", "residual_rms_linear", "swiglu_backward"])
def test_the_current_stream(task: str, backend: str) -> None:
    call, given = drawn(task)
    _, other = drawn(task, seed=2)
    expected = call(backend, **other)
    warmed(call, backend, given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        copy_into(given, other)  # what runs on another stream would still see the values before
        got = call(backend, **given)
    torch.cuda.current_stream().wait_stream(stream)
    assert equal(got, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", ["residual_rms", "residual_rms_linear"])
def test_the_device_of_the_tensors(task: str, backend: str) -> None:
    call, given = drawn(task)
    expected = call(backend, **given)
    there = {name: x.to("cuda:1") if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    assert torch.cuda.current_device() == 0
    for _ in range(WARM + 1):
        got = call(backend, **there)
        assert {t.device for t in got} == {torch.device("cuda:1")}
        assert equal([t.cpu() for t in got], [t.cpu() for t in expected])
        assert equal(call(backend, **given), expected)
    assert torch.cuda.current_device() == 0


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the one with which PyTorch sets up its pool
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("task", ["swiglu_backward", "residual_rms_linear"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled(task: str, backend: str, mode: str) -> None:
    call, given = drawn(task)
    expected = call(backend, **given)
    torch._dynamo.reset()
    plain = functools.partial(direct, task)
    compiled = torch.compile(lambda backend, **named: tuple(plain(backend, **named)), fullgraph=True, mode=mode)
    for _ in range(3):
        assert equal([t.clone() for t in compiled(backend, **given)], expected)


def direct(task_id: str, backend: str, **named: Any) -> Any:
    """The call of two kernels as a user writes it, for Dynamo to read."""
    if task_id == "residual_rms_linear":
        return LINEAR(**named, backend=backend)
    rest = {name: x for name, x in named.items() if name not in ("dy", "w2_t")}
    return BACKWARD(named["dy"], named["w2_t"], **rest, backend=backend)


LINEAR = examples_curated.load("residual_rms_linear")
BACKWARD = examples_curated.load("swiglu_backward")


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_a_descriptor_may_go_and_come_back(backend: str) -> None:
    """An address that another matrix lies at later is encoded anew where its strides differ, and read anew in any case."""
    call, given = drawn("rms_scale")
    names = [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.ndim == 2]
    for seed in range(4):
        _, fresh = drawn("rms_scale", seed=seed)
        whole = torch.empty(2 * DIMS["K"], DIMS["K"] * 2, dtype=torch.bfloat16, device="cuda")
        wide = dict(fresh)
        first = names[0]
        place = whole[: fresh[first].shape[0], : fresh[first].shape[1]]
        place.copy_(fresh[first])
        wide[first] = place
        assert equal(call(backend, **wide), call(backend, **fresh))
        given = fresh
        del whole, place, wide
