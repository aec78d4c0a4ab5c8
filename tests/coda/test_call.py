"""Calls: what is bound, what is refused before anything is launched, what never happens to the caller's tensors."""

from __future__ import annotations

import collections
import copy
import inspect
import logging

import pytest
import torch

import coda
from coda import Schedule, binding, errors
from coda.backends import registry
from coda.primitives import ColVector, RowVector, Scalar, Tile, col_sum, pair, row_sum, unpair
from coda.testing import Guarded, as_bytes, poisoned, unchanged

pytestmark = pytest.mark.interp


@coda.epilogue
def add(acc, c: Tile, r: RowVector, v: ColVector):
    return {"y": (acc + c) * r + v, "s": row_sum(acc)}


@coda.epilogue
def wide(acc, z: Tile(width=2)):
    return {"y": z * 2, "s": col_sum(acc)}


@coda.pointwise
def double(x: Tile, s: Scalar):
    return {"y": x * s}


def inputs(m=3, n=4, k=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(m * 100 + n * 10 + k)
    r = lambda *shape: torch.randn(*shape, generator=g).to(dtype)  # noqa: E731
    return (r(m, k), r(k, n)), {"c": r(m, n), "r": r(n), "v": r(m)}


def test_results_by_name_and_in_order():
    args, named = inputs()
    result = add(*args, **named)
    y, s = result
    assert y is result.y
    assert s is result.s
    assert torch.allclose(y, (args[0] @ args[1] + named["c"]) * named["r"] + named["v"][:, None])


def test_a_result_is_found_by_its_name_as_text():
    args, named = inputs()
    result = add(*args, **named)
    assert result["y"] is result.y
    assert result[0] is result.y
    assert result[-1] is result.s
    assert result[:1] == (result.y,)
    with pytest.raises(
        errors.UnknownResult, match=r"no result 'yy': expected y, s\n  hint: did you mean 'y'"
    ) as caught:
        result["yy"]
    assert isinstance(caught.value, KeyError)
    for name in ("_fields", "count"):  # attributes of a tuple are no results
        with pytest.raises(errors.UnknownResult):
            result[name]
    with pytest.raises(IndexError):
        result[2]


def test_making_a_result_costs_what_a_named_tuple_costs():
    """The warm path makes one per call."""
    assert add.result.__bases__ == (tuple,)
    plain = collections.namedtuple("AddResult", ("y", "s"))
    assert set(vars(add.result)) - set(vars(plain)) == {"__getitem__"}


def test_inputs_are_never_written():
    args, named = inputs()
    with unchanged([*args, *named.values()]):
        add(*args, **named)
        add(*args, **named)


def test_outputs_are_written_completely_and_nothing_else():
    args, named = inputs()
    y, s = Guarded((3, 4), torch.float32), Guarded((3,), torch.float32)
    result = add(*args, **named, out={"y": y.tensor, "s": s.tensor})
    assert result.y is y.tensor
    assert not result.y.isnan().any()
    assert not result.s.isnan().any()
    assert y.intact()
    assert s.intact()


def _layouts(x):
    yield "transposed", x.mT.contiguous().mT
    big = torch.empty(x.shape[0] * 2, x.shape[1] * 3)
    strided = big[::2, ::3]
    strided.copy_(x)
    yield "strided", strided
    buffer = torch.empty(x.numel() + 1)
    offset = buffer[1:].view(x.shape)
    offset.copy_(x)
    yield "offset", offset


@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_any_strides(which):
    (a, b), named = inputs()
    expected = add(a, b, **named).y
    tensors = {"a": a, "b": b, **named}
    for name, view in _layouts(tensors[which]):
        changed = {**tensors, which: view}
        assert torch.equal(add(changed.pop("a"), changed.pop("b"), **changed).y, expected), name


def test_broadcast_operands():
    (a, b), named = inputs()
    named["v"] = torch.tensor(2.0).expand(3)
    named["c"] = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 4)
    assert torch.equal(add(a, b, **named).y, add(a, b, **{k: t.contiguous() for k, t in named.items()}).y)


def test_autocast_does_not_lower_the_precision_of_a_kernel():
    a, b = torch.randn(32, 48), torch.randn(48, 24)
    plain = coda.matmul(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(coda.matmul(a, b), plain)
        assert (a @ b).dtype is torch.bfloat16


def test_exact_products():
    a = torch.tensor([[1.0, 2, 3]], dtype=torch.float16)
    b = torch.tensor([[1.0, 0], [2, -1], [0, 4]], dtype=torch.float16)
    assert coda.matmul(a, b).tolist() == [[5, 10]]


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_empty_sizes(m, n, k):
    args, named = inputs(m, n, k)
    result = add(*args, **named)
    assert result.y.shape == (m, n)
    assert result.s.shape == (m,)
    if k == 0:
        assert result.s.tolist() == [0.0] * m


# refused before anything runs ---------------------------------------------------------------------------------------


def refused(error, *words, change=None, drop=None, kernel=add, **extra):
    args, named = inputs()
    tensors = {"a": args[0], "b": args[1], **named}
    tensors.update(change or {})
    if drop:
        tensors.pop(drop)
    with pytest.raises(error) as caught:
        kernel(tensors.pop("a"), tensors.pop("b"), **tensors, **extra)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_names():
    refused(errors.UnknownOperand, "'d'", change={"d": torch.ones(3)})
    refused(errors.UnknownOperand, "did you mean", change={"cc": torch.ones(3)})
    refused(errors.MissingOperand, "r not given", "r: RowVector", "pass r=…", drop="r")
    refused(errors.UnknownOperand, "no output 'z'", out={"z": torch.ones(1)})
    (a, b), named = inputs()
    with pytest.raises(errors.MissingOperand, match=r"add: b not given: got a, c, r, v, .*\n  hint: pass b=…"):
        add(a, **named)
    with pytest.raises(errors.MissingOperand, match="add: a, b, c, r, v not given: got nothing"):
        add()
    with pytest.raises(errors.UnknownOperand, match="add: a was given twice"):
        add(a, b, a=a, **named)
    assert torch.equal(add(b=b, **named, a=a).y, add(a, b, **named).y)
    with pytest.raises(errors.UnknownOperand, match="twice"):
        double(torch.ones(1, 1), 2.0, x=torch.ones(1, 1))
    with pytest.raises(errors.UnknownOperand, match="too many"):
        double(torch.ones(1, 1), 2.0, 3.0)


def test_what_is_missing_is_shown_as_it_is_declared():
    @coda.epilogue
    def many(
        acc, z: Tile(width=2), h: RowVector(width=0.5), p: RowVector(period=8), i: ColVector(dtype="int"), s: Scalar
    ):
        even, odd = unpair(z)
        return {"y": pair(h, h) * even * odd * p * s + i}

    with pytest.raises(errors.MissingOperand) as caught:
        many(torch.ones(3, 5), torch.ones(5, 8))
    assert caught.value.expected == (
        'z: Tile(width=2), h: RowVector(width=0.5), p: RowVector(period=8), i: ColVector(dtype="int"), s: Scalar as well'
    )


def test_what_is_no_tensor_or_of_another_dtype_says_what_to_do():
    refused(errors.DTypeUnsupported, "list [0.0, 0.0", "...]", "torch.as_tensor(v)", change={"v": [0.0] * 40})
    refused(errors.DTypeUnsupported, "ndarray", "torch.as_tensor(v)", change={"v": torch.ones(4).numpy()})
    refused(errors.DTypeUnsupported, "convert it: c.float()", change={"c": torch.ones(3, 4).int()})
    for text in ("weights", b"weights"):
        refused(
            errors.DTypeUnsupported, "weights", "text is not read as numbers: pass a torch tensor", change={"c": text}
        )
    refused(
        errors.DTypeUnsupported,
        "float32 and float64",
        "b.to(a.dtype)",
        change={"b": torch.ones(5, 4).double(), "a": torch.ones(3, 5)},
    )


def test_what_was_given_is_shown_in_a_line():
    args, named = inputs()
    for x in ([[1 / 3] * 50] * 50, dict.fromkeys(range(50), "x" * 30), torch.ones(50, 50).numpy()):
        with pytest.raises(errors.DTypeUnsupported) as caught:
            add(*args, **{**named, "c": x})
        assert len(caught.value.got) < 70
        assert "\n" not in caught.value.got


def test_a_kernel_is_not_called_in_a_program():
    with pytest.raises(errors.DTypeUnsupported, match=r"@coda\.plan"):

        @coda.epilogue
        def twice(acc):
            return {"y": double(acc, 2.0).y}


def test_shapes():
    refused(errors.ShapeMismatch, "(3, 5)", "(3, 4)", change={"c": torch.ones(3, 5)})
    refused(errors.ShapeMismatch, "v.flatten()", change={"v": torch.ones(3, 1)})
    refused(errors.ShapeMismatch, "ColVector", change={"r": torch.ones(3)})
    refused(errors.ShapeMismatch, "RowVector", change={"v": torch.ones(4)})
    refused(errors.ShapeMismatch, "weight.mT", change={"b": torch.ones(4, 5)})
    refused(errors.ShapeMismatch, "not a matrix", "a.flatten(0, -2)", change={"a": torch.ones(2, 3, 5)})
    refused(errors.ShapeMismatch, "Tile(width=2)", change={"c": torch.ones(3, 8)})
    refused(errors.ShapeMismatch, "transposed: c.mT", change={"c": torch.ones(4, 3)})
    (a, b), _ = inputs()
    with pytest.raises(errors.ShapeMismatch, match="width=1"):
        wide(a, b, z=torch.ones(3, 4))


def test_dtypes():
    refused(errors.DTypeUnsupported, "one dtype", change={"b": torch.ones(5, 4, dtype=torch.float16)})
    refused(errors.DTypeUnsupported, "int64", change={"a": torch.ones(3, 5, dtype=torch.int64)})
    refused(errors.DTypeUnsupported, "bool", change={"c": torch.ones(3, 4, dtype=torch.bool)})
    refused(errors.DTypeUnsupported, "float64", change={"v": torch.ones(3, dtype=torch.float64)})
    refused(errors.DTypeUnsupported, "torch tensor", change={"c": [[1.0]]})
    refused(errors.DTypeUnsupported, "number", kernel=lambda a, b, **_: double(a, "2"))
    refused(errors.DTypeUnsupported, "out='y'", out={"y": torch.ones(3, 4, dtype=torch.float16)})
    refused(errors.ShapeMismatch, "out='y'", out={"y": torch.ones(4, 3)})


def test_devices():
    refused(errors.DeviceMismatch, "meta", change={"c": torch.ones(3, 4, device="meta")})


def test_gradients_are_never_dropped():
    refused(errors.NotDifferentiable, "kernel of its own", change={"c": torch.ones(3, 4, requires_grad=True)})
    (a, b), named = inputs()
    named["c"].requires_grad_()
    with torch.no_grad():
        add(a, b, **named)


def test_overlaps():
    (a, b), named = inputs(4, 4, 4)
    flat = torch.zeros(40)
    with pytest.raises(errors.OverlappingOutput, match="memory with a"):
        add(a, b, **named, out={"y": a})
    with pytest.raises(errors.OverlappingOutput, match="out='s'"):
        add(a, b, **named, out={"y": flat[:16].view(4, 4), "s": flat[15:19]})
    named["c"] = flat[:16].view(4, 4)
    with pytest.raises(errors.OverlappingOutput):
        add(a, b, **named, out={"y": flat[1:17].view(4, 4)})
    with pytest.raises(errors.OverlappingOutput, match="itself"):
        add(a, b, **named, out={"y": torch.zeros(4, 1).expand(4, 4)})
    named["c"].copy_(torch.randn(4, 4))
    expected = add(a, b, **named).y
    assert torch.equal(add(a, b, **named, out={"y": named["c"]}).y, expected)  # exactly a tile operand is fine


def test_a_size_that_does_not_pair():
    @coda.epilogue
    def half(acc):
        even, odd = coda.primitives.unpair(acc)
        return {"y": even * odd}

    with pytest.raises(errors.ShapeMismatch, match="even N"):
        half(torch.ones(2, 3), torch.ones(3, 5))


# backends -----------------------------------------------------------------------------------------------------------


def test_an_explicit_backend_never_falls_back(monkeypatch):
    args, named = inputs()
    with pytest.raises(errors.UnknownBackend, match=r"expected auto, reference, triton, cutedsl\n.*'reference'"):
        add(*args, **named, backend="referense")
    monkeypatch.setenv("CODA_BACKEND", "cuda")
    with pytest.raises(errors.SettingError, match="CODA_BACKEND"):
        add(*args, **named)


def test_the_choice_is_logged(caplog, monkeypatch):
    class Broken:
        name = "triton"

        def available(self):
            return registry.Support(False, "no device")

        def supports(self, program, problem):
            return registry.Support(True)

    from coda.problem import Problem
    from coda.tune import choose

    monkeypatch.setattr(registry, "get", lambda name: Broken() if name == "triton" else registry_get(name))
    with caplog.at_level(logging.DEBUG, "coda"):
        backend, _ = choose(add.program, Problem.example(add.program), "auto", None)
    assert backend.name == "reference"
    assert "no device" in caplog.text


registry_get = registry.get


def test_a_config_belongs_to_its_backend():
    args, named = inputs()
    with pytest.raises(errors.BadSchedule, match="another backend"):
        add(*args, **named, backend="reference", config=Schedule(backend="triton"))
    for backend in (None, "auto"):  # both leave it to the config
        config = Schedule(backend="reference")
        assert torch.equal(add(*args, **named, backend=backend, config=config).y, add(*args, **named).y)
        with pytest.raises(errors.BackendUnavailable, match="leave out config=") as caught:
            add(*args, **named, backend=backend, config=Schedule(backend="triton"))
        assert "backend 'triton'" in caught.value.what
    with pytest.raises(errors.BadSchedule, match="names no backend: got 'auto', expected reference"):
        add(*args, **named, config=Schedule(backend="auto"))
    for config in ("fast", {"tile_m": 64}):
        with pytest.raises(errors.BadSchedule, match="no schedule"):
            add(*args, **named, config=config)


def test_the_bytes_of_any_view():
    for x in (torch.ones(1, 4)[:, ::2][:, :1], torch.arange(6.0).view(2, 3).mT, torch.ones(()), torch.ones(0, 3)):
        assert as_bytes(x).numel() == 4 * x.numel()


def test_poison_shows_in_every_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        assert poisoned((2, 3), dtype).float().isnan().all()
    assert (poisoned((2,), torch.int64) != 0).all()


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 2), (0, 1), (3, 1)])
def test_an_output_that_overlaps_itself_is_refused(strides):
    (a, b), named = inputs(4, 4, 4)
    sliding = torch.zeros(40).as_strided((4, 4), strides)
    with pytest.raises(errors.OverlappingOutput, match=r"y.*itself"):
        add(a, b, **named, out={"y": sliding})
    with pytest.raises(errors.OverlappingOutput, match=r"y.*itself"):
        chained(*square(), out={"y": sliding})
    with pytest.raises(errors.OverlappingOutput, match=r"s.*itself"):
        add(a, b, **named, out={"s": torch.zeros(1).expand(4)})


@pytest.mark.parametrize(("shape", "strides"), [((4, 4), (1, 4)), ((4, 4), (9, 2)), ((4, 1), (1, 0)), ((1, 4), (0, 3))])
def test_an_output_of_any_other_strides_is_written(shape, strides):
    (a, b), named = inputs(*shape, 4)
    y = torch.zeros(80).as_strided(shape, strides)
    add(a, b, **named, out={"y": y})
    assert torch.equal(y, add(a, b, **named).y)


def test_an_output_that_wants_a_gradient_is_refused():
    (a, b), named = inputs(4, 4, 4)
    leaf = torch.zeros(4, 4, requires_grad=True)
    for y in (leaf, leaf * 1):
        for _ in range(2):
            with pytest.raises(errors.NotDifferentiable, match=r"(?s)out='y'.*kernel of its own"):
                add(a, b, **named, out={"y": y})
            with pytest.raises(errors.NotDifferentiable, match=r"(?s)out='y'.*kernel of its own"):
                chained(*square(), out={"y": y})
            with torch.no_grad():
                add(a, b, **named, out={"y": y})


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("int64", "int"),
        ("uint8", "int"),
        ("float16", "float"),
        ("float64", "float"),
        ("bool", None),
        ("complex64", None),
    ],
)
def test_what_a_kernel_is_specialised_for(dtype, held):
    v = torch.ones(3, dtype=getattr(torch, dtype))
    assert binding.held({"v": v, "s": 1.0}) == ({"v": held} if held else {})
    (a, b), named = inputs()
    program, given = add.of_call((a,), {"b": b, **named, "v": v})
    assert program.operand("v").dtype == (held or "float")
    assert set(given) == {"a", "b", "c", "r", "v"}
    plan, given = chained.of_call((a, b), {"v": v})
    assert plan.programs[0].operand("v").dtype == (held or "float")
    assert set(given) == {"x", "w", "v"}


# outputs and plans --------------------------------------------------------------------------------------------------


@coda.epilogue
def add_rows(acc, v: ColVector):
    return {"y": acc + v}


@coda.plan
def chained(x, w, v):
    first = add_rows(x, w, v=v)
    return {"y": first.y, "z": coda.matmul(first.y, w)}


def square(n=4):
    g = torch.Generator().manual_seed(n)
    return torch.randn(n, n, generator=g), torch.randn(n, n, generator=g), torch.randn(n, generator=g)


def test_a_plan_writes_into_out():
    expected = chained(*square())
    y, z = torch.full((4, 4), float("nan")), torch.full((4, 4), float("nan"))
    result = chained(*square(), out={"y": y, "z": z})
    assert result.y is y
    assert torch.equal(y, expected.y)
    assert torch.equal(z, expected.z)


def test_a_plan_refuses_a_bad_out_before_it_writes_a_good_one():
    x, w, v = square()
    good = torch.full((4, 4), 7.0)
    for bad, error in (
        ({"q": good}, errors.UnknownOperand),
        ({"z": [1.0]}, errors.DeviceMismatch),
        ({"z": torch.empty(4, 4, device="meta")}, errors.DeviceMismatch),
        ({"z": x}, errors.OverlappingOutput),
        ({"z": good}, errors.OverlappingOutput),
        ({"z": torch.empty(4, 5)}, errors.ShapeMismatch),
    ):
        with pytest.raises(error):
            chained(x, w, v, out={"y": good, **bad})
        assert bool((good == 7).all())


@pytest.mark.parametrize("out", [torch.ones(2, 2), [torch.ones(4, 4)], (), "y", 3], ids=repr)
def test_an_out_that_names_no_output_is_refused(out):
    args, named = inputs()
    for call in (lambda: add(*args, **named, out=out), lambda: chained(*square(), out=out)):
        with pytest.raises(errors.UnknownOperand, match=type(out).__name__) as caught:
            call()
        assert caught.value.hint == 'out={"v": tensor}'


@coda.plan
def cut(x, w, n: int, scale: float = 1.0):
    return {"y": coda.matmul(x[:, : n * 2 - 2], w), "s": double(coda.matmul(x, w.mT), scale).y}


@pytest.mark.parametrize(
    "n", ["3", None, 3.0, True, torch.tensor(3.0), torch.tensor(True), torch.tensor([3, 3])], ids=repr
)
def test_a_length_of_a_plan_is_an_int(n):
    x, w, _ = square()
    error = errors.ShapeMismatch if isinstance(n, torch.Tensor) and n.ndim else errors.DTypeUnsupported
    for call in (cut, cut.reference):
        for _ in range(2):  # also after a call that was fine
            with pytest.raises(error, match=r"cut: n: .*expected an int"):
                call(x, w, n)
            call(x, w, 3)
    assert torch.equal(cut(x, w, 3).y, cut(x, w, torch.tensor(3)).y)


@pytest.mark.parametrize("scale", ["2", None, True, torch.ones(2)], ids=repr)
def test_a_number_of_a_plan_is_one(scale):
    x, w, _ = square()
    with pytest.raises(
        errors.ShapeMismatch if isinstance(scale, torch.Tensor) else errors.DTypeUnsupported, match="scale"
    ):
        cut(x, w, 3, scale=scale)
    assert torch.equal(cut(x, w, 3, scale=2).s, cut(x, w, 3, scale=torch.tensor(2.0)).s)


def test_a_bound_that_only_a_call_knows_is_an_int_too():
    @coda.plan
    def half(x, w):
        return {"y": coda.matmul(x[:, : x.columns / 2], w)}

    x, w, _ = square()
    with pytest.raises(errors.DTypeUnsupported, match=r"half: a bound of \.slice: got float 2\.0"):
        half(x, w)


@pytest.mark.parametrize("backend", [3, 0, ["triton"], torch.ones(2)], ids=repr)
def test_a_backend_that_is_no_name_is_refused(backend):
    args, named = inputs()
    for call in (lambda: add(*args, **named, backend=backend), lambda: chained(*square(), backend=backend)):
        with pytest.raises(errors.UnknownBackend, match="triton"):
            call()


def test_an_output_is_nobodys_view():
    @coda.pointwise
    def same(x: Tile):
        return {"a1": x, "a2": x}

    x = torch.ones(2, 2, dtype=torch.float64)
    for out in (same.reference(x), same(x)._asdict()):
        out["a1"].zero_()
        assert out["a2"].sum() == 4
        assert x.sum() == 4


def test_warm_calls_see_new_values_and_new_kinds_of_call():
    (a, b), named = inputs()
    first = add(a, b, **named)
    a2 = a * 2
    second = add(a2, b, **named)
    assert second.y is not first.y
    assert torch.allclose(second.s, 2 * first.s)
    assert torch.equal(add(a, b, **named).y, first.y)
    with pytest.raises(errors.ShapeMismatch):
        add(a, b, **{**named, "v": torch.ones(4)})
    named["c"].requires_grad_()
    with pytest.raises(errors.NotDifferentiable):
        add(a, b, **named)


def test_debug_logs_the_choice(monkeypatch):
    import subprocess
    import sys

    code = (
        "import torch, coda\nfrom coda.primitives import Tile\n"
        "@coda.pointwise\ndef twice(x: Tile):\n    return {'y': x * 2}\ntwice(torch.ones(1, 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"CODA_DEBUG": "1", "PATH": "/usr/bin:/bin"},
    )
    assert "twice" in done.stderr
    assert "reference" in done.stderr


def test_what_a_call_takes_is_its_signature():
    @coda.epilogue
    def f(acc, gamma: RowVector, z: Tile, *, eps: float = 1e-6, twice: bool = False):
        return {"y": acc * gamma + z + eps}

    assert (
        str(inspect.signature(f)) == "(a, b, *, gamma, z, eps=1e-06, twice=False, backend=None, config=None, out=None)"
    )

    @coda.pointwise
    def g(x: Tile, v: ColVector, *, eps: float = 1e-6):
        return {"y": x * v + eps}

    assert str(inspect.signature(g)) == "(x, v, *, eps=1e-06, backend=None, config=None, out=None)"

    @coda.pointwise
    def h(x: Tile, *, s: Scalar = 2.0, y: Tile):
        return {"y": x * s + y}

    assert str(inspect.signature(h)) == "(x, *, s=2.0, y, backend=None, config=None, out=None)"


@pytest.mark.parametrize("option", [{"backend": "reference"}, {"config": Schedule()}, {"out": {"y": torch.ones(3, 4)}}])
def test_a_call_inside_a_plan_has_no_options(option):
    def f(a, b, c, r, v):
        return {"y": add(a, b, c=c, r=r, v=v, **option).y}

    with pytest.raises(errors.PlanError, match=f"add: {next(iter(option))} of a call inside a plan"):
        coda.plan(f)


def test_a_copy_of_a_kernel_is_the_kernel():
    for copied in (copy.copy(add), copy.deepcopy({"add": add})["add"]):
        assert copied is add


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"v": torch.ones(1)}, errors.ShapeMismatch, r"add: v: got \(1,\), expected \(3,\)"),
        ({"c": torch.ones(1, 4)}, errors.ShapeMismatch, r"add: c: got \(1, 4\), expected \(3, 4\)"),
        ({"a": [[1.0]]}, errors.DTypeUnsupported, r"add: a: got list \[\[1.0\]\], expected a torch tensor"),
        ({"r": None}, errors.DTypeUnsupported, r"add: r: got NoneType None, expected a torch tensor"),
    ],
)
def test_a_reference_takes_what_a_call_takes(change, error, said):
    (a, b), named = inputs()
    given = {"a": a, "b": b, **named, **change}
    for run in (add, add.reference, add.program.reference):
        with pytest.raises(error, match=said):
            run(**given)


def test_operands_go_by_name():
    (a, b), named = inputs()
    with pytest.raises(errors.UnknownOperand, match="pass operands by name"):
        add(a, b, named["c"], named["r"], named["v"])
