"""Warm calls: what is not done again, what is looked at every time, and that nothing waits for a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import coda
import coda.call
from coda import errors, tune
from coda.backends.reference import Reference
from coda.primitives import ColVector, RowVector, Scalar, Tile, row_mean, row_sum, rsqrt

pytestmark = pytest.mark.interp


@coda.epilogue
def residual_rms(acc, residual: Tile, gamma: RowVector, *, eps: float = 1e-6):
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


@coda.epilogue
def scaled(acc, rstd: ColVector):
    return {"z": acc * rstd}


@coda.plan
def two_gemms(y, w_o, residual, gamma, w_1, *, eps: float = 1e-6):
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    return {"h": r.h, "z": scaled(r.q, w_1, rstd=r.rstd * 2.0).z}


@coda.pointwise
def shifted(x: Tile, s: Scalar, v: ColVector):
    return {"y": x + s, "t": row_sum(x * v)}


@coda.plan
def part(x, v, n: int, s: float):
    return {"y": shifted(x[:, :n], s, v).y}


def inputs(m: int = 8, n: int = 12, k: int = 16) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(m)
    make = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    return (make(m, k), make(k, n)), {"residual": make(m, n), "gamma": make(n)}


def everything() -> tuple[torch.Tensor, ...]:
    (a, b), named = inputs()
    return a, b, named["residual"], named["gamma"], torch.ones(12, 4)


@pytest.fixture
def no_checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it when what follows must be warm: the long way raises."""

    def close() -> None:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("checked again")

        monkeypatch.setattr(coda.call, "bind", refused)
        monkeypatch.setattr(coda.call, "choose", refused)

    return close


# what is not done again ---------------------------------------------------------------------------------------------


def test_a_call_like_an_earlier_one_is_not_checked(no_checks: Any) -> None:
    (a, b), named = inputs()
    first = residual_rms(a, b, **named, eps=0.5)
    no_checks()
    for _ in range(2):
        again = residual_rms(a.clone(), b.clone(), **named, eps=0.5)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    other = residual_rms(a, b, **named, eps=4.0)
    assert torch.allclose(other.rstd, rsqrt_of(first.h, 4.0))


def rsqrt_of(h: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(h.square().mean(1) + eps)


def test_a_plan_like_an_earlier_one_is_not_checked(no_checks: Any) -> None:
    args = everything()
    first = two_gemms(*args, eps=1e-6)
    exact = two_gemms.reference(*args, dtype=torch.float32)
    assert all(torch.allclose(x, exact[name], atol=1e-5) for name, x in first._asdict().items())
    no_checks()
    assert all(torch.equal(x, y) for x, y in zip(first, two_gemms(*args, eps=1e-6), strict=True))
    doubled = two_gemms(args[0] * 2, args[1], args[2] * 2, *args[3:], eps=4.0)
    exact = two_gemms.reference(args[0] * 2, args[1], args[2] * 2, *args[3:], eps=4.0, dtype=torch.float32)
    assert all(torch.allclose(x, exact[name], atol=1e-5) for name, x in doubled._asdict().items())


def test_writing_into_given_tensors_is_warm_too(no_checks: Any) -> None:
    (a, b), named = inputs()
    h, rstd = torch.empty(8, 12), torch.empty(8)
    expected = residual_rms(a, b, **named)
    residual_rms(a, b, **named, out={"h": h, "rstd": rstd})
    no_checks()
    h.fill_(7)
    result = residual_rms(a, b, **named, out={"h": h, "rstd": rstd})
    assert result.h is h
    assert result.rstd is rstd
    assert all(torch.equal(x, y) for x, y in zip(result, expected, strict=True))


def test_in_place_of_a_tile_is_warm_too(no_checks: Any) -> None:
    (a, b), named = inputs()
    expected = residual_rms(a, b, **named)
    for attempt in range(3):
        residual = named["residual"].clone()
        result = residual_rms(a, b, residual=residual, gamma=named["gamma"], out={"h": residual})
        assert result.h is residual
        assert all(torch.equal(x, y) for x, y in zip(result, expected, strict=True))
        if attempt == 0:
            no_checks()


def test_a_new_choice_is_asked_for_after_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    (a, b), named = inputs()
    residual_rms(a, b, **named)
    two_gemms(*everything())
    asked = []
    choose = tune.choose
    monkeypatch.setattr(coda.call, "choose", lambda *args: asked.append(1) or choose(*args))
    residual_rms(a, b, **named)
    two_gemms(*everything())
    assert not asked
    coda.call.forget()
    residual_rms(a, b, **named)
    two_gemms(*everything())
    assert len(asked) == 3


def test_autograd_hears_of_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "launch", lambda self, artifact, tensors: None)  # as a kernel, it tells nobody
    (a, b), named = inputs()
    h = torch.ones(8, 12)
    for _ in range(2):
        wanting = torch.ones(8, 12, requires_grad=True)
        saves_h = wanting * h
        with torch.no_grad():
            residual_rms(a, b, **named, out={"h": h})
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saves_h.sum().backward()
        h = torch.ones(8, 12)
    with torch.inference_mode():
        residual_rms(a, b, **named, out={"h": torch.ones(8, 12)})


def test_autograd_hears_nothing_of_a_call_that_was_refused() -> None:
    (a, b), named = inputs()
    for warm in (False, True):
        if warm:
            residual_rms(a, b, **named, out={"h": torch.ones(8, 12), "q": torch.ones(8, 12)})
        wanting, h = torch.ones(8, 12, requires_grad=True), torch.ones(8, 12)
        saves_h = wanting * h
        for bad in (h, torch.ones(8, 11), "no tensor"):
            with pytest.raises(errors.CallError):
                residual_rms(a, b, **named, out={"h": h, "q": bad})
        saves_h.sum().backward()
        assert wanting.grad is not None


# what makes another kind of call ------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["shape", "stride", "dtype", "alignment", "operand type", "out"])
def test_another_kind_of_call_is_checked(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    x, s, v = torch.randn(8, 12), 2.0, torch.randn(8)
    shifted(x, s, v)
    bound = []
    bind = coda.call.bind
    monkeypatch.setattr(coda.call, "bind", lambda *args: bound.append(1) or bind(*args))
    shifted(x, s, v)
    assert not bound
    options: dict[str, Any] = {}
    if change == "shape":
        x, v = torch.randn(6, 12), torch.randn(6)
    elif change == "stride":
        x = torch.randn(12, 8).mT
    elif change == "dtype":
        x = x.half()
    elif change == "alignment":
        x = torch.randn(8 * 12 + 1)[1:].view(8, 12)
    elif change == "operand type":
        s = torch.tensor(2.0)
    elif change == "out":
        options["out"] = {"y": torch.empty(8, 12)}
    shifted(x, s, v, **options)
    shifted(x, s, v, **options)
    assert len(bound) == 1


def test_a_number_that_decides_a_size_is_looked_at() -> None:
    x, v = torch.randn(8, 12), torch.ones(8)
    for n in (4, 8, 4, 12):
        for s in (1.0, 3.0):
            assert torch.equal(part(x, v, n, s).y, x[:, :n] + s)
    with pytest.raises(errors.ShapeMismatch):
        part(x, v, 13, 1.0)


def test_a_number_in_a_tensor_that_decides_a_size_is_looked_at() -> None:
    x, v = torch.randn(8, 12), torch.ones(8)
    for n in (4, 8, 4, 12):
        y = part(x, v, torch.tensor(n), 1.0).y
        assert y.shape == (8, n)
        assert torch.equal(y, x[:, :n] + 1.0)
    changing = torch.tensor(4)
    assert part(x, v, changing, 1.0).y.shape == (8, 4)
    changing.fill_(8)
    assert part(x, v, changing, 1.0).y.shape == (8, 8)


def test_a_number_that_decides_no_size_makes_no_other_kind(no_checks: Any) -> None:
    x, v = torch.randn(8, 12), torch.ones(8)
    part(x, v, 4, 1.0)
    part(x, v, 4, s=torch.tensor(1.0))
    no_checks()
    assert torch.equal(part(x, v, 4, 3.0).y, x[:, :4] + 3.0)
    assert torch.equal(part(x, v, 4, s=torch.tensor(5.0)).y, x[:, :4] + 5.0)


def test_a_gradient_is_never_dropped_by_a_warm_call() -> None:
    args = everything()
    two_gemms(*args)
    wanting = args[0].clone().requires_grad_()
    for _ in range(2):
        with pytest.raises(errors.NotDifferentiable):
            two_gemms(wanting, *args[1:])
    with torch.no_grad():
        two_gemms(wanting, *args[1:])
    with pytest.raises(errors.NotDifferentiable):
        two_gemms(wanting, *args[1:])


def test_a_negated_view_is_read_as_what_it_means() -> None:
    z = torch.complex(torch.randn(8, 12), torch.randn(8, 12))
    plain, negated = z.imag, z.conj().imag
    assert negated.is_neg()
    assert negated.stride() == plain.stride()
    v = torch.ones(8)
    seen = []

    class Looking(Reference):
        def launch(self, artifact: Any, tensors: Any) -> None:
            seen.append(tensors["x"].is_neg())
            super().launch(artifact, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coda.call, "choose", lambda *args: (Looking(), Looking().default_schedule(*args[:2])))
        coda.call.forget()
        assert torch.equal(shifted(plain, 0.0, v).y, plain)
        assert torch.equal(shifted(negated, 0.0, v).y, -plain)
    coda.call.forget()
    assert seen == [False, False]


# where tensors lie to each other is looked at every time ------------------------------------------------------------


def test_a_warm_call_still_refuses_an_overlap() -> None:
    (a, b), named = inputs(8, 12, 12)
    buffer = torch.zeros(3 * 8 * 12)
    apart, touching = buffer[:96].view(8, 12), buffer[96:192].view(8, 12)
    for _ in range(2):
        residual_rms(a, b, residual=touching, gamma=named["gamma"], out={"h": apart})
    with pytest.raises(errors.OverlappingOutput, match="residual"):
        residual_rms(a, b, residual=touching, gamma=named["gamma"], out={"h": buffer[48:144].view(8, 12)})
    with pytest.raises(errors.OverlappingOutput, match="out='h' shares memory with a"):
        residual_rms(apart, b, residual=touching, gamma=named["gamma"], out={"h": apart})
    residual_rms(a, b, residual=touching, gamma=named["gamma"], out={"h": apart})


def test_a_warm_call_still_refuses_outputs_that_overlap() -> None:
    (a, b), named = inputs()
    buffer = torch.zeros(3 * 8 * 12)
    first, second = buffer[:96].view(8, 12), buffer[96:192].view(8, 12)
    for _ in range(2):
        residual_rms(a, b, **named, out={"h": first, "q": second})
    for bad in (first, buffer[4:100].view(8, 12), buffer[95 + 1 - 4 : 188].view(8, 12)):
        with pytest.raises(errors.OverlappingOutput):
            residual_rms(a, b, **named, out={"h": first, "q": bad})


def test_two_outputs_may_not_both_be_one_tile() -> None:
    (a, b), named = inputs()
    residual = named["residual"]
    residual_rms(a, b, **named, out={"h": torch.empty(8, 12), "q": torch.empty(8, 12)})
    with pytest.raises(errors.OverlappingOutput):
        residual_rms(a, b, **named, out={"h": residual, "q": residual})


# nothing waits ------------------------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """What PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_warm_call_allocates_and_launches_and_asks_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []
    monkeypatch.setattr(Reference, "launch", lambda self, artifact, tensors: launches.append(artifact.program.name))
    (a, b), named = inputs()
    x, s, v = torch.randn(8, 12), torch.tensor(2.0), torch.randn(8)
    y, h = torch.empty(8, 12), torch.empty(8, 12)
    calls = {
        "aten::empty_strided aten::empty_strided aten::empty_strided": lambda: residual_rms(a, b, **named),
        "aten::empty_strided aten::empty_strided": lambda: residual_rms(a, b, **named, out={"h": h}),
        "aten::empty_strided": lambda: shifted(x, s, v, out={"y": y}),  # a number on the device stays there
        "": lambda: shifted(x, s, v, out={"y": y, "t": t}),
    }
    t = torch.empty(8)
    for expected, call in calls.items():
        call()
        launches.clear()
        with Seen() as seen:
            call()
        assert " ".join(seen.operations) == expected
        assert len(launches) == 1


def test_a_warm_plan_reads_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reference, "launch", lambda self, artifact, tensors: None)
    args = everything()
    two_gemms(*args)
    with Seen() as seen:
        two_gemms(*args)
    assert "aten::_local_scalar_dense" not in seen.operations
    assert seen.operations.count("aten::empty_strided") == 4
    assert not [name for name in seen.operations if name.startswith("coda::")]
