"""Launches past Triton's dispatch: which go Triton's way, and what tells two variants of a kernel apart."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from coda.backends.triton import dispatch  # noqa: E402
from coda.backends.triton.template import Argument  # noqa: E402
from coda.problem import Problem, TensorSpec  # noqa: E402

ARGUMENTS = (
    Argument("a", "descriptor", "a", block=(16, 16)),
    Argument("x_ptr", "pointer", "x", type="*fp32"),
    Argument("x_stride", "stride", "x", dim=0),
    Argument("eps_arg", "scalar", "eps", type="fp32"),
    Argument("k_arg", "scalar", "k", type="i64"),
    Argument("y_out", "pointer", "out.y", type="*fp32"),
    Argument("partials", "workspace"),
    Argument("M", "size", "m"),
)
SPECS = tuple(sorted((name, TensorSpec("float32")) for name in ("a", "x", "out.y")))
PROBLEM = Problem(16, 32, 64, "float32", SPECS, "sm_90")
SIZES = {"m": 16, "n": 32, "k": 64}


def tensors(**changes: Any) -> dict[str, Any]:
    x, y = torch.zeros(16, 32), torch.zeros(16, 32)
    return {"a": torch.zeros(16, 64), "x": x, "eps": 1e-6, "k": 3, "out.y": y, **changes}


class Function:
    """In place of a compiled-on-demand kernel: remembers its launches."""

    def __init__(self) -> None:
        self.slow: list[tuple[Any, ...]] = []
        self.fast: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*args: Any, **options: Any) -> Function:
            self.slow.append((grid, args, options))
            return self

        return launch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[Function, dispatch.Dispatch]:
    monkeypatch.setattr(dispatch.env, "interpreting", lambda: False)
    function = Function()

    def straight(compiled: Function, device: int, constants: tuple[Any, ...]) -> Any:
        return lambda programs, *args: compiled.fast.append((programs, args, constants))

    monkeypatch.setattr(dispatch, "_straight", straight)
    return function, dispatch.Dispatch(function, ARGUMENTS, PROBLEM, SIZES, {"num_warps": 4})


def test_arguments_in_order(kernel: Any) -> None:
    function, launch = kernel
    bound, workspace = tensors(), torch.zeros(7)
    launch(5, 0, bound, workspace, {"ALIASED": False})
    ((grid, args, options),) = function.slow
    assert grid == (5,)
    assert options == {"ALIASED": False, "num_warps": 4}
    assert args[0].shape == [16, 64]
    assert args[0].base.data_ptr() == bound["a"].data_ptr()
    assert args[1] is bound["x"]
    assert args[2:5] == (32, 1e-6, 3)
    assert args[5] is bound["out.y"]
    assert args[6] is workspace
    assert args[7] == 16


def test_the_second_launch_is_direct(kernel: Any) -> None:
    function, launch = kernel
    launch(5, 0, tensors(), None, {"ALIASED": False})
    launch(6, 0, tensors(eps=2.5, k=-4), None, {"ALIASED": False})
    assert len(function.slow) == 1
    ((programs, args, constants),) = function.fast
    assert (programs, constants, args[3], args[4]) == (6, (False,), 2.5, -4)


@pytest.mark.parametrize(
    ("changes", "device", "aliased"),
    [
        ({"x": torch.zeros(16, 40)[:, :32]}, 0, False),
        ({"eps": torch.tensor(1e-6)}, 0, False),
        ({"k": 2**40}, 0, False),
        ({}, 1, False),
        ({}, 0, True),
    ],
    ids=["stride", "0-d tensor", "long", "device", "alias"],
)
def test_another_variant_goes_tritons_way_once(
    kernel: Any, changes: dict[str, Any], device: int, aliased: bool
) -> None:
    function, launch = kernel
    launch(5, 0, tensors(), None, {"ALIASED": False})
    launch(5, device, tensors(**changes), None, {"ALIASED": aliased})
    assert (len(function.slow), len(function.fast)) == (2, 0)
    launch(5, device, tensors(**changes), None, {"ALIASED": aliased})
    assert (len(function.slow), len(function.fast)) == (2, 1)


def test_a_listening_profiler_hears_every_launch(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, launch = kernel
    launch(5, 0, tensors(), None, {})

    class Hooks:
        launch_enter_hook = staticmethod(print)
        launch_exit_hook = None

    monkeypatch.setattr(launch, "_hooks", Hooks)
    launch(5, 0, tensors(), None, {})
    assert (len(function.slow), len(function.fast)) == (2, 0)


def test_descriptors_are_remembered_and_hold_no_memory() -> None:
    make = dispatch._Descriptors(ARGUMENTS[0])
    make._lasting = True
    x = torch.zeros(16, 64)
    assert make(x) is make(x)
    assert make(x).base is not x
    others = [torch.zeros(16, 64) for _ in range(make.REMEMBERED + 2)]
    for other in others:
        make(other)
    assert len(make._found) <= make.REMEMBERED
    wide = torch.zeros(16, 128)[:, :64]
    assert make(wide).strides == [128, 1]
