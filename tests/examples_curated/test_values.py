"""The curated bank as mathematics: every example equals its task's reference, or PyTorch written here, in fp64.

Through `reference`, which never rounds; and once through the reference backend, for dtypes and for what a store rounds.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import examples_curated
from agent import task as tasks
from coda.kernel import PlanKernel

pytestmark = pytest.mark.interp

TASKS = tuple(i for i in tasks.cards() if i in examples_curated.catalog())
OWN = pathlib.Path(__file__).parent / "tasks"
"""Tasks of examples that solve none of the bank's; `test_judged` takes them to the judge."""
EXTRA = tuple(i for i in examples_curated.catalog() if i not in TASKS and i not in tasks.cards(OWN))
SIZES = ((32, 64, 48), (37, 192, 65), (1, 64, 1), (130, 128, 7))
"""M, N, K of the examples without a task; N in whole heads of 64."""


def _gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=_gen(seed), dtype=torch.float64)


def _inputs(task: tasks.Task, dims: tasks.Dims) -> dict[str, torch.Tensor]:
    """Random inputs in fp64; indices within and outside their range; numbers with a default are left out."""
    out = {}
    for seed, i in enumerate(task.inputs):
        shape = tasks.lengths(i.shape, dims)
        if i.default is None:
            x = _randn(*shape, seed=seed)
            if i.dtype == "int64":
                x = torch.randint(-2, dims["N"] + 2, shape, generator=_gen(seed))
                x[::7] = -100
            out[i.name] = x / shape[0] ** 0.5 if i.draw == "weight" else x.abs() + 0.5 if i.draw == "rstd" else x
    return out


def _call(kernel: Any, task: tasks.Task, inputs: dict[str, torch.Tensor], **numbers: float) -> dict[str, torch.Tensor]:
    """As the judge calls it: a GEMM's `a` and `b` by place, a plan's inputs by name."""
    places = [i.name for i in task.inputs if i.role in ("a", "b")]
    rest = {name: x for name, x in inputs.items() if name not in places}
    result: dict[str, torch.Tensor] = kernel.reference(*(inputs[name] for name in places), **rest, **numbers)
    return result


def _close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.shape == want.shape, what
    assert got.dtype is torch.float64, what
    assert bool(want.isfinite().all()), what
    assert float((got - want).abs().max()) <= 1e-10 * float(want.abs().max()), what


# ---- examples of tasks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", TASKS)
def test_an_example_equals_its_task(task_id: str) -> None:
    task, kernel = tasks.load(task_id), examples_curated.load(task_id)
    for shape in (*task.shapes_of("smoke"), *task.shapes_of("ragged")):
        inputs = _inputs(task, shape.dims)
        got, want = _call(kernel, task, inputs), task.reference(**inputs)
        assert list(got) == list(want)
        for name, value in want.items():
            _close(got[name], value, f"{shape.dims} {name}")


@pytest.mark.parametrize("task_id", ["residual_rms", "residual_rms_linear"])
def test_epsilon_is_a_run_time_number(task_id: str) -> None:
    task, kernel = tasks.load(task_id), examples_curated.load(task_id)
    inputs = _inputs(task, task.shapes_of("smoke")[0].dims)
    want, default = task.reference(**inputs, eps=0.5), task.reference(**inputs)
    got = _call(kernel, task, inputs, eps=0.5)
    for name in got:
        _close(got[name], want[name], name)
    assert any(not torch.allclose(want[name], default[name], rtol=1e-3) for name in want)


@pytest.mark.parametrize("task_id", TASKS)
def test_an_example_has_the_interface_of_its_task(task_id: str) -> None:
    task, kernel = tasks.load(task_id), examples_curated.load(task_id)
    assert kernel.outputs == tuple(o.name for o in task.outputs)
    assert kernel.gemms == task.gemms
    if isinstance(kernel, PlanKernel):
        assert task.kind == "plan"
        assert [name for name, _, _ in kernel.program.inputs] == [i.name for i in task.inputs]
        return
    program = kernel.program
    assert program.kind == task.kind
    operands = [i for i in task.inputs if i.role not in ("a", "b")]
    assert [(o.name, o.default) for o in program.operands] == [(i.name, i.default) for i in operands]
    assert {o.name: str(o.dtype) for o in program.operands if o.default is None} == task.operand_dtypes()
    dims = task.shapes_of("ragged")[-1].dims
    for i in operands:
        assert program.operand(i.name).shape(dims["M"], dims["N"]) == tasks.lengths(i.shape, dims)
    for o in task.outputs:
        assert program.output_shape(o.name, dims["M"], dims["N"]) == tasks.lengths(o.shape, dims)
        assert program.output_dtype(o.name, "bfloat16") == {"data": "bfloat16", "float32": "float32"}[o.dtype]


@pytest.mark.parametrize("padding", [0, 5])
def test_spectral_mask_leaves_padded_frames_out_of_the_energy(padding: int) -> None:
    x, w, bias, s = _randn(37, 8), _randn(8, 24, seed=1), _randn(24, seed=2), _randn(37, 48, seed=3)
    s[37 - padding :] = math.nan
    got = examples_curated.load("spectral_mask").reference(x, w, bias=bias, s=s, padding=padding)
    real = s[: 37 - padding].view(-1, 24, 2)
    mask = torch.sigmoid(x @ w + bias)
    _close(got["mask"], mask, "mask")
    power = mask[: 37 - padding].square() * real.square().sum(2)
    _close(got["energy"], power.sum(0), "energy")
    assert bool(got["kept"][37 - padding :].isnan().all())


def test_neighbour_softmax_is_right_to_a_few_roundings_of_its_normaliser() -> None:
    x = _randn(129, 64).float() / 8
    kernel = examples_curated.load("neighbour_softmax")
    r, exact = kernel(x, backend="reference"), kernel.reference(x)
    wrong = r.share.double() - exact["share"]
    assert float((wrong / exact["share"].clamp(min=1e-30)).abs().max()) <= 2e-6
    assert torch.equal(r.share.diagonal(), torch.zeros(129))
    torch.testing.assert_close(r.share.sum(1), torch.ones(129), rtol=1e-5, atol=0)


@pytest.mark.parametrize("task_id", TASKS)
def test_an_example_runs_on_the_reference_backend_in_fp16(task_id: str) -> None:
    task, kernel = tasks.load(task_id), examples_curated.load(task_id)
    wide = _inputs(task, task.shapes_of("smoke")[0].dims)
    dtypes = {
        i.name: {"data": torch.float16, "float32": torch.float32, "int64": torch.int64}[i.dtype] for i in task.inputs
    }
    inputs = {name: x.to(dtypes[name]) for name, x in wide.items()}
    places = [inputs.pop(i.name) for i in task.inputs if i.role in ("a", "b")]
    result = kernel(*places, **inputs, backend="reference")
    want = task.reference(
        **{name: x.to(dtypes[name]).double() if x.is_floating_point() else x for name, x in wide.items()}
    )
    for o in task.outputs:
        got = getattr(result, o.name)
        assert got.dtype is {"data": torch.float16, "float32": torch.float32}[o.dtype]
        assert float((got.double() - want[o.name]).abs().max()) <= 4e-3 * float(want[o.name].abs().max())


# ---- examples without a task -------------------------------------------------------------------------------------------


def test_every_example_without_a_task_is_checked_here() -> None:
    assert set(EXTRA) <= {
        "bias_gelu_fp8",
        "expert_scores",
        "mx_quantize",
        "qk_norm_rope",
        "residual_layernorm",
        "softcap_cross_entropy",
        "ssm_gates",
        "symlog_codes",
    }


@pytest.mark.parametrize("example_id", EXTRA)
def test_only_a_target_is_an_integer(example_id: str) -> None:
    operands = examples_curated.load(example_id).program.operands
    assert {o.name: str(o.dtype) for o in operands} == {
        o.name: "int" if o.name == "target" else "float" for o in operands
    }


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_ssm_gates(m: int, n: int, k: int) -> None:
    x, w, bias, a_log = _randn(m, k), _randn(k, n, seed=1), _randn(n, seed=2), _randn(n, seed=3)
    got = examples_curated.load("ssm_gates").reference(x, w, dt_bias=bias, a_log=a_log, dt_max=1.5)
    dt = F.softplus(x @ w + bias).clamp(max=1.5)
    assert bool((dt == 1.5).any() and (dt < 1.5).any())
    a = -a_log.exp()
    for name, want in {"dt": dt, "decay": (dt * a).exp(), "gain": ((dt * a).exp() - 1) / a}.items():
        _close(got[name], want, name)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_bias_gelu_fp8(m: int, n: int, k: int) -> None:
    x, w, bias, scale = _randn(m, k), _randn(k, n, seed=1), _randn(n, seed=2), torch.tensor(3.5, dtype=torch.float64)
    got = examples_curated.load("bias_gelu_fp8").reference(x, w, bias=bias, scale=scale)
    z = x @ w + bias
    y = F.gelu(z, approximate="tanh")
    want = {
        "z": z,
        "y8": y * 3.5,
        "row_amax": y.abs().amax(1),
        "channel_amax": y.abs().amax(0),
        "active": (z > 0).double().mean(0),
    }
    for name, value in want.items():
        _close(got[name], value, name)


def test_bias_gelu_fp8_saturates_and_rounds_once() -> None:
    x, w, bias = (t.float() for t in (_randn(8, 16), _randn(16, 64, seed=1), _randn(64, seed=2)))
    r = examples_curated.load("bias_gelu_fp8")(x, w, bias=bias, scale=100.0, backend="reference")
    assert r.y8.dtype is torch.float8_e4m3fn
    exact = F.gelu(x @ w + bias, approximate="tanh") * 100
    assert float(exact.max()) > 448
    assert torch.equal(r.y8.float(), exact.clamp(-448, 448).to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_residual_layernorm_and_the_linear_layer_after_it(m: int, n: int, k: int) -> None:
    y, w_o, residual, gamma = _randn(m, k), _randn(k, n, seed=1), _randn(m, n, seed=2) + 2, _randn(n, seed=3)
    beta, w, bias = _randn(n, seed=4), _randn(n, 24, seed=5), _randn(24, seed=6)
    got = examples_curated.load("residual_layernorm").reference(y, w_o, residual=residual, gamma=gamma, eps=1e-3)
    h = y @ w_o + residual
    rstd = (h.var(1, correction=0) + 1e-3).rsqrt()
    for name, want in {"h": h, "q": h * gamma, "rstd": rstd, "shift": rstd * h.mean(1)}.items():
        _close(got[name], want, name)
    whole = got["rstd"][:, None] * (got["q"] @ w) - got["shift"][:, None] * (gamma @ w) + (beta @ w + bias)
    torch.testing.assert_close(whole, F.layer_norm(h, (n,), gamma, beta, 1e-3) @ w + bias, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("padding", [0, 3])
def test_softcap_cross_entropy(m: int, n: int, k: int, padding: int) -> None:
    x, w = 4 * _randn(m, k), _randn(k, n, seed=1)
    target = torch.randint(-1, n, (m,), generator=_gen(2))
    best = (x @ w)[:, : n - padding].argmax(1)
    target[::3] = best[::3]
    target[1::8] = -100
    got = examples_curated.load("softcap_cross_entropy").reference(
        x, w, target=target, cap=10.0, z_weight=0.01, padding=padding
    )
    logits = (10 * torch.tanh(x @ w / 10))[:, : n - padding]
    counts = (target >= 0) & (target < n - padding)
    lse = logits.logsumexp(1)
    loss = F.cross_entropy(logits, torch.where(counts, target, -100), reduction="none") + 0.01 * lse.square()
    _close(got["lse"], lse, "lse")
    _close(got["loss"], torch.where(counts, loss, 0.0), "loss")
    reaches = logits.gather(1, target.clamp(0, n - padding - 1)[:, None])[:, 0] >= logits.amax(1)
    assert torch.equal(got["hit"], (counts & reaches).double())
    assert bool(got["hit"].any())
    assert bool((got["hit"] == 0).any()) or m == 1


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_qk_norm_rope(m: int, n: int, k: int) -> None:
    head, sequence = 64, 16
    x, w, gamma = _randn(m, k), _randn(k, n, seed=1), _randn(head, seed=2)
    frequency = 10000.0 ** (-torch.arange(head // 2, dtype=torch.float64) / (head // 2))
    frequency[-1] = 0
    got = examples_curated.load("qk_norm_rope").reference(
        x, w, gamma=gamma, frequency=frequency, eps=1e-5, sequence=sequence
    )
    q = F.rms_norm((x @ w).view(m, n // head, head), (head,), gamma, 1e-5)
    angle = (torch.arange(m) % sequence).double()[:, None] * frequency
    turned = torch.view_as_complex(q.reshape(m, -1, head // 2, 2)) * torch.polar(torch.ones_like(angle), angle)[:, None]
    _close(got["rotated"], torch.view_as_real(turned).reshape(m, n), "rotated")


@pytest.mark.parametrize(("m", "n"), [(1, 32), (7, 96), (33, 64)])
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e4, 1e30])
def test_mx_quantize(m: int, n: int, magnitude: float) -> None:
    x = (_randn(m, n) * magnitude).float()
    x[:, :32] = 0  # a block of zeros has a scale too
    x[0, n - 32] = x[0, n - 32 :].abs().amax() * 4
    r = examples_curated.load("mx_quantize")(x, backend="reference")
    assert r.q.dtype is torch.float8_e4m3fn
    assert r.scale.dtype is torch.float32
    assert tuple(r.scale.shape) == (m, n // 32)
    mantissa, _ = torch.frexp(r.scale)
    assert bool((mantissa == 0.5).all()), "a scale is not a power of two"
    largest = x.view(m, -1, 32).abs().amax(2)
    fits = largest / r.scale
    assert bool((fits <= 448 * (1 + 1e-6)).all())
    assert bool(((fits > 223.9) | (largest == 0)).all()), "a scale is larger than it need be"
    back = (r.q.float().view(m, -1, 32) * r.scale[:, :, None]).view(m, n)
    assert bool(((back - x).abs() <= x.abs() / 16 + r.scale.repeat_interleave(32, 1) * 2**-10).all())
    exact = examples_curated.load("mx_quantize").reference(x)
    torch.testing.assert_close(
        exact["q"].view(m, -1, 32) * exact["scale"][:, :, None], x.double().view(m, -1, 32), rtol=1e-12, atol=0.0
    )


def test_mx_quantize_keeps_the_largest_magnitude_that_fits() -> None:
    x = torch.zeros(3, 32)
    x[0, 5], x[1, 6], x[2, 7] = 448.0, 449.0, math.ldexp(448.0, -20)
    r = examples_curated.load("mx_quantize")(x, backend="reference")
    assert r.scale[:, 0].tolist() == [1.0, 2.0, math.ldexp(1.0, -20)]
    assert float(r.q.float()[0, 5]) == 448.0


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_expert_scores(m: int, n: int, k: int) -> None:
    x, w, bias = _randn(m, k), _randn(k, n, seed=1), _randn(n, seed=2)
    got = examples_curated.load("expert_scores").reference(x, w, bias=bias)
    score = F.softplus(x @ w + bias, threshold=1e9).sqrt()
    groups = score.view(m, n // 8, 8)
    share = (groups / groups.sum(2, keepdim=True)).view(m, n)
    entropy = torch.special.entr(share).sum(1)
    want = {"share": share, "best": groups.amax(2), "busiest": score.amax(0), "entropy": entropy}
    for name, value in want.items():
        _close(got[name], value, name)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("padding", [0, 1])
def test_gelu_backward(m: int, n: int, k: int, padding: int) -> None:
    dy, w2_t, z = _randn(m, k), _randn(k, n, seed=1), _randn(m, n, seed=2).requires_grad_()
    got = examples_curated.load("gelu_backward").reference(dy, w2_t, z=z.detach(), padding=padding)
    h = F.gelu(z)
    upstream = dy @ w2_t
    upstream[m - padding :] = 0
    (dz,) = torch.autograd.grad(h, z, upstream)
    _close(got["h"], h.detach(), "h")
    assert torch.allclose(got["dz"], dz, rtol=1e-10, atol=1e-12)
    assert torch.allclose(got["dbias"], dz.sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 33)])
def test_symlog_codes_agree_with_the_stored_value(m: int, n: int) -> None:
    x = (_randn(m, n) * 50).float()
    r = examples_curated.load("symlog_codes")(x, 0.25, backend="reference")
    want = (x.double().sign() * x.double().abs().log1p()).bfloat16()
    assert float((r.y.float() - want.float()).abs().max()) <= 2**-6  # one step of bf16 where fp32 rounds the other way
    assert torch.equal(r.code, (r.y.float() / 0.25).round())
    assert torch.equal(r.bucket, (r.y.float() / 0.25).floor().clamp(min=0))
    assert torch.allclose(r.level, r.code.mean(1))
