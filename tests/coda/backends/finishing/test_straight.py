"""Launches that are alike, in one function: what the kernels get is what `Dispatch` gives them, and what sends a launch back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from launch_support import ARGUMENTS, PROBLEM, SIZES, Driver, Function, Run, tensors  # noqa: E402

from coda.backends.finishing import dispatch, straight  # noqa: E402

pytestmark = pytest.mark.interp
NAMES = ("a", "x", "k", "out.y")
"""What a launch is given; `eps` is the same every time."""


class Launches:
    """Two kernels of one launch, as a backend has them: tiles, then a finisher with the same arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import triton.runtime

        monkeypatch.setattr(dispatch.env, "interpreting", lambda: False)
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver(), raising=False)
        monkeypatch.setattr(dispatch.private, "launcher", dispatch.private.public)
        self.functions = [Function(), Function()]
        self.kernels = [dispatch.Dispatch(f, ARGUMENTS, PROBLEM, SIZES, {}, "p") for f in self.functions]
        self.general: list[Mapping[str, Any]] = []

    def run(self, bound: Mapping[str, Any]) -> None:
        """The general way."""
        self.general.append(bound)
        workspace = torch.zeros(7)
        aliased = bound["out.y"].data_ptr() == bound["x"].data_ptr()
        self.kernels[0](5, 0, bound, workspace, {"ALIASED": aliased})
        self.kernels[1](3, 0, bound, workspace, {})

    def straight(self, bound: Mapping[str, Any], names: Sequence[str] = NAMES) -> Any:
        aliased = bound["out.y"].data_ptr() == bound["x"].data_ptr()
        line = straight.Line(names, bound, 0)
        line.aliased(["out.y"], ["x"], aliased)
        workspace = line.memory(7)
        for kernel, programs, constants in ((0, 5, {"ALIASED": aliased}), (1, 3, {})):
            if not line.kernel(self.kernels[kernel], programs, workspace, constants):
                return None
        return line.function(self.run, self.kernels[0].hooks)

    def ready(self, bound: Mapping[str, Any]) -> Any:
        """A straight launch of such tensors, and nothing remembered."""
        self.run(bound)
        launch = self.straight(bound)
        self.general.clear()
        return launch

    @property
    def counts(self) -> tuple[int, int, int]:
        """General ones, and launches of both kernels past Triton."""
        return (len(self.general), *(len(f.fast) for f in self.functions))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def values(bound: Mapping[str, Any]) -> list[Any]:
    return [bound[name] for name in NAMES]


def seen(args: tuple[Any, ...]) -> list[Any]:
    """Arguments of a launcher: a descriptor by what it says, without the workspace."""
    found = [(a.base.data_ptr(), a.shape, a.strides) if hasattr(a, "base") else a for a in args]
    return found[:15] + found[16:]


def test_the_kernels_get_what_dispatch_gives_them(launches: Launches) -> None:
    bound = tensors()
    launch = launches.ready(bound)
    other = tensors(k=-4)
    launches.run(other)
    launch(*values(other))
    for function in launches.functions:
        general, now = function.fast
        assert seen(now) == seen(general)
        assert now[15] % 16 == 0  # the workspace
    assert launches.functions[0].fast[1][15] == launches.functions[1].fast[1][15]
    assert launches.counts == (1, 2, 2)


def test_what_was_never_launched_has_no_straight_launch(launches: Launches) -> None:
    assert launches.straight(tensors()) is None
    launches.run(tensors())
    assert launches.straight(tensors()) is not None
    assert launches.straight(tensors(x=torch.zeros(16, 40)[:, :32])) is None


@pytest.mark.parametrize("change", ["large", "aliased", "hook", "another hook"])
def test_what_values_decide_goes_the_general_way(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    launch = launches.ready(tensors())
    bound = tensors()
    hooks = launches.kernels[0].hooks
    if change == "large":
        bound["k"] = 2**40
    elif change == "aliased":
        bound["out.y"] = bound["x"]
    elif change == "hook":
        monkeypatch.setattr(hooks.launch_exit_hook, "calls", [print])
    else:
        monkeypatch.setattr(hooks, "launch_enter_hook", print)
    launch(*values(bound))
    (general,) = launches.general
    assert {name: general[name] for name in NAMES} == {name: bound[name] for name in NAMES}
    assert general["eps"] == 1e-6
    monkeypatch.undo()


def test_in_place_stays_in_place(launches: Launches) -> None:
    bound = tensors()
    bound["out.y"] = bound["x"]
    launch = launches.ready(bound)
    launch(*values(bound))
    assert launches.counts == (0, 1, 1)
    assert launches.functions[0].fast[0][-1] is True
    launch(*values(tensors()))
    assert len(launches.general) == 1


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_launcher_that_refuses_is_given_up_and_nothing_runs_twice(launches: Launches, refusing: int) -> None:
    launch = launches.ready(tensors())
    broken = launches.functions[refusing]
    refused: list[tuple[Any, ...]] = []

    class Refusing(Run):
        def __call__(self, *args: Any) -> None:
            refused.append(args)
            if len(refused) < 3:
                raise TypeError("function takes exactly 7 arguments")
            self.public.append(args)

    run = broken.run = Refusing()
    launches.kernels[refusing]._known.clear()
    launches.run(tensors())  # Triton's way: what it compiled is now launched by another launcher
    launch = launches.straight(tensors())
    before = len(launches.functions[1 - refusing].fast)
    launch(*values(tensors()))
    assert len(run.public) == 1
    assert len(launches.functions[1 - refusing].fast) == before + 1
    launches.general.clear()
    launch(*values(tensors()))
    assert len(launches.general) == 1
    assert len(run.public) == 2


def test_a_number_on_the_device_is_an_address(launches: Launches) -> None:
    bound = tensors(k=torch.tensor(3))
    launch = launches.ready(bound)
    launch(*values(bound))
    assert bound["k"].data_ptr() in launches.functions[0].fast[0]


def test_descriptors_are_kept_by_address_and_no_tensor_is(launches: Launches) -> None:
    bound = tensors()
    launch = launches.ready(bound)
    matrices = [torch.zeros(16, 64) for _ in range(straight.REMEMBERED + 3)]
    for a in matrices * 2:
        launch(*values({**bound, "a": a}))
    described = [args[9].base.data_ptr() for args in launches.functions[0].fast]
    assert described == [a.data_ptr() for a in matrices * 2]
    kept = [weakref.ref(x) for x in (*bound.values(), *matrices) if isinstance(x, torch.Tensor)]
    for function in launches.functions:
        function.slow.clear()
        function.run.public.clear()
    del a, matrices, bound
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]
