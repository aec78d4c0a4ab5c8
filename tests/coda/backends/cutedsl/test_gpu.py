"""The cutedsl backend on a GPU: every suite program and every branch of the lowering, aligned and ragged, against fp64.

All cases are compiled first, in parallel processes, into quack's disk cache.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import pytest
import torch

from coda import errors

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import BACKEND

READY = BACKEND.available() if torch.cuda.is_available() else None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(READY is None, reason="no CUDA device"),
    pytest.mark.skipif(READY is not None and not READY.ok, reason=READY.reason if READY else ""),
]

_spec = importlib.util.spec_from_file_location("cutedsl_gpu_checks", pathlib.Path(__file__).with_name("gpu_checks.py"))
assert _spec is not None
assert _spec.loader is not None
checks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = checks
_spec.loader.exec_module(checks)
Case = checks.Case


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Kernels of all cases."""
    checks.warm()


@pytest.mark.parametrize("case", checks.CASES, ids=str)
def test_outputs_agree_with_fp64(case):
    errors_ = checks.check(case)
    assert max(errors_.values()) <= 1.0, errors_


@pytest.mark.parametrize("case", checks.FUNCTION_CASES, ids=lambda case: case.name)
def test_functions_are_accurate(case):
    tensors = checks.function_inputs(case)
    got, exact = checks.run(case, tensors)["y"].double(), checks.exact(case, tensors)["y"]
    difference = (got - exact).abs()
    if case.name not in ("function.sin", "function.cos"):  # those are accurate absolutely
        difference /= exact.abs().clamp(min=1e-3 if "log" in case.name else 1e-36)
    worst = int(difference.argmax())
    assert float(difference.max()) <= 1.2e-6, f"{float(difference.max()):.3g} at {float(tensors['x'].flatten()[worst])}"


def test_pairs_are_moved_bit_by_bit():
    case = Case("columns_kept", *checks.ALIGNED)
    tensors = checks.inputs(case)
    every = torch.arange(2**16, device="cuda", dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    z = every.repeat(-(-tensors["z"].numel() // every.numel()))[: tensors["z"].numel()].view(tensors["z"].shape)
    z = torch.where(z.isnan(), torch.ones_like(z), z)
    got = checks.run(case, {**tensors, "z": z})["y"]
    assert torch.equal(got.view(torch.int16), z.view(torch.int16))


@pytest.mark.parametrize(
    "name", ["residual_rms", "residual_layernorm", "rms_cross_entropy", "rms_backward", "swiglu_backward"]
)
def test_two_runs_agree_bit_by_bit(name):
    case = Case(name, *checks.RAGGED)
    tensors = checks.inputs(case)
    first, second = checks.run(case, tensors), checks.run(case, tensors)
    for output, x in first.items():
        assert torch.equal(x.view(torch.uint8), second[output].view(torch.uint8)), output


def test_an_output_may_be_an_operand():
    case = Case("rms_backward", *checks.RAGGED)
    tensors = checks.inputs(case)
    apart = checks.run(case, tensors)
    shared = tensors["dres"].clone()
    together = checks.run(case, {**tensors, "dres": shared}, {"dh": shared})
    assert torch.equal(apart["dh"], shared)
    assert torch.equal(apart["dgamma"], together["dgamma"])


def test_operands_of_every_layout():
    case = Case("rms_backward", *checks.RAGGED)
    tensors = checks.inputs(case)
    expected = checks.run(case, tensors)
    transposed = {n: x.T.contiguous().T if x.ndim == 2 and n != "a" else x for n, x in tensors.items()}
    m = -(-case.m // 8) * 8
    a = torch.zeros(case.k, m, device="cuda", dtype=tensors["a"].dtype)[:, : case.m].T
    a.copy_(tensors["a"])
    padded = torch.zeros(case.n, m, device="cuda", dtype=tensors["h"].dtype)
    for name in ("h", "dres"):
        transposed[name] = padded.clone()[:, : case.m].T
        transposed[name].copy_(tensors[name])
    got = checks.run(case, {**transposed, "a": a})
    for name, x in expected.items():
        torch.testing.assert_close(got[name], x, rtol=1e-5 if x.dtype is torch.float32 else 1e-2, atol=1e-4)


def test_operands_that_repeat_one_row():
    case = Case("residual_rms", *checks.ALIGNED)
    tensors = checks.inputs(case)
    tensors["residual"] = tensors["residual"][:1].expand_as(tensors["residual"])
    tensors["a"] = tensors["a"][:1].expand_as(tensors["a"])
    got, wanted = checks.run(case, tensors), checks.exact(case, tensors)
    assert max(checks.error(got[name], wanted[name]) for name in got) <= 1.0


def test_a_stream_of_its_own_and_a_graph():
    case = Case("residual_rms", *checks.ALIGNED)
    tensors = checks.inputs(case)
    call = checks.bound(case, tensors)
    artifact = BACKEND.compile(case.program, call.problem, case.schedule, None)
    BACKEND.launch(artifact, call.tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        BACKEND.launch(artifact, call.tensors)
    fresh = checks.inputs(case, seed=5)
    for name, x in fresh.items():
        if isinstance(x, torch.Tensor):
            call.tensors[name].copy_(x)
    for name in call.outputs:
        call.tensors[f"out.{name}"].fill_(float("nan"))
    graph.replay()
    wanted = checks.exact(case, fresh)
    assert max(checks.error(call.tensors[f"out.{n}"], wanted[n]) for n in call.outputs) <= 1.0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        for name in call.outputs:
            call.tensors[f"out.{name}"].fill_(float("nan"))
        BACKEND.launch(artifact, call.tensors)
    assert not side.query()  # nothing waited for the stream
    side.synchronize()
    assert max(checks.error(call.tensors[f"out.{n}"], wanted[n]) for n in call.outputs) <= 1.0


@pytest.mark.parametrize("kind", ["number", "tensor", "other dtype"])
def test_scalars(kind):
    case = Case("wide_vectors", *checks.ALIGNED)
    tensors = checks.inputs(case)
    expected = checks.run(case, {**tensors, "eps": 0.75})
    value = {
        "number": 0.75,
        "tensor": torch.tensor(0.75, device="cuda"),
        "other dtype": torch.tensor(0.75, device="cuda", dtype=torch.bfloat16),
    }[kind]
    call = checks.bound(case, {**tensors, "eps": 0.75})
    call.tensors["eps"] = value
    BACKEND.launch(BACKEND.compile(case.program, call.problem, case.schedule, None), call.tensors)
    assert all(torch.equal(call.tensors[f"out.{n}"], x) for n, x in expected.items())


def test_a_scalar_on_the_cpu_is_refused_before_anything_runs():
    case = Case("wide_vectors", *checks.ALIGNED)
    with pytest.raises(errors.DeviceMismatch):
        checks.bound(case, {**checks.inputs(case), "eps": torch.tensor(0.75)})


def test_a_size_beyond_32_bit_offsets():
    case = Case("rms_scale", 70_000, 32_768, 64, cluster=(2, 1))
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB")
    tensors = checks.inputs(case)
    got = checks.run(case, tensors)["z"][-1000:]
    last = {**tensors, "a": tensors["a"][-1000:], "rstd": tensors["rstd"][-1000:]}
    assert checks.error(got, checks.exact(Case("rms_scale", 1000, 32_768, 64), last)["z"]) <= 1.0


def test_an_unsupported_call_is_refused_before_anything_runs():
    case = Case("rms_scale", 64, 128, 64)
    tensors = checks.inputs(case)
    call = checks.bound(
        case, {**tensors, "a": torch.zeros(64 * 64 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(64, 64)}
    )
    with pytest.raises(errors.Unsupported, match="16 bytes"):
        BACKEND.compile(case.program, call.problem, case.schedule, None)
