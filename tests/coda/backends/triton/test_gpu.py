"""The triton backend on a GPU: real sizes, every dtype, layouts, streams, graphs, offsets beyond 2^31 elements."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
import triton_programs as programs

import coda
from coda.testing import on_tensor_cores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="TRITON_INTERPRET is set"),
]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (37, 130, 65), (300, 520, 200), (0, 64, 32), (64, 0, 32), (64, 64, 0)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs(name: str, dtype: str, shape: tuple[int, int, int]) -> None:
    programs.check(name, *shape, dtype, None, "cuda")


@pytest.mark.parametrize(
    "shape", [(4096, 4096, 4096), (4095, 4088, 4104), (4097, 4100, 1000), (3, 8192, 4096), (200, 4096, 4096)], ids=str
)
@pytest.mark.parametrize(
    "name", ["swiglu_backward", "residual_rms", "cross_entropy", "norm_backward", "swiglu", "rms_norm"]
)
def test_large(name: str, shape: tuple[int, int, int]) -> None:
    programs.check(name, *shape, "bfloat16", None, "cuda")


@pytest.mark.parametrize(
    "schedule",
    [
        {"tile_m": 128, "tile_n": 256, "warps": 8, "split": 1, "stages": 2},
        {"tile_m": 128, "tile_n": 256, "warps": 8, "split": 2},
        {"tile_m": 128, "tile_n": 256, "warps": 8, "split": 4},
        {"tile_m": 128, "tile_n": 128, "warps": 4, "persistent": False},
        {"tile_m": 64, "tile_n": 128, "warps": 4, "tma": False},
        {"tile_m": 16, "tile_n": 64, "warps": 4, "tile_k": 128},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["swiglu_backward", "reductions", "vectors"])
def test_schedules(name: str, schedule: dict[str, Any]) -> None:
    programs.check(name, 1000, 1032, 520, "bfloat16", schedule, "cuda")


@pytest.mark.parametrize(("m", "n"), [(64, 64), (512, 256), (128, 4096), (4096, 4096)])
def test_what_kernels_are_held_against_sums_whole(m: int, n: int) -> None:
    """Where few tiles make cuBLAS split sums, theirs are three times as accurate as any kernel's."""
    g = torch.Generator(device="cuda").manual_seed(0)
    a = torch.randn(m, 4096, generator=g, device="cuda").bfloat16()
    b = (torch.randn(4096, n, generator=g, device="cuda") / 64).bfloat16()
    error = on_tensor_cores(a, b).double() - a.double() @ b.double()
    assert 4.0e-6 < float(error.square().mean().sqrt()) < 4.8e-6


SLICED: list[dict[str, Any]] = [
    {"tile_m": 128, "tile_n": 256, "tile_k": 64, "warps": 8, "stages": 4, "persistent": False, "split_k": 8},
    {"tile_m": 128, "tile_n": 128, "tile_k": 64, "warps": 8, "stages": 6, "persistent": False, "split_k": 3},
    {"tile_m": 64, "tile_n": 128, "tile_k": 128, "warps": 4, "stages": 4, "persistent": False, "split_k": 2},
    {
        "tile_m": 64,
        "tile_n": 64,
        "tile_k": 64,
        "warps": 4,
        "stages": 3,
        "persistent": False,
        "split_k": 4,
        "tma": False,
    },
]


@pytest.mark.parametrize("shape", [(128, 4080, 4096), (200, 1032, 1000), (1, 96, 512), (0, 96, 512)], ids=str)
@pytest.mark.parametrize("name", [n for n, c in programs.PROGRAMS.items() if c.kind == "epilogue"])
def test_slices(name: str, shape: tuple[int, int, int]) -> None:
    """Each twice, with the same bits."""
    programs.check(name, *shape, "bfloat16", SLICED[1], "cuda")


@pytest.mark.parametrize("schedule", SLICED, ids=lambda s: f"{s['tile_m']}x{s['tile_n']}k{s['split_k']}")
@pytest.mark.parametrize("name", ["swiglu_backward", "cross_entropy", "norm_backward"])
def test_slices_of_every_tile(name: str, schedule: dict[str, Any]) -> None:
    programs.check(name, 130, 4104, 4096, "bfloat16", schedule, "cuda")
    programs.check(name, 130, 4101, 1003, "float16", schedule, "cuda")


def test_slices_in_calls_that_are_alike() -> None:
    """As a user calls it, often enough for the way of warm calls; other inputs in between."""
    kernel = coda.epilogue(programs.PROGRAMS["residual_rms"].function)
    config, found = coda.Schedule(**SLICED[0]), []
    bound = [programs.inputs(kernel.program, 128, 1024, 2048, torch.bfloat16, "cuda", seed) for seed in (1, 2)]
    for at in range(12):
        found.append(kernel(**bound[at % 2], config=config))
    for at, results in enumerate(found):
        assert all(torch.equal(x, y) for x, y in zip(results, found[at % 2], strict=True))
    programs.compare(kernel.program, bound[1], found[1]._asdict(), 128, 1024)


@pytest.mark.parametrize("schedule", SLICED, ids=lambda s: f"{s['tile_m']}x{s['tile_n']}k{s['split_k']}")
@pytest.mark.parametrize("name", ["swiglu_backward", "residual_rms", "norm_backward", "plain"])
def test_slices_in_a_graph(name: str, schedule: dict[str, Any]) -> None:
    """A replay finds the workspace as the replay before left it."""
    p, m, n, k = programs.program(name), 128, 1024, 2048
    bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 3)
    want = programs.run(p, bound, m, n, k, programs.Schedule(**schedule))
    out = programs.outputs(p, m, n, torch.bfloat16, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        programs.run(p, bound, m, n, k, programs.Schedule(**schedule), out)
    for _ in range(20):
        for x in out.values():
            x.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out[f"out.{x}"], want[x]) for x in want)
    changed = torch.randn_like(bound["a"])
    bound["a"].copy_(changed)
    graph.replay()
    programs.compare(p, bound, {x: out[f"out.{x}"] for x in want}, m, n)


def test_slices_on_two_streams_do_not_meet() -> None:
    """Calls that run at the same time, many in a row, behind inputs that are written late: each sees its own."""
    p, m, n, k = programs.program("swiglu_backward"), 128, 2048, 2048
    schedule = programs.Schedule(**SLICED[0])
    both = [programs.inputs(p, m, n, k, torch.bfloat16, "cuda", seed) for seed in (1, 2)]
    want = [programs.run(p, bound, m, n, k, schedule) for bound in both]
    streams = [torch.cuda.Stream() for _ in both]
    got: list[list[dict[str, torch.Tensor]]] = [[], []]
    outs = [[programs.outputs(p, m, n, torch.bfloat16, "cuda") for _ in range(25)] for _ in both]
    torch.cuda.synchronize()
    for at in range(25):
        for which, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                late = {**both[which], "a": torch.full_like(both[which]["a"], math.nan)}
                torch.cuda._sleep(100_000 * (1 + (at + which) % 2))
                late["a"].copy_(both[which]["a"])
                got[which].append(programs.run(p, late, m, n, k, schedule, outs[which][at]))
    torch.cuda.synchronize()
    for mine, found in zip(want, got, strict=True):
        for one in found:
            assert all(torch.equal(one[x], mine[x]) for x in mine)


def test_slices_do_not_depend_on_what_runs_beside_them() -> None:
    """The same bits behind another kernel that holds most multiprocessors, and after it."""
    p, m, n, k = programs.program("residual_rms"), 128, 4096, 4096
    bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 5)
    schedule = programs.Schedule(**SLICED[1])
    want = programs.run(p, bound, m, n, k, schedule)
    beside, x = torch.cuda.Stream(), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(10):
        with torch.cuda.stream(beside):
            x @ x
        got = programs.run(p, bound, m, n, k, schedule)
        assert all(torch.equal(got[name], want[name]) for name in want)
    torch.cuda.synchronize()


@pytest.mark.parametrize("layout", ["row", "col", "any", "offset"])
def test_layouts(layout: str) -> None:
    p, m, n, k = programs.program("norm_backward"), 300, 264, 136
    bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 1)
    for name in ("a", "b", "x"):
        x = bound[name]
        if layout == "col":
            bound[name] = x.T.contiguous().T
        elif layout == "any":
            bound[name] = torch.stack([x, torch.full_like(x, math.nan)], -1).flatten(1)[:, ::2]
        elif layout == "offset":
            buffer = torch.full((x.numel() + 1,), math.nan, device="cuda", dtype=x.dtype)
            buffer[1:] = x.flatten()
            bound[name] = buffer[1:].view(x.shape)
    programs.compare(p, bound, programs.run(p, bound, m, n, k, None), m, n)


@pytest.mark.parametrize(
    "name", ["exp", "expm1", "log1p", "sigmoid", "tanh", "sin", "cos", "exp2", "log", "log2", "sqrt", "rsqrt", "erf"]
)
def test_functions_are_accurate(name: str) -> None:
    from coda.primitives import map as primitives

    def f(x):
        return {"y": getattr(primitives, name)(x)}

    f.__annotations__ = {"x": programs.Tile}
    p = programs.trace(f, programs.signature(f, "pointwise"))
    top = {"exp": 88.0, "expm1": 88.0, "exp2": 126.0, "sigmoid": 85.0, "sin": 1e5, "cos": 1e5}.get(name, 1e6)
    x = torch.cat(
        [
            torch.logspace(-20, math.log10(top), 1 << 15, dtype=torch.float64),
            torch.linspace(1e-3, min(top, 60.0), 1 << 15, dtype=torch.float64),
        ]
    )
    x = x.float().reshape(256, 256).cuda()
    if name not in ("log", "log2", "sqrt", "rsqrt", "log1p"):
        x = torch.where(
            torch.arange(256, device="cuda") % 2 == 0,
            x,
            -x.clamp(max=85.0) if name in ("exp", "expm1", "exp2", "sigmoid") else -x,
        )
    got = programs.run(p, {"x": x}, 256, 256, 0, None)["y"].double()
    exact = programs.evaluate(p, {"x": x}, m=256, n=256, dtype=torch.float64, stored_as=None)["y"]
    error = (got - exact).abs()
    if name not in ("sin", "cos"):
        error = error / exact.abs().clamp(min=1e-36 if name not in ("log", "log2") else 1e-3)
    assert error.max() <= 1.2e-6, f"{name}: {error.max():.3g} at {x.flatten()[error.argmax()]}"


def test_offsets_beyond_2_31_elements() -> None:
    m, n, k = 40960, 65536, 64  # 2.7e9 elements: the last rows lie beyond 2^31
    p = programs.program("plain")
    bound = {
        "a": torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
        "b": torch.randn(k, n, device="cuda", dtype=torch.bfloat16),
    }
    got = programs.run(p, bound, m, n, k, None)["y"]
    for rows in (slice(0, 64), slice(32700, 32800), slice(m - 64, m)):
        want = bound["a"][rows].float() @ bound["b"].float()
        assert (got[rows].float() - want).abs().max() <= 2**-7 * want.abs().max()
    assert not got[::97].isnan().any()


def test_wide_rows_of_two_matrices() -> None:
    """z is (M, 2N) with more than 2^31 elements; the last row equals a run on that row alone."""
    m, n, k = 17000, 65536, 32
    p = programs.program("swiglu_backward")
    bound = {
        "a": torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
        "b": torch.randn(k, n, device="cuda", dtype=torch.bfloat16),
    }
    bound["z"] = torch.randn(m, 2 * n, device="cuda", dtype=torch.bfloat16)
    got = programs.run(p, bound, m, n, k, None)
    last = {**bound, "a": bound["a"][-1:].clone(), "z": bound["z"][-1:].clone()}
    programs.compare(p, last, {name: x[-1:] for name, x in got.items()}, 1, n)


def test_current_stream_and_graph() -> None:
    p, m, n, k = programs.program("residual_rms"), 512, 512, 512
    bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 3)
    want = programs.run(p, bound, m, n, k, None)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = {**bound, "a": bound["a"] * 1}
        torch.cuda._sleep(20_000_000)
        late["a"].copy_(bound["a"])
        got = programs.run(p, late, m, n, k, None)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(torch.equal(got[name], want[name]) for name in want)
    out = programs.outputs(p, m, n, torch.bfloat16, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        programs.run(p, bound, m, n, k, None, out)
    for x in out.values():
        x.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out[f"out.{name}"], want[name]) for name in want)


def test_inputs_are_intact_and_guards_unwritten() -> None:
    p, m, n, k = programs.program("swiglu"), 333, 258, 100
    bound = programs.inputs(p, m, n, k, torch.float16, "cuda", 4)
    before = {name: x.clone() for name, x in bound.items()}
    out, guards = programs.outputs(p, m, n, torch.float16, "cuda"), {}
    for name, x in list(out.items()):
        guards[name] = torch.full((x.numel() + 256,), 7.0, device="cuda", dtype=x.dtype)
        out[name] = guards[name][128:-128].view(x.shape)
    programs.compare(p, bound, programs.run(p, bound, m, n, k, None, out), m, n)
    assert all(torch.equal(bound[name], x) for name, x in before.items())
    assert all((g[:128] == 7).all() and (g[-128:] == 7).all() for g in guards.values())


@pytest.mark.parametrize("case", [("residual_rms", "residual", "h"), ("swiglu_backward", "z", "dz")], ids=str)
def test_output_may_be_a_tile_operand(case: tuple[str, str, str]) -> None:
    name, operand, output = case
    p, m, n, k = programs.program(name), 700, 1024, 256
    for schedule in (None, programs.Schedule(tile_m=128, tile_n=256, warps=8, split=8)):
        bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 6)
        want = programs.run(p, bound, m, n, k, schedule)
        out = programs.outputs(p, m, n, torch.bfloat16, "cuda")
        out[f"out.{output}"] = bound[operand]
        got = programs.run(p, bound, m, n, k, schedule, out)
        assert all(torch.equal(got[x], want[x]) for x in want)


def test_new_rows_and_scalars_do_not_recompile() -> None:
    p, n, k = programs.program("residual_rms"), 256, 256
    kernels = set()
    for m, eps in ((160, 1e-6), (320, 1e-5), (480, 1e-3)):
        bound = programs.inputs(p, m, n, k, torch.bfloat16, "cuda", 7)
        bound["eps"] = eps
        schedule = programs.Schedule(tile_m=64, tile_n=128, warps=4, split=1)
        programs.run(p, bound, m, n, k, schedule)
        specs = tuple(
            sorted(
                (name, programs.spec_of(x))
                for name, x in {**bound, **programs.outputs(p, m, n, torch.bfloat16, "cuda")}.items()
                if isinstance(x, torch.Tensor)
            )
        )
        arch = f"sm_{''.join(map(str, torch.cuda.get_device_capability()))}"
        artifact = programs.BACKEND.compile(p, programs.Problem(m, n, k, "bfloat16", specs, arch), schedule, None)
        kernel = artifact.payload.module.tile_kernel
        kernels.add((id(kernel), len(next(iter(kernel.device_caches.values()))[0])))
    assert len(kernels) == 1
