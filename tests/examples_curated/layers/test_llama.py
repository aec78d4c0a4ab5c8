"""The Llama layer as mathematics: outputs and every gradient equal plain PyTorch's in fp64, whatever the lengths."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import examples_curated
from coda import numerics
from coda.errors import CodaError, DTypeUnsupported, NotDifferentiable, ShapeMismatch
from coda.testing import unchanged
from examples_curated.layers import llama

pytestmark = pytest.mark.interp

SMALL = llama.Shape(width=48, ffn=40, heads=4, kv_heads=2, head=8)
SHAPES = {
    "grouped heads, attention narrower than the stream": SMALL,
    "as many heads of keys as of queries": llama.Shape(width=32, ffn=56, heads=4, kv_heads=4, head=8),
    "one head, odd lengths elsewhere": llama.Shape(width=7, ffn=5, heads=1, kv_heads=1, head=6, base=500.0),
}


def drawn(shape: llama.Shape, tokens: int, seed: int = 0) -> tuple[llama.Reference, list[Tensor], Tensor]:
    """A layer with gains that are not 1, its inputs, and positions that start again in the middle."""
    torch.manual_seed(seed)
    reference = llama.Reference(shape, dtype=torch.float64)
    with torch.no_grad():
        for name in llama.GAINS:
            getattr(reference, name).normal_(1, 0.3)
    inputs = [torch.randn(tokens, n, dtype=torch.float64, requires_grad=True) for n in (shape.width, shape.attention)]
    return reference, inputs, torch.arange(tokens) % max(1, tokens // 2 + 1) + 3


def results(module: Any, inputs: list[Tensor], *rope: Tensor, given: list[Tensor]) -> dict[str, Tensor]:
    """Outputs and gradients by name, those of a `Layer` in the layout of `Reference`."""
    outputs = module(*inputs, *rope)
    names = ["x0", "y0", *(n for n, _ in module.named_parameters())]
    found = torch.autograd.grad(outputs, [*inputs, *module.parameters()], given)
    gradients = dict(zip(names, found, strict=True))
    if isinstance(module, llama.Layer):
        gradients = module.for_reference(gradients)
    return {"x2": outputs[0].detach(), "qkv": outputs[1].detach(), **{f"d {n}": x for n, x in gradients.items()}}


@pytest.mark.parametrize("tokens", [1, 2, 37, 130])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_outputs_and_all_gradients_are_those_of_plain_pytorch(shape: llama.Shape, tokens: int) -> None:
    reference, inputs, position = drawn(shape, tokens)
    layer = llama.Layer.from_reference(reference)
    given = [torch.randn(tokens, n, dtype=torch.float64) for n in (shape.width, shape.parameters["qkv"][0])]
    with unchanged([*inputs, *layer.parameters(), *given]):
        found = results(layer, inputs, position, given=given)
    expected = results(reference, inputs, *llama.rope(shape, position, torch.float64), given=given)
    assert len(expected) == 10
    for name, value in expected.items():
        assert numerics.exact(found[name], value).ok, name


def test_gradients_are_those_of_finite_differences() -> None:
    shape = llama.Shape(width=6, ffn=5, heads=2, kv_heads=1, head=4)
    reference, inputs, position = drawn(shape, 3)
    layer = llama.Layer.from_reference(reference, retain_graph=True)

    def call(x0: Tensor, y0: Tensor, *parameters: Tensor) -> Any:
        names = [n for n, _ in layer.named_parameters()]
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x0, y0, position))

    assert torch.autograd.gradcheck(call, [*inputs, *layer.parameters()])


@pytest.mark.parametrize("which", [0, 1])
def test_a_gradient_may_arrive_for_one_output_alone(which: int) -> None:
    reference, inputs, position = drawn(SMALL, 9)
    layer = llama.Layer.from_reference(reference)
    expected = torch.autograd.grad(reference(*inputs, *llama.rope(SMALL, position, torch.float64))[which].sum(), inputs)
    found = torch.autograd.grad(layer(*inputs, position)[which].sum(), inputs)
    assert all(numerics.exact(a, b).ok for a, b in zip(found, expected, strict=True))


def test_it_trains_as_a_module_does() -> None:
    reference, inputs, position = drawn(SMALL, 9)
    layer = llama.Layer.from_reference(reference)
    for module, rope in ((layer, (position,)), (reference, llama.rope(SMALL, position, torch.float64))):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            sum(x.square().mean() for x in module(*inputs, *rope)).backward()
            optimizer.step()
    trained = layer.for_reference(layer.state_dict())
    assert all(numerics.exact(trained[n], x).ok for n, x in reference.state_dict().items())


def test_neither_gained_norms_nor_the_activation_are_kept() -> None:
    """Of M = 61 rows: x1, x2, qkv and twice the width of the activation, beside y0, and four numbers."""
    reference, inputs, position = drawn(SMALL, 61)
    layer, kept = llama.Layer.from_reference(reference), dict[int, Tensor]()

    def keep(x: Tensor) -> Tensor:
        kept[x.data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        layer(*inputs, position)
    columns = sorted(x.shape[1] for x in kept.values() if x.ndim == 2 and x.shape[0] == 61)
    assert columns == sorted((SMALL.width, SMALL.width, SMALL.attention, 2 * SMALL.ffn, SMALL.parameters["qkv"][0]))
    vectors = [x for x in kept.values() if x.shape == (61,) and x.is_floating_point()]
    assert len(vectors) == 2


@pytest.mark.parametrize("retain", [False, True])
def test_a_second_backward_is_right_or_refused(retain: bool) -> None:
    reference, inputs, position = drawn(SMALL, 9)
    layer = llama.Layer.from_reference(reference, retain_graph=retain)
    total = sum(x.square().sum() for x in layer(*inputs, position))
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    if retain:
        again = torch.autograd.grad(total, inputs)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    else:
        with pytest.raises(NotDifferentiable, match=r"(?s)a second backward pass.*retain_graph=True"):
            torch.autograd.grad(total, inputs)
        fresh = sum(x.square().sum() for x in layer(*inputs, position))
        assert all(torch.equal(a, b) for a, b in zip(once, torch.autograd.grad(fresh, inputs), strict=True))


@pytest.mark.parametrize("retain", [False, True])
def test_the_gradient_of_the_pre_activations_takes_their_place(retain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, inputs, position = drawn(SMALL, 9)
    kernel, places = llama.swiglu_backward, list[bool]()

    def called(*operands: Any, z: Tensor, **named: Any) -> Any:
        found = kernel(*operands, z=z, **named)
        places.append(found.dz.data_ptr() == z.data_ptr())
        return found

    monkeypatch.setattr(llama, "swiglu_backward", called)
    layer = llama.Layer.from_reference(reference, retain_graph=retain)
    sum(x.square().sum() for x in layer(*inputs, position)).backward()
    assert places == [not retain]


def test_of_two_threads_one_is_refused_or_both_are_right() -> None:
    reference, inputs, position = drawn(SMALL, 64)
    layer = llama.Layer.from_reference(reference)
    for _ in range(10):
        total = sum(x.square().sum() for x in layer(*inputs, position))
        right = torch.autograd.grad(sum(x.square().sum() for x in layer(*inputs, position)), inputs)
        together, found = threading.Barrier(2), list[Any]()

        def backward(total: Tensor = total, together: Any = together, found: list[Any] = found) -> None:
            together.wait()
            try:
                found.append(torch.autograd.grad(total, inputs, retain_graph=True))
            except NotDifferentiable as error:
                found.append(error)

        threads = [threading.Thread(target=backward) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = [x for x in found if isinstance(x, tuple)]
        assert len(values) == 1
        assert all(torch.equal(a, b) for a, b in zip(values[0], right, strict=True))


def test_what_hooks_hold_is_not_written_over() -> None:
    """Two forward passes whose saved tensors are shared, as hooks that keep equal ones once do."""
    reference, inputs, position = drawn(SMALL, 9)
    layer, shared = llama.Layer.from_reference(reference), dict[Any, Tensor]()
    wanted = [*inputs, layer.down]

    def once() -> Tensor:
        return sum(x.square().sum() for x in layer(*inputs, position))

    right = torch.autograd.grad(once() + once(), wanted)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: shared.setdefault((x.shape, float(x.detach().double().sum())), x), lambda x: x
    ):
        total = once() + once()
    found = torch.autograd.grad(total, wanted, retain_graph=True)
    assert all(numerics.exact(a, b).ok for a, b in zip(found, right, strict=True))
    again = torch.autograd.grad(total, wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_a_gradient_is_not_differentiated_again_in_silence() -> None:
    reference, inputs, position = drawn(SMALL, 9)
    out = llama.Layer.from_reference(reference)(*inputs, position)[0]
    with pytest.raises(NotDifferentiable, match=r"(?s)differentiated again.*create_graph"):
        torch.autograd.grad(out.sum(), inputs[0], create_graph=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_is_compiled_whole(backend: str) -> None:
    reference, inputs, position = drawn(SMALL, 9)
    layer = llama.Layer.from_reference(reference)
    wanted = [*inputs, *layer.parameters()]
    plain = torch.autograd.grad(sum(x.square().sum() for x in layer(*inputs, position)), wanted)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    found = torch.autograd.grad(sum(x.square().sum() for x in compiled(*inputs, position)), wanted)
    assert all(numerics.exact(a, b).ok for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_under_autocast_it_computes_in_that_dtype(given: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = llama.Layer(SMALL)
    x0, y0, position = torch.randn(5, 48, requires_grad=True), torch.randn(5, 32).to(given), torch.arange(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x0, y0, position)
    lower = llama.Layer(SMALL, dtype=torch.bfloat16)
    lower.load_state_dict(layer.state_dict())
    expected = lower(x0.bfloat16(), y0.bfloat16(), position)
    assert all(a.dtype is torch.bfloat16 and torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    gradients = torch.autograd.grad(sum(x.float().square().sum() for x in found), [x0, *layer.parameters()])
    assert {g.dtype for g in gradients} == {torch.float32}


def test_under_autocast_the_stream_is_lowered_which_plain_pytorch_keeps() -> None:
    reference, position = llama.Reference(SMALL), torch.arange(5)
    layer, inputs = llama.Layer.from_reference(reference), (torch.randn(5, 48), torch.randn(5, 32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = reference(*inputs, *llama.rope(SMALL, position, torch.bfloat16))
        found = layer(*inputs, position)
    assert [x.dtype for x in plain] == [torch.float32, torch.bfloat16]
    assert [x.dtype for x in found] == [torch.bfloat16, torch.bfloat16]


def test_autocast_leaves_fp64_as_it_is() -> None:
    reference, inputs, position = drawn(SMALL, 5)
    layer = llama.Layer.from_reference(reference)
    expected = layer(*inputs, position)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(*inputs, position)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lowered", [False, True], ids=["forward outside", "forward under autocast"])
def test_gradients_do_not_depend_on_where_backward_is_called(dtype: torch.dtype, lowered: bool) -> None:
    torch.manual_seed(0)
    layer = llama.Layer(SMALL, dtype=dtype, retain_graph=True)
    x0, y0 = (torch.randn(37, n, dtype=dtype, requires_grad=True) for n in (48, 32))
    autocast = torch.autocast("cpu", dtype=torch.float16 if dtype is torch.bfloat16 else torch.bfloat16)
    with autocast if lowered else contextlib.nullcontext():
        total = sum(x.float().square().sum() for x in layer(x0, y0, torch.arange(37)))
    wanted = [x0, y0, *layer.parameters()]
    outside = torch.autograd.grad(total, wanted, retain_graph=True)
    with autocast:
        inside = torch.autograd.grad(total, wanted)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x0": torch.ones(5, 48, dtype=torch.int64)}, r"layer: x0: got torch.int64, expected torch.float32"),
        ({"y0": torch.ones(5, 32, dtype=torch.bool)}, r"layer: y0: got torch.bool, expected torch.float32"),
        ({"x0": torch.ones(5, 48, dtype=torch.complex64)}, r"layer: x0: got torch.complex64"),
        (
            {"x0": torch.ones(5, 48).double()},
            r"(?s)layer: x0: got torch.float64, expected torch.float32.*x0.to\(layer.out.dtype\)",
        ),
        ({"y0": torch.ones(5, 32).double()}, r"layer: y0: got torch.float64, expected torch.float32"),
        ({"x0": torch.ones(5, 48).to(torch.float8_e5m2)}, r"layer: x0: got torch.float8_e5m2"),
    ],
)
def test_what_autocast_does_not_cast_is_named_as_it_was_given(change: dict[str, Tensor], said: str) -> None:
    given = {"x0": torch.randn(5, 48), "y0": torch.randn(5, 32), "position": torch.arange(5), **change}
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(DTypeUnsupported, match=said):
        llama.Layer(SMALL)(**given)


def test_an_fp64_layer_beside_fp32_is_named_under_autocast() -> None:
    layer = llama.Layer(SMALL, dtype=torch.float64)
    with (
        torch.autocast("cpu"),
        pytest.raises(DTypeUnsupported, match=r"(?s)layer: out: got torch.float64.*layer.float"),
    ):
        layer(torch.randn(5, 48), torch.randn(5, 32), torch.arange(5))


def test_it_runs_without_memory() -> None:
    layer = llama.Layer(SMALL, device="meta")
    out = layer(torch.randn(5, 48, device="meta"), torch.randn(5, 32, device="meta"), torch.arange(5, device="meta"))
    sum(x.sum() for x in out).backward()
    assert layer.down.grad.shape == layer.down.shape
    assert "width=48, ffn=40" in repr(layer)


def test_values_keep_their_columns_and_fp32_runs_too() -> None:
    torch.manual_seed(0)
    reference = llama.Reference(SMALL)
    layer = llama.Layer.from_reference(reference, backend="reference")
    x0, y0, position = torch.randn(5, 48), torch.randn(5, 32), torch.arange(5)
    x2, qkv = layer(x0, y0, position)
    plain = reference(x0, y0, *llama.rope(SMALL, position, torch.float32))
    for found, expected in zip((x2, qkv), plain, strict=True):
        assert found.dtype is torch.float32
        assert (found - expected).norm().item() < 1e-5 * expected.norm().item()
    moved = layer(x0, y0, position + 7)[1]
    assert torch.equal(moved[:, SMALL.turned :], qkv[:, SMALL.turned :])
    assert not torch.allclose(moved[:, : SMALL.turned], qkv[:, : SMALL.turned])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"x0": torch.randn(5, 47)}, ShapeMismatch, r"x0: got \(5, 47\), expected \(5, 48\)"),
        ({"y0": torch.randn(4, 32)}, ShapeMismatch, r"y0: got \(4, 32\), expected \(5, 32\)"),
        ({"x0": torch.randn(5, 2, 24)}, ShapeMismatch, r"(?s)x0.*flatten\(0, -2\)"),
        ({"position": [0, 1, 2, 3, 4]}, DTypeUnsupported, r"(?s)position.*as_tensor"),
        ({"x0": torch.tensor(1.0)}, ShapeMismatch, "x0"),
        ({"position": torch.arange(4)}, ShapeMismatch, "position"),
        ({"position": torch.arange(5.0)}, DTypeUnsupported, "position"),
        (
            {"y0": torch.randn(5, 32, dtype=torch.float64)},
            DTypeUnsupported,
            "y0: got torch.float64, expected torch.float32",
        ),
        (
            {"x0": torch.ones(5, 48).double()},
            DTypeUnsupported,
            r"y0: got torch.float32, expected torch.float64, as x0 has",
        ),
        (
            {"x0": torch.ones(5, 48, dtype=torch.int64)},
            DTypeUnsupported,
            r"(?s)layer: x0: got torch.int64.*x0.to\(layer.out.dtype\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Tensor], error: type[CodaError], said: str) -> None:
    given = {"x0": torch.randn(5, 48), "y0": torch.randn(5, 32), "position": torch.arange(5), **change}
    with pytest.raises(error, match=said):
        llama.Layer(SMALL)(**given)


@pytest.mark.parametrize("lengths", [(48, 40, 4, 3, 8), (48, 40, 4, 2, 7), (0, 40, 4, 2, 8), (48, 40, 4, 0, 8)])
def test_lengths_that_no_layer_has_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match="a layer's lengths"):
        llama.Layer(llama.Shape(*lengths))


def test_a_layer_is_no_example() -> None:
    assert "llama" not in examples_curated.catalog()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("tokens", [256, 199])
def test_on_a_gpu_it_is_as_right_as_plain_pytorch(tokens: int) -> None:
    shape = llama.Shape(width=256, ffn=344, heads=4, kv_heads=2, head=64)
    reference, inputs, position = drawn(shape, tokens)
    reference, position = reference.to("cuda", torch.bfloat16), position.cuda()
    inputs = [x.detach().to("cuda", torch.bfloat16).requires_grad_() for x in inputs]
    given = [torch.randn(tokens, n, device="cuda").bfloat16() for n in (shape.width, shape.parameters["qkv"][0])]
    plain = results(reference, inputs, *llama.rope(shape, position, torch.bfloat16), given=given)
    fused = results(llama.Layer.from_reference(reference), inputs, position, given=given)
    exact = results(
        reference.double(),
        [x.detach().double().requires_grad_() for x in inputs],
        *llama.rope(shape, position, torch.float64),
        given=[x.double() for x in given],
    )
    for name, value in exact.items():
        found = numerics.roughly(fused[name], plain[name], value, working="bfloat16")
        assert found.ok, (name, found.to_dict())


def test_a_tracers_stand_ins_do_not_outlive_it() -> None:
    reference, inputs, position = drawn(SMALL, 5)
    layer = llama.Layer.from_reference(reference)
    with torch.no_grad():
        expected = layer(*inputs, position)
        for one in (llama.Layer.from_reference(reference), layer):
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fakes = [mode.from_tensor(x.detach()) for x in (*inputs, position)]
                one(*fakes)
            found = one(*inputs, position)
            assert all(type(x) is Tensor and torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("strict", [True, False])
def test_parameters_in_another_layout_are_not_loaded(strict: bool) -> None:
    reference, _, _ = drawn(SMALL, 1)
    layer, other = llama.Layer.from_reference(reference), llama.Layer(SMALL, dtype=torch.float64)
    before = {n: x.clone() for n, x in other.named_parameters()}
    unmarked = r"(?s)gate_up: got no _extra_state.*Layer\.from_reference.*layer\.get_extra_state\(\)"
    for state in (reference.state_dict(), dict(layer.named_parameters())):
        with pytest.raises(RuntimeError, match=unmarked):
            other.load_state_dict(state, strict=strict)
    with pytest.raises(
        RuntimeError, match=r"gate_up: got _extra_state \{'gate_up': 'halves'\}, expected \{'gate_up': 'inter"
    ):
        other.load_state_dict({**layer.state_dict(), "_extra_state": {"gate_up": "halves"}}, strict=strict)
    assert all(torch.equal(before[n], x) for n, x in other.named_parameters())
    other.load_state_dict({**dict(layer.named_parameters()), "_extra_state": layer.get_extra_state()}, strict=strict)
    assert all(torch.equal(x, y) for x, y in zip(layer.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("strict", [True, False])
def test_a_reference_takes_what_for_reference_made_of_a_layers_state(strict: bool) -> None:
    reference, _, _ = drawn(SMALL, 1)
    layer, other = llama.Layer.from_reference(reference), llama.Reference(SMALL, dtype=torch.float64)
    before = {n: x.clone() for n, x in other.named_parameters()}
    with pytest.raises(RuntimeError, match=r"(?s)gate_up: .*Layer\.for_reference\(state\)"):
        other.load_state_dict(layer.state_dict(), strict=strict)
    assert all(torch.equal(before[n], x) for n, x in other.named_parameters())
    other.load_state_dict(layer.for_reference(layer.state_dict()), strict=strict)
    assert all(torch.equal(x, y) for x, y in zip(reference.parameters(), other.parameters(), strict=True))


def test_a_state_within_a_models_is_named_by_its_prefix() -> None:
    layers = torch.nn.Sequential(llama.Layer(SMALL), llama.Layer(SMALL))
    layers.load_state_dict(layers.state_dict())
    state = {n: x for n, x in layers.state_dict().items() if n != "1._extra_state"}
    with pytest.raises(RuntimeError, match=r"(?<!0\.)1\.gate_up: got no 1\._extra_state"):
        layers.load_state_dict(state)
    references = torch.nn.Sequential(llama.Reference(SMALL), llama.Reference(SMALL))
    with pytest.raises(RuntimeError, match=r"(?s)0\.gate_up.*1\.gate_up"):
        references.load_state_dict(layers.state_dict())


@pytest.mark.parametrize(
    "change", [{"base": 0.0}, {"base": -1.0}, {"eps": float("nan")}, {"width": 64.5}, {"heads": "4"}]
)
def test_numbers_that_no_layer_has_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ShapeMismatch, match="a layer's"):
        llama.Layer(dataclasses.replace(SMALL, **change))


@pytest.mark.parametrize("frozen", ["y0", *llama.WEIGHTS])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(frozen: str) -> None:
    reference, (x0, y0), position = drawn(SMALL, 9)
    layer = llama.Layer.from_reference(reference)
    leaves = {"x0": x0, "y0": y0, **dict(layer.named_parameters())}

    def gradients(names: list[str]) -> dict[str, Tensor]:
        total = sum(x.square().sum() for x in layer(x0, y0, position))
        return dict(zip(names, torch.autograd.grad(total, [leaves[n] for n in names]), strict=True))

    full = gradients(list(leaves))
    leaves[frozen].requires_grad_(False)
    left = gradients([n for n in leaves if n != frozen])
    assert all(torch.equal(full[n], x) for n, x in left.items())


def test_a_models_state_is_converted_layer_by_layer() -> None:
    references = torch.nn.ModuleList([drawn(SMALL, 5, seed=seed)[0] for seed in (0, 1)])
    layers = torch.nn.ModuleList([llama.Layer.from_reference(one) for one in references])  # type: ignore[arg-type]
    state = llama.Layer.for_reference(layers.state_dict())
    again = torch.nn.ModuleList([llama.Reference(SMALL, dtype=torch.float64) for _ in references])
    again.load_state_dict(state)
    for name, x in references.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name
