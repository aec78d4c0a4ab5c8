"""A launch in straight lines gives the compiled kernel what quack's own plan gives it: compared on a CPU, nothing is compiled."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("quack")
pytest.importorskip("triton")

import coda  # noqa: E402
import examples_curated  # noqa: E402
from coda.backends import registry  # noqa: E402
from coda.backends.finishing import dispatch  # noqa: E402
from coda.backends.registry import Artifact  # noqa: E402
from coda.binding import bind  # noqa: E402
from coda.kernel import PlanKernel  # noqa: E402
from coda.primitives import ColVector, RowVector, Scalar, Tile, row_mean, rsqrt  # noqa: E402
from coda.program import EpilogueProgram  # noqa: E402

pytestmark = [pytest.mark.interp, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
M, N, K = 128, 256, 128


@coda.epilogue
def scaled_twice(acc, x: Tile, g: RowVector, v: ColVector, s: Scalar, *, eps: float = 1e-6):
    h = acc * v + x * s
    return {"h": h, "rstd": rsqrt(row_mean(h * h) + eps), "q": h * g}


class Calls(list[tuple[Any, ...]]):
    """In place of a compiled kernel."""

    def __call__(self, *args: Any) -> None:
        self.append(args)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """What a kernel is called with: quack's plans are its own, but for the compiler and the device."""
    import triton.runtime
    from quack.epilogue import frontend, ops
    from quack.gemm_runtime import host

    from coda.backends.cutedsl import launch

    calls = Calls()
    monkeypatch.setattr(host, "_compile_gemm_epi", lambda *args, **kwargs: calls)
    monkeypatch.setattr(host, "get_max_active_clusters", lambda size: 66)
    monkeypatch.setattr(ops.Scalar, "_validate_pointer_value", lambda self, value: None)  # that it is on a GPU
    monkeypatch.setattr(frontend, "get_device_capacity", lambda device: (9, 0))
    monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_stream=lambda device: 7))
    monkeypatch.setattr(dispatch.private, "launcher", dispatch.private.public)
    monkeypatch.setattr(launch.Runner, "run", lambda self, tensors: self._launch(tensors, tensors["a"].device))
    yield calls
    launch.modified.cache_clear()  # quack's objects, with what they planned


class Finishing:
    """In place of Triton's kernel that finishes, and of what Triton compiled: remembers what the launcher gets."""

    function, packed_metadata = 77, (1, 1, 0)

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def run(self, *args: Any) -> None:
        self.launched.append(args)

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *args, **options: self


def given(program: EpilogueProgram, dtype: Any = torch.bfloat16) -> dict[str, Any]:
    """Arguments of a program."""
    found: dict[str, Any] = {"a": torch.zeros(M, K, dtype=dtype), "b": torch.zeros(K, N, dtype=dtype)}
    for o in program.operands:
        if o.kind == "scalar":
            found[o.name] = 0.5
            continue
        shape = o.shape(M, N)
        found[o.name] = torch.zeros(
            shape, dtype=torch.int64 if o.dtype == "int" else dtype if len(shape) == 2 else torch.float32
        )
    return found


def made(program: EpilogueProgram, arguments: dict[str, Any]) -> tuple[Any, Finishing, dict[str, Any]]:
    """A runner whose finisher is no kernel, and the tensors of a launch."""
    from coda.backends.cutedsl.launch import Runner

    backend = registry.get("cutedsl")
    bound = bind(program, (), arguments, None)
    problem = dataclasses.replace(bound.problem, arch="sm_90")
    support = backend.supports(program, problem)
    if not support.ok:
        pytest.skip(support.reason)
    runner = Runner(program, problem, backend.default_schedule(program, problem), "sm_90")
    finishing = Finishing()
    if runner.finisher is not None:
        runner.finisher.dispatch._function = finishing
        runner.finisher.dispatch._direct = True
    return runner, finishing, dict(bound.tensors)


def plain(x: Any, workspace: set[int]) -> Any:
    """What a kernel sees of an argument; partials are new memory every time, and where in it they lie is what counts."""
    if isinstance(x, torch.Tensor):
        base = x.untyped_storage().data_ptr()
        place = (base, x.storage_offset() * x.element_size())
        if x.dtype is torch.float32 and base in workspace:
            place = (0, place[1])
        return (*place, x.dtype, tuple(x.shape), x.stride())
    if isinstance(x, tuple):
        return tuple(plain(y, workspace) for y in x)
    for convert in ("__tvm_ffi_float__", "__tvm_ffi_int__"):
        if hasattr(x, convert):
            return getattr(x, convert)()
    return x


def partials(calls: Calls, tensors: dict[str, Any]) -> set[int]:
    known = {t.untyped_storage().data_ptr() for t in tensors.values() if isinstance(t, torch.Tensor)}
    seen = {x.untyped_storage().data_ptr() for call in calls for x in call[4] if isinstance(x, torch.Tensor)}
    return seen - known


PROGRAMS = {
    name: kernel.program
    for name in examples_curated.catalog()
    if not isinstance(kernel := examples_curated.load(name), PlanKernel) and kernel.program.kind == "epilogue"
} | {"scaled_twice": scaled_twice.program}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_straight_launch_gives_the_kernel_what_the_plan_gives_it(compiled: Calls, name: str) -> None:
    program = PROGRAMS[name]
    runner, finishing, tensors = made(program, given(program))
    for _ in range(2):
        runner.run(tensors)
    names = [n for n in tensors if n not in ("eps",)]
    launch = runner.straight(tensors, names)
    assert launch is not None
    launch(*(tensors[n] for n in names))
    memory = partials(compiled, tensors)
    cold, general, straight = (plain(call, memory) for call in compiled)
    assert cold == general == straight
    if runner.finisher is not None:
        general, straight = ([x for x in args if x not in memory] for args in finishing.launched)
        assert general == straight
        assert len(finishing.launched[0]) == len(finishing.launched[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_on_the_device_stays_there(compiled: Calls, dtype: Any) -> None:
    program = scaled_twice.program
    runner, _, tensors = made(program, {**given(program), "s": torch.tensor(2.0, dtype=dtype)})
    runner.run(tensors)
    launch = runner.straight(tensors, list(tensors))
    assert launch is not None
    launch(*tensors.values())
    numbers = [[x for x in call[4] if isinstance(x, int)] for call in compiled]
    assert len(numbers[0]) == len(numbers[1]) == 1
    if dtype is torch.float32:
        assert numbers[0] == numbers[1] == [tensors["s"].data_ptr()]


def test_an_integer_for_a_number_is_a_float(compiled: Calls) -> None:
    program = scaled_twice.program
    runner, _, tensors = made(program, {**given(program), "s": 2})
    runner.run(tensors)
    launch = runner.straight(tensors, list(tensors))
    assert launch is not None
    launch(*tensors.values())
    general, straight = (plain(call[4], set()) for call in compiled)
    assert [x for x in straight if isinstance(x, float)] == [x for x in general if isinstance(x, float)] == [2.0]


def test_a_plan_that_would_do_more_has_no_straight_launch(compiled: Calls) -> None:
    program = scaled_twice.program
    runner, _, tensors = made(program, given(program))
    assert runner.straight(tensors, list(tensors)) is None  # not launched yet
    runner.run(tensors)
    (plan,) = runner._plans.values()
    plan.gemm_plan = plan.gemm_plan._replace(split_k=2)
    assert runner.straight(tensors, list(tensors)) is None


def test_the_backend_offers_it() -> None:
    backend = registry.get("cutedsl")
    assert isinstance(backend, registry.Straight)
    runner = types.SimpleNamespace(straight=lambda tensors, names: (tensors, names))
    artifact = Artifact("cutedsl", scaled_twice.program, None, None, "", payload=runner)
    assert backend.straight(artifact, {}, ["a"]) == ({}, ["a"])
