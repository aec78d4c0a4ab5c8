"""Warm calls as written functions: how little they do, when they step aside, and that they hold on to nothing."""

from __future__ import annotations

import dataclasses
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import coda
import coda.call
from coda import errors, torch_private, warm, written
from coda.backends import registry
from coda.backends.reference import Reference
from coda.primitives import ColVector, RowVector, Scalar, Tile, row_mean, rsqrt

pytestmark = pytest.mark.interp


def kernels() -> tuple[Any, Any]:
    """A program and a plan that nobody has called."""

    @coda.epilogue
    def residual_rms(acc, residual: Tile, gamma: RowVector, *, eps: float = 1e-6):
        h = acc + residual
        return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}

    @coda.epilogue
    def scaled(acc, rstd: ColVector):
        return {"z": acc * rstd}

    @coda.plan
    def linear(y, w_o, residual, gamma, w_1, *, eps: float = 1e-6):
        r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
        return {"h": r.h, "z": scaled(r.q, w_1, rstd=r.rstd).z}

    return residual_rms, linear


@coda.epilogue
def powered(acc, s: Scalar, *, n: int = 2):
    return {"y": acc**n + s}


def inputs(m: int = 8, n: int = 12, k: int = 16, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(m)
    make = lambda *shape: torch.randn(*shape, generator=g).to(dtype)  # noqa: E731
    return {"a": make(m, k), "b": make(k, n), "residual": make(m, n), "gamma": make(n)}


def same(got: Any, kernel: Any, given: dict[str, Any]) -> bool:
    exact = kernel.reference(**given, dtype=torch.float32)
    return all(torch.allclose(x, exact[name], atol=1e-5) for name, x in got._asdict().items())


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a call was not warm: neither by its kind, nor by a function."""
    seen: list[int] = []
    bind = coda.call.bind
    monkeypatch.setattr(coda.call, "bind", lambda *args: seen.append(1) or bind(*args))
    return seen


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the kind of a call was looked up."""
    seen: list[int] = []
    kind_of = coda.call.kind_of
    for module in ("call", "replay"):
        monkeypatch.setattr(f"coda.{module}.kind_of", lambda *args: seen.append(1) or kind_of(*args))
    return seen


# how little they do -------------------------------------------------------------------------------------------------


def work(call: Callable[[], Any]) -> tuple[int, int]:
    """Python functions entered and built-in ones called by a warm call."""
    for _ in range(3):
        call()
    counts = {"call": 0, "c_call": 0}

    def hear(frame: Any, event: str, argument: Any) -> None:
        if event in counts:
            counts[event] += 1

    sys.setprofile(hear)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counts["call"] - 1, counts["c_call"] - 1  # without the lambda, and what ends the count


def test_the_work_of_a_warm_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "launch", lambda self, artifact, tensors: None)
    monkeypatch.delenv("CODA_BACKEND", raising=False)
    program, plan = kernels()
    given = inputs()
    a, b, named = given["a"], given["b"], {name: given[name] for name in ("residual", "gamma")}
    out = {"h": torch.empty(8, 12), "q": torch.empty(8, 12), "rstd": torch.empty(8)}
    w = torch.ones(12, 4)
    # entered: __call__, is_dynamo_compiling, again, the written function, env.backend, launch
    # built in: compare, four addresses, three allocations, the result
    assert work(lambda: program(a, b, **named)) <= (6, 12)
    assert work(lambda: program(a, b, **named, backend="reference")) <= (5, 12)
    assert work(lambda: program(a, b, **named, backend="reference", out=out)) <= (6, 16)  # increment_version
    assert work(lambda: plan(a, b, *named.values(), w, backend="reference")) <= (6, 16)


def test_a_function_is_written_at_the_second_call(looked_up: list[int]) -> None:
    for kernel, given in zip(kernels(), (inputs(), {}), strict=True):
        arguments = given or {"y": torch.ones(4, 8), "w_o": torch.ones(8, 6), "w_1": torch.ones(6, 2)}
        arguments |= {} if given else {"residual": torch.ones(4, 6), "gamma": torch.ones(6)}
        looked_up.clear()
        for _ in range(5):
            assert same(kernel(**arguments), kernel, arguments)
        assert len(looked_up) == 2


def test_more_kinds_than_are_tried_first(long_way: list[int]) -> None:
    kernel, _ = kernels()
    kinds = [inputs(m) for m in range(1, warm.LATEST + 4)]
    for _ in range(4):
        for given in kinds:
            assert same(kernel(**given), kernel, given)
    assert len(long_way) == len(kinds)
    assert len(kernel._calls._latest) == warm.LATEST
    assert {len(ready.made) for ready in kernel._calls._ready.values()} == {1}


def test_functions_are_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch, long_way: list[int]) -> None:
    monkeypatch.setattr(warm, "MAX_WRITTEN", 5)
    kernel, _ = kernels()
    kinds = [inputs(m) for m in range(1, 12)]
    for _ in range(3):
        for given in kinds:
            for _ in range(3):
                assert same(kernel(**given), kernel, given)
            assert sum(len(ready.made) for ready in kernel._calls._ready.values()) <= 5
    assert len(long_way) == len(kinds)


def test_other_sizes_are_the_same_text() -> None:
    program, plan = kernels()
    compiled = []
    for m in (3, 5, 9):
        given = inputs(m)
        for _ in range(3):
            program(**given)
            program(**given, out={"h": torch.empty(m, 12)})
            plan(*given.values(), torch.ones(12, 4))
        compiled.append(written._code.cache_info().misses)
    assert compiled[0] == compiled[1] == compiled[2]


def test_nothing_is_kept_alive() -> None:
    program, plan = kernels()
    given = inputs()
    w = torch.ones(12, 4)
    for _ in range(4):
        results = [program(**given), plan(*given.values(), w)]
    out = {"h": torch.empty(8, 12)}
    for _ in range(4):
        results.append(program(**given, out=out))
    kept = [weakref.ref(x) for x in (*given.values(), w, *out.values(), *(t for r in results for t in r))]
    del given, w, results, out
    gc.collect()
    assert not [ref for ref in kept if ref() is not None]


# when they step aside -----------------------------------------------------------------------------------------------


def test_names_may_come_in_any_order_and_must_be_complete() -> None:
    kernel, _ = kernels()
    given = inputs()
    a, b, residual, gamma = given.values()
    for _ in range(3):
        kernel(a, b, residual=residual, gamma=gamma)
    assert same(kernel(a, b, gamma=gamma, residual=residual), kernel, given)
    assert same(kernel(gamma=gamma, b=b, residual=residual, a=a), kernel, given)
    with pytest.raises(errors.MissingOperand):
        kernel(a, b, residual=residual)
    with pytest.raises(errors.UnknownOperand):
        kernel(a, b, residual=residual, gamma=gamma, beta=gamma)
    with pytest.raises(errors.UnknownOperand):
        kernel(a, b, residual=residual, beta=gamma)
    with pytest.raises(errors.UnknownOperand):
        kernel(a, b, residual, gamma=gamma)
    with pytest.raises(errors.UnknownOperand):
        kernel(a, b, residual=residual, gamma=gamma, out=[residual])
    with pytest.raises(errors.BadSchedule):
        kernel(a, b, residual=residual, gamma=gamma, config="fast")


@pytest.mark.parametrize("bad", ["a", "residual", "gamma"])
def test_what_is_no_tensor_is_refused_after_warm_calls(bad: str) -> None:
    kernel, _ = kernels()
    given = inputs()
    for _ in range(3):
        kernel(**given)
    for x in (None, 2.0, [1.0]):
        with pytest.raises(errors.DTypeUnsupported):
            kernel(**{**given, bad: x})
    assert same(kernel(**given), kernel, given)


def test_numbers_may_change_and_their_types_are_looked_at(long_way: list[int]) -> None:
    a, b = torch.ones(4, 3), torch.ones(3, 5)
    for s in (2.0, 3.0, 4.0, 2, 3, 4, torch.tensor(2.0), torch.tensor(3.0), 5.0):
        assert powered(a, b, s=s).y[0, 0] == 9 + s
    assert len(long_way) == 3
    for n in (2, 3, 2, 3, 2, 3):
        assert powered(a, b, s=1.0, n=n).y[0, 0] == 3**n + 1
    for _ in range(3):
        with pytest.raises(errors.CallError):
            powered(a, b, s=True)
        with pytest.raises(errors.CallError):
            powered(a, b, s=1.0, n=True)


def test_a_config_is_the_same_where_it_is_equal(looked_up: list[int]) -> None:
    kernel, _ = kernels()
    given = inputs()
    schedule = Reference().default_schedule(kernel.program, None)  # type: ignore[arg-type]
    for _ in range(4):
        kernel(**given, config=dataclasses.replace(schedule))
    assert len(looked_up) == 2
    with pytest.raises(errors.BadSchedule):
        kernel(**given, config=dataclasses.replace(schedule, backend="triton"), backend="reference")
    kernel(**given)
    assert len(looked_up) == 4


def test_the_preferred_backend_is_asked_for_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, plan = kernels()
    given = inputs()
    for call in (lambda: kernel(**given), lambda: plan(*given.values(), torch.ones(12, 4))):
        monkeypatch.delenv("CODA_BACKEND", raising=False)
        for _ in range(3):
            call()
        monkeypatch.setenv("CODA_BACKEND", "nothing")
        with pytest.raises(errors.SettingError):
            call()
        monkeypatch.setenv("CODA_BACKEND", "reference")
        for _ in range(3):
            call()


def test_a_tensor_that_wants_a_gradient_is_refused_after_warm_calls_without_any() -> None:
    kernel, _ = kernels()
    given = inputs()
    given["residual"].requires_grad_()
    out = torch.empty(8, 12, requires_grad=True)
    for _ in range(4):
        with torch.no_grad():
            kernel(**given)
            kernel(**{**given, "residual": given["gamma"].expand(8, 12)}, out={"h": out})
    with pytest.raises(errors.NotDifferentiable):
        kernel(**given)
    with pytest.raises(errors.NotDifferentiable):
        kernel(**{**given, "residual": given["gamma"].expand(8, 12)}, out={"h": out})
    plain = {name: x.detach() for name, x in given.items()}
    for _ in range(3):
        kernel(**plain)
    with pytest.raises(errors.NotDifferentiable):
        kernel(**given)


def test_a_tangent_is_refused_as_a_gradient_is() -> None:
    kernel, plan = kernels()
    given = inputs()
    w, y = torch.randn(12, 4), given["a"]
    operands = {name: given[name] for name in ("residual", "gamma")}
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: kernel(x, given["b"], **operands).h,
        lambda x: plan(x, given["b"], **operands, w_1=w).z,
        lambda x: kernel(y, given["b"], **operands, out={"h": x[:, :12]}).h,
    ]
    for call in calls:
        right = call(y.clone()).clone()
        for _ in range(4):
            call(y.clone())
        with forward_ad.dual_level():
            x = forward_ad.make_dual(y.clone(), torch.ones_like(y))
            with pytest.raises(errors.NotDifferentiable, match="tangent"), torch.no_grad():
                call(x)
            assert torch.equal(call(y.clone()), right)
        with pytest.raises(errors.NotDifferentiable, match="tangent"):
            torch.func.jvp(call, (y.clone(),), (torch.ones_like(y),))
        assert torch.equal(call(y.clone()), right)


def test_inside_a_transform_of_something_else_a_call_is_what_it_is_elsewhere() -> None:
    kernel, plan = kernels()
    given = inputs()
    more = {"w_1": torch.randn(12, 4)}
    for call in (lambda: kernel(**given).h, lambda: plan(given["a"], *list(given.values())[1:], **more).z):
        for _ in range(4):  # the first ones are cold
            slope = torch.func.grad(lambda s, call=call: (call() * s).sum())(torch.tensor(2.0))
            rows = torch.vmap(lambda s, call=call: call() * s)(torch.tensor([1.0, 2.0]))
            assert torch.allclose(slope, call().sum())
            assert torch.equal(rows[1], call() * 2)


@pytest.mark.parametrize("mode", ["autocast", "inference", "no_grad", "default device"])
def test_modes_have_functions_of_their_own(mode: str, looked_up: list[int]) -> None:
    kernel, _ = kernels()
    given = inputs()
    modes = {
        "autocast": lambda: torch.autocast("cpu"),
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "default device": lambda: torch.device("meta"),
    }
    first: Any = None
    for _ in range(4):
        kernel(**given)
        with modes[mode]():
            results = kernel(**given)
            assert results.h.is_inference() is (mode == "inference")
        first = first or results
        assert all(torch.equal(x, y) for x, y in zip(results, first, strict=True))
    assert len(looked_up) <= 4
    assert len(next(iter(kernel._calls._ready.values())).made) <= 2


def test_a_parameter_is_another_kind_than_a_tensor() -> None:
    kernel, _ = kernels()
    given = inputs()
    for _ in range(3):
        kernel(**given)
    held = {**given, "gamma": torch.nn.Parameter(given["gamma"], requires_grad=False)}
    for _ in range(3):
        assert same(kernel(**held), kernel, given)


def test_views_of_the_same_shape_are_told_apart() -> None:
    kernel, _ = kernels()
    square = inputs(8, 8, 8)
    wide = {**square, "residual": torch.randn(8, 16)[:, ::2]}
    turned = {**square, "a": torch.randn(8, 8).mT}
    shifted = {**square, "gamma": torch.randn(9)[1:]}
    for _ in range(4):
        for given in (square, wide, turned, shifted):
            assert same(kernel(**given), kernel, given)


@pytest.mark.parametrize("aligned_first", [True, False])
def test_another_alignment_is_another_kind(long_way: list[int], aligned_first: bool) -> None:
    kernel, _ = kernels()
    given = inputs()
    buffer = torch.randn(8 * 12 + 4)
    assert buffer.data_ptr() & 15 == 0
    places = [buffer[:96].view(8, 12), buffer[1:97].view(8, 12)][:: 1 if aligned_first else -1]
    for count, residual in enumerate(places, 1):
        for _ in range(4):
            assert same(kernel(**{**given, "residual": residual}), kernel, {**given, "residual": residual})
        assert len(long_way) == count


def test_choices_are_made_anew_after_forget(long_way: list[int]) -> None:
    program, plan = kernels()
    given = inputs()
    for _ in range(3):
        program(**given)
        plan(*given.values(), torch.ones(12, 4))
    before = len(long_way)
    coda.call.forget()
    program(**given)
    assert len(long_way) == before + 1
    plan(*given.values(), torch.ones(12, 4))
    assert len(long_way) == before + 3


# where PyTorch offers nothing ---------------------------------------------------------------------------------------


def test_without_guards_calls_are_found_by_their_kind(
    monkeypatch: pytest.MonkeyPatch, long_way: list[int], looked_up: list[int]
) -> None:
    monkeypatch.setattr(torch_private, "_trusted", lambda: False)
    program, plan = kernels()
    given = inputs()
    for _ in range(4):
        assert same(program(**given), program, given)
        plan(*given.values(), torch.ones(12, 4))
    assert len(long_way) == 3
    assert len(looked_up) == 8


@pytest.fixture
def untried() -> Iterator[None]:
    """Guards are tried out again, and after the test once more."""
    torch_private._tried.clear()
    yield
    torch_private._tried.clear()


@pytest.mark.parametrize("answer", [True, False, "missing", "another signature"])
def test_guards_that_do_not_tell_apart_are_not_used(
    monkeypatch: pytest.MonkeyPatch, untried: None, answer: object
) -> None:
    class Guards:
        def __init__(self, *tensors: Any, **sizes: Any) -> None:
            if answer == "another signature":
                raise TypeError("TensorGuards: unexpected keyword")

        def check(self, *tensors: Any) -> object:
            return answer

    if answer == "missing":
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    else:
        monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", Guards)
    assert torch_private.alike([torch.ones(3)]) is None
    kernel, _ = kernels()
    given = inputs()
    for _ in range(3):
        assert same(kernel(**given), kernel, given)


def test_guards_are_used_with_this_pytorch(untried: None) -> None:
    check = torch_private.alike([torch.ones(3)])
    assert check is not None
    assert check(torch.zeros(3))
    assert not check(torch.zeros(4))


# backends with a shorter way ----------------------------------------------------------------------------------------


class Short(Reference):
    """A backend whose launches that are alike are one function."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.launched: list[str] = []

    def launch(self, artifact: Any, tensors: Any) -> None:
        self.launched.append("general")
        super().launch(artifact, tensors)

    def straight(self, artifact: Any, tensors: Any, names: Any) -> Callable[..., None]:
        self.asked.append(tuple(names))
        always = {name: x for name, x in tensors.items() if name not in names}

        def launch(*values: Any) -> None:
            self.launched.append("straight")
            Reference.launch(self, artifact, {**always, **dict(zip(names, values, strict=True))})

        return launch


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    backend = Short()
    monkeypatch.setattr(coda.call, "choose", lambda *args: (backend, backend.default_schedule(*args[:2])))
    return backend


def test_the_shorter_way_of_a_backend_is_taken(short: Short) -> None:
    assert isinstance(short, registry.Straight)
    assert not isinstance(Reference(), registry.Straight)
    program, plan = kernels()
    given = inputs()
    for _ in range(4):
        assert same(program(**given), program, given)
    assert short.asked == [("a", "b", "residual", "gamma", "out.h", "out.q", "out.rstd")]
    assert short.launched == ["general", "general", "straight", "straight"]
    h = torch.empty(8, 12)
    for _ in range(3):
        h.fill_(7)
        assert same(program(**given, out={"h": h}), program, given)
    assert short.asked[1] == ("a", "b", "residual", "gamma", "out.h", "out.q", "out.rstd")
    assert short.launched[-1] == "straight"
    short.launched.clear()
    arguments = {**{n: given[m] for n, m in zip(("y", "w_o"), "ab", strict=True)}, "w_1": torch.ones(12, 4)}
    arguments |= {"residual": given["residual"], "gamma": given["gamma"]}
    for _ in range(3):
        assert same(plan(**arguments), plan, arguments)
    assert short.launched == ["general"] * 4 + ["straight"] * 2


def test_a_backend_may_have_no_shorter_way_for_a_launch(short: Short, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Short, "straight", lambda self, artifact, tensors, names: None)
    kernel, _ = kernels()
    given = inputs()
    for _ in range(4):
        assert same(kernel(**given), kernel, given)
    assert short.launched == ["general"] * 4


def test_what_was_found_in_an_odd_moment_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([False, False, True])
    monkeypatch.setattr(torch_private, "_tried", [])
    monkeypatch.setattr(torch_private, "_tells_apart", lambda: next(found))
    assert [torch_private._trusted() for _ in range(5)] == [False, False, True, True, True]
    monkeypatch.setattr(torch_private, "_tried", [])
    monkeypatch.setattr(torch_private, "_tells_apart", lambda: False)
    assert not any(torch_private._trusted() for _ in range(20))
    assert len(torch_private._tried) == torch_private.TRIES


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_guards_are_trusted_whatever_the_default_dtype_is(dtype: torch.dtype) -> None:
    torch_private._tried.clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch_private.usable()
    finally:
        torch.set_default_dtype(before)
        torch_private._tried.clear()
