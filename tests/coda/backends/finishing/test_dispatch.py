"""Launches past Triton's dispatch: which go Triton's way, and what tells two variants of a kernel apart."""

from __future__ import annotations

import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from launch_support import ARGUMENTS, PROBLEM, SIZES, SPECS, Driver, Function, Run, tensors  # noqa: E402

from coda.backends.finishing import dispatch  # noqa: E402
from coda.errors import CompileError  # noqa: E402
from coda.problem import Problem, TensorSpec  # noqa: E402

LAUNCHER = dispatch.private.launcher


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[Function, dispatch.Dispatch]:
    import triton.runtime

    monkeypatch.setattr(dispatch.env, "interpreting", lambda: False)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(), raising=False)
    monkeypatch.setattr(dispatch.private, "launcher", dispatch.private.public)
    function = Function()
    return function, dispatch.Dispatch(function, ARGUMENTS, PROBLEM, SIZES, {"num_warps": 4}, "p")


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
    ((programs, *_, aliased),) = function.fast
    args = function.fast[0]
    assert args[:9] == (6, 1, 1, 1000, 77, (8, 1, 1024), None, None, None)
    assert (programs, aliased, args[12:14]) == (6, False, (2.5, -4))


def test_pointers_are_numbers(kernel: Any) -> None:
    function, launch = kernel
    bound, workspace = tensors(), torch.zeros(7)
    launch(5, 0, bound, workspace, {})
    launch(5, 0, bound, workspace, {})
    (args,) = function.fast
    assert args[10] == bound["x"].data_ptr()
    assert args[14:16] == (bound["out.y"].data_ptr(), workspace.data_ptr())


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


def test_an_aligned_base_behind_an_unaligned_stride_is_a_variant_of_its_own(kernel: Any) -> None:
    """Triton compiles for a base that is a multiple of 16 bytes; such a kernel must not get one that is not."""
    function, _ = kernel
    specs = tuple((name, TensorSpec("float32", aligned=name != "x")) for name, _ in SPECS)
    launch = dispatch.Dispatch(function, ARGUMENTS, Problem(16, 32, 64, "float32", specs, "sm_90"), SIZES, {}, "p")
    buffer = torch.zeros(16 * 33 + 1)
    assert buffer.data_ptr() % 16 == 0
    aligned, not_aligned = (buffer.as_strided((16, 32), (33, 1), offset) for offset in (0, 1))
    for x, slow, fast in ((aligned, 1, 0), (aligned, 1, 1), (not_aligned, 2, 1), (not_aligned, 2, 2), (aligned, 2, 3)):
        launch(5, 0, tensors(x=x), None, {})
        assert (len(function.slow), len(function.fast)) == (slow, fast)


def test_what_tritons_compiler_raises_is_one_of_our_errors(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    _, launch = kernel
    raised: list[Exception] = []

    def refuses(*args: Any, **options: Any) -> None:
        raise raised[-1]

    monkeypatch.setattr(Function, "__getitem__", lambda self, grid: refuses)
    monkeypatch.setattr(Function, "warmup", refuses, raising=False)
    steps = (lambda: launch(5, 0, tensors(), None, {}), lambda: launch.build(5, tensors(), None, {}))
    for step in steps:
        raised.append(OutOfResources(300_000, 232_448, "shared memory"))
        with pytest.raises(CompileError, match="p: the kernel does not fit the device: got 300000 of shared memory"):
            step()
        raised.append(RuntimeError("an illegal memory access was encountered"))
        with pytest.raises(RuntimeError, match="illegal"):
            step()


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
    made = []
    make = dispatch.Descriptors(ARGUMENTS[0], lambda d: (made.append(d) or len(made), *d.shape, *d.strides))
    x = torch.zeros(16, 64)
    assert make(x) == make(x) == (1, 16, 64, 64, 1)
    assert made[0].base is not x
    others = [torch.zeros(16, 64) for _ in range(make.REMEMBERED + 2)]
    for other in others:
        make(other)
    assert len(make._found) <= make.REMEMBERED
    wide = torch.zeros(16, 128)[:, :64]
    assert make(wide)[1:] == (16, 64, 128, 1)


# the launcher below Triton's ----------------------------------------------------------------------------------------


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors are encoded without a GPU: what would be the encoded one is a word."""
    import triton.backends.nvidia.driver as nvidia

    monkeypatch.setattr(
        nvidia, "make_tensordesc_arg", lambda d, metadata, *_: [f"encoded by {metadata}", *d.shape, *d.strides]
    )


@pytest.mark.parametrize(("version", "packed"), [("3.6.0", False), ("3.9.1", True)])
def test_descriptors_are_encoded_once(
    kernel: Any, encoding: None, monkeypatch: pytest.MonkeyPatch, version: str, packed: bool
) -> None:
    import triton

    function, launch = kernel
    function.metadata = types.SimpleNamespace(tensordesc_meta=["swizzle"])
    function.run.arg_annotations, function.run.kernel_signature = ["annotations"], b"signature"
    Driver.utils = types.SimpleNamespace(launch=lambda *args: function.run.raw.append(args))
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(dispatch.private, "launcher", LAUNCHER)
    bound, workspace = tensors(), torch.zeros(7)
    for _ in range(3):
        launch(5, 0, bound, workspace, {"ALIASED": True})
    assert len(function.slow) == 1
    assert len(function.run.raw) == 2
    assert not function.run.public
    args = function.run.raw[1]
    assert args[:7] == (5, 1, 1, 1000, 77, False, False)
    if packed:
        assert args[7:15] == ((8, 1, 1024), None, None, None, None, None, ["annotations"], b"signature")
        (own,) = args[15:]
    else:
        assert args[7:13] == (None, None, (8, 1, 1024), None, None, None)
        own = args[13:]
    assert own[:5] == ("encoded by swizzle", 16, 64, 64, 1)
    assert own[5] == bound["x"].data_ptr()
    assert own[-1] is True


def test_a_launcher_that_refuses_is_replaced_by_the_public_one(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, launch = kernel

    def refuses(*args: Any) -> None:
        raise TypeError("function takes exactly 7 arguments")

    monkeypatch.setattr(dispatch.private, "launcher", lambda compiled: dispatch.private.Launcher(refuses, ()))
    for _ in range(3):
        launch(5, 0, tensors(), None, {})
    assert (len(function.slow), len(function.fast)) == (1, 2)


def test_a_public_launch_that_fails_is_not_tried_again(kernel: Any) -> None:
    function, launch = kernel
    launch(5, 0, tensors(), None, {})

    class Broken(Run):
        def __call__(self, *args: Any) -> None:
            self.public.append(args)
            raise TypeError("bad")

    function.run = Broken()
    launch._known.clear()
    launch(5, 0, tensors(), None, {})
    with pytest.raises(TypeError, match="bad"):
        launch(5, 0, tensors(), None, {})
    assert len(function.run.public) == 2  # as it was, and once more after the direct launcher was given up
    with pytest.raises(TypeError, match="bad"):
        launch(5, 0, tensors(), None, {})
    assert len(function.run.public) == 3


@pytest.mark.parametrize("change", ["version", "scratch", "shape"])
def test_what_was_not_read_goes_the_public_way(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    import triton

    function = Function()
    function.metadata = types.SimpleNamespace()
    monkeypatch.setattr(triton, "__version__", "3.12.0" if change == "version" else "3.6.0")
    if change == "scratch":
        function.run.global_scratch_size = 64
    if change == "shape":
        function.run.launch = lambda *args: function  # closes over something else
    found = LAUNCHER(function)
    assert found.run is function.run
    assert found.encode is None
