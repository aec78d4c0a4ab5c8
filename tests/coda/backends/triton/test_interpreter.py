"""The triton backend in Triton's interpreter: every operation, ragged and empty shapes, layouts, schedules.

Each check runs in a child process (see `conftest.py`); the programs and the comparison are in `triton_programs.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton_programs as programs

import coda
from coda.errors import BackendError
from coda.primitives import Tile, row_logsumexp

pytestmark = pytest.mark.interp

SMALL = {"tile_m": 16, "tile_n": 32, "tile_k": 32, "warps": 4}
ONE = {**SMALL, "persistent": False, "tma": False}


def schedule_of(name: str, **changes: Any) -> dict[str, Any]:
    return {**(SMALL if programs.PROGRAMS[name].kind == "epilogue" else ONE), **changes}


def check(name: str, m: int, n: int, k: int, dtype: str, schedule: dict[str, Any] | None) -> None:
    programs.check(name, m, n, k, dtype, schedule)


@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 130, 65), (0, 20, 16), (20, 0, 16), (20, 20, 0)], ids=str)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs_on_ragged_and_empty_shapes(interp: Any, name: str, shape: tuple[int, int, int]) -> None:
    interp(check, name, *shape, "float32", schedule_of(name))


@pytest.mark.parametrize("name", ["swiglu_backward", "cross_entropy", "reductions", "segments"])
def test_fp16(interp: Any, name: str) -> None:
    interp(check, name, 17, 96, 33, "float16", schedule_of(name))


@pytest.mark.parametrize(
    "change",
    [
        {"split": 2},
        {"tile_n": 64, "split": 4, "persistent": False},
        {"tma": False},
        {"tile_m": 64, "tile_n": 16, "tile_k": 16, "group_m": 2},
        {"tile_n": 256, "tile_m": 32},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["swiglu_backward", "reductions"])
def test_schedules_agree(interp: Any, name: str, change: dict[str, Any]) -> None:
    interp(check, name, 40, 150, 48, "float32", schedule_of(name, **change))


@pytest.mark.parametrize("name", ["swiglu", "odd_segments", "rms_norm", "quantize"])
def test_default_schedule(interp: Any, name: str) -> None:
    interp(check, name, 129, 200, 64, "float32", None)


def test_aligned_shape_uses_descriptors_and_no_masks(interp: Any) -> None:
    interp(check_descriptors)


def check_descriptors() -> None:
    p = programs.program("residual_rms")
    m, n, k = 48, 64, 64
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 1)
    bound["b"] = bound["b"].T.contiguous().mT  # weight.mT
    bound["a"] = bound["a"].T.contiguous().mT
    specs = tuple(
        sorted(
            (x, programs.spec_of(t))
            for x, t in {**bound, **programs.outputs(p, m, n, torch.float32, "cpu")}.items()
            if not isinstance(t, float)
        )
    )
    problem = programs.Problem(m, n, k, "float32", specs, None)
    schedule = programs.Schedule(**SMALL)
    source = programs.BACKEND.compile(p, problem, schedule, None).source
    assert "a.load([k * 32, row0]).T" in source
    assert "b.load([col0, k * 32]).T" in source
    assert "tl.full((32,), 1, tl.int1)" in source
    programs.compare(p, bound, programs.run(p, bound, m, n, k, schedule), m, n)


def strided(kind: str, x: torch.Tensor) -> torch.Tensor:
    """The same numbers in another layout."""
    rows, columns = x.shape
    if kind == "transposed":
        return x.T.contiguous().T
    if kind == "strided":
        big = torch.full((rows * 2, columns * 3), math.nan)
        big[::2, ::3] = x
        return big[::2, ::3]
    if kind == "offset":
        buffer = torch.full((rows * columns + 3,), math.nan)
        buffer[3:] = x.reshape(-1)
        return buffer[3:].view(rows, columns)
    if kind == "padded":
        big = torch.full((rows, columns + 16), math.nan)
        big[:, :columns] = x
        return big[:, :columns]
    return x[:1].expand(rows, columns)


@pytest.mark.parametrize("kind", ["transposed", "strided", "offset", "padded", "broadcast"])
def test_layouts(interp: Any, kind: str) -> None:
    interp(check_layout, kind)


def check_layout(kind: str) -> None:
    p, m, n, k = programs.program("norm_backward"), 21, 36, 40
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 2)
    for name in ("a", "b", "x"):
        bound[name] = strided(kind, bound[name])
    bound["gamma"] = bound["gamma"].repeat_interleave(2)[::2]
    bound["rstd"] = bound["rstd"][:1].expand(m)
    out = programs.outputs(p, m, n, torch.float32, "cpu")
    if kind != "broadcast":
        out["out.dx"] = strided(kind, out["out.dx"])
    before = {name: x.clone() for name, x in bound.items()}
    got = programs.run(p, bound, m, n, k, programs.Schedule(**SMALL), out)
    programs.compare(p, bound, got, m, n)
    assert all(torch.equal(bound[name], x) for name, x in before.items())


def test_no_element_is_written_twice_or_outside(interp: Any) -> None:
    interp(check_guards)


def check_guards() -> None:
    p, m, n, k = programs.program("swiglu"), 19, 34, 20
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 3)
    out, guards = programs.outputs(p, m, n, torch.float32, "cpu"), {}
    for name, x in list(out.items()):
        guards[name] = torch.full((x.numel() + 64,), 7.0)
        out[name] = guards[name][32:-32].view(x.shape)
    programs.compare(p, bound, programs.run(p, bound, m, n, k, programs.Schedule(**SMALL), out), m, n)
    for g in guards.values():
        assert (g[:32] == 7).all()
        assert (g[-32:] == 7).all()


def test_logsumexp_of_infinities_and_nan(interp: Any) -> None:
    interp(check_logsumexp)


def check_logsumexp() -> None:
    p, m, n = programs.program("cross_entropy"), 9, 70
    x = torch.randn(m, n) * 3
    x[0], x[1, 5], x[2, 65], x[3, 3] = -math.inf, math.inf, math.nan, -math.inf
    x[4, :64], x[5], x[6, 0], x[6, 66], x[7, :32] = -math.inf, 300.0, math.inf, 250.0, -400.0
    target = torch.tensor([0, 5, 1, 69, 69, 70, -1, 33, 2**40])
    # acc is x: a product with the identity would make NaN of every infinity
    q = programs.EpilogueProgram.from_json(
        p.to_json()
        .replace('"op":"acc","v":1,"args":[],"attrs":{}', operand_node("x"))
        .replace('"kind":"epilogue"', '"kind":"pointwise"')
        .replace('"operands":[', '"operands":[' + operand_json("x") + ",")
    )
    bound = {"x": x, "target": target, "scale": 1.0}
    got = programs.run(q, bound, m, n, 0, programs.Schedule(**{**ONE, "tile_m": 4}))
    programs.compare(q, bound, got, m, n)
    assert got["lse"][0] == -math.inf
    assert got["lse"][1] == math.inf
    assert got["lse"][2].isnan()
    assert got["lse"][6] == math.inf
    assert got["loss"][5] == got["lse"][5]
    assert got["loss"][6] == 0
    assert got["loss"][8] == got["lse"][8]


def test_logsumexp_of_huge_numbers(interp: Any) -> None:
    interp(check_huge_logsumexp)


def check_huge_logsumexp() -> None:
    @coda.pointwise
    def lse(x: Tile):  # type: ignore[no-untyped-def]
        return {"lse": row_logsumexp(x)}

    for columns in (1, 3, 200):
        x = torch.tensor([1e3, 2.0**24, 3e8, 4e9, 5e9, 5.5e9, 1e10, 1e19, 1e38, -5e9, -1e10, -1e38])[:, None].repeat(
            1, columns
        )
        x[:, columns // 2 :] *= 1 + 2.0**-20
        got, right = lse(x, backend="triton").lse.double(), lse.reference(x)["lse"]
        torch.testing.assert_close(got, right, rtol=2.0**-22, atol=0)


def operand_node(name: str) -> str:
    return f'"op":"operand","v":1,"args":[],"attrs":{{"dtype":"str:float","kind":"str:tile","name":"str:{name}","period":"int:0","width":"str:1"}}'


def operand_json(name: str) -> str:
    return f'{{"name":"{name}","kind":"tile","width":"1","period":0,"dtype":"float","default":null}}'


def test_nan_is_passed_on_by_maps_and_ignored_by_maxima(interp: Any) -> None:
    interp(check_nan)


def check_nan() -> None:
    for name, k in (("maths", 16), ("reductions", 16), ("segments", 16)):
        p, m, n = programs.program(name), 5, 64
        bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 4)
        bound["a"][2] = math.nan
        bound["b"][:, 40] = math.nan
        programs.compare(p, bound, programs.run(p, bound, m, n, k, programs.Schedule(**SMALL)), m, n)


def test_integers_above_2_24_are_exact(interp: Any) -> None:
    interp(check_integers)


def check_integers() -> None:
    p, m, n, k = programs.program("integers"), 7, 40, 16
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 5)
    bound["index"] = torch.tensor([2**24 + 1, -(2**40) - 7, 2**53 + 1, 0, -1, 49, 51])
    bound["shift"] = torch.arange(n) * -(2**33) + 3
    bound["bias"] = torch.tensor(2**20)
    got = programs.run(p, bound, m, n, k, programs.Schedule(**SMALL))
    programs.compare(p, bound, got, m, n)
    assert got["big"][2] == 3 * (2**53 + 1) + m - (2**53 + 1) + 1


@pytest.mark.parametrize("case", [("residual_rms", "residual", "h"), ("swiglu_backward", "z", "dz")], ids=str)
def test_output_may_be_a_tile_operand(interp: Any, case: tuple[str, str, str]) -> None:
    interp(check_alias, *case)


def check_alias(name: str, operand: str, output: str) -> None:
    p, m, n, k = programs.program(name), 20, 72, 16
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 6)
    schedule = programs.Schedule(**{**SMALL, "split": 2})  # the second part is read before the first is written
    want = programs.run(p, bound, m, n, k, schedule)
    out = programs.outputs(p, m, n, torch.float32, "cpu")
    out[f"out.{output}"] = bound[operand]
    got = programs.run(p, bound, m, n, k, schedule, out)
    assert all(torch.equal(got[x], want[x]) for x in want)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "packed"), [(72, True), (73, False)])
def test_pairs_move_as_integers_where_alignment_allows(interp: Any, dtype: str, n: int, packed: bool) -> None:
    if dtype == "float32" and not packed:
        n = 75  # rows of 2·75·4 bytes begin between two multiples of 16
    interp(check_pairs, dtype, n, packed)


def check_pairs(dtype: str, n: int, packed: bool) -> None:
    p, m, k = programs.program("swiglu_backward"), 20, 24
    bound = programs.inputs(p, m, n, k, getattr(torch, dtype), "cpu", 3)
    out = programs.outputs(p, m, n, getattr(torch, dtype), "cpu")
    specs = tuple(sorted((x, programs.spec_of(t)) for x, t in {**bound, **out}.items()))
    schedule = programs.Schedule(**SMALL)
    source = programs.BACKEND.compile(p, programs.Problem(m, n, k, dtype, specs, None), schedule, None).source
    assert ("unpacked(z_in" in source) is packed
    assert (", packed(" in source) is packed
    programs.compare(p, bound, programs.run(p, bound, m, n, k, schedule), m, n)


@pytest.mark.parametrize("name", ["exp", "exp_down", "expm1", "log1p", "sigmoid", "tanh", "erf", "sin", "cos"])
def test_functions_are_accurate(interp: Any, name: str) -> None:
    assert interp(worst_error, name) <= 1e-6


def worst_error(name: str) -> float:
    """Largest relative error (absolute for sin, cos) over magnitudes from 1e-30 to the end of the function's range."""
    from coda.primitives import map as primitives

    def f(x: programs.Tile) -> dict[str, Any]:  # type: ignore[name-defined]
        y = primitives.exp(-primitives.abs(x)) if name == "exp_down" else getattr(primitives, name)(x)
        return {"y": y}

    f.__annotations__ = {"x": programs.Tile}
    p = programs.trace(f, programs.signature(f, "pointwise"))
    top = {"log1p": 1e30, "sigmoid": 85.0, "tanh": 60.0, "erf": 60.0, "sin": 1e5, "cos": 1e5, "exp_down": 87.0}.get(
        name, 88.0
    )
    x = torch.cat(
        [
            torch.logspace(-30, math.log10(top), 3000, dtype=torch.float64),
            torch.linspace(0, min(top, 100.0), 5192, dtype=torch.float64),
        ]
    ).float()
    x = torch.cat(
        [
            x,
            -x.clamp(max=0.999999)
            if name == "log1p"
            else -x.clamp(max=86.0)
            if name in ("exp", "expm1", "sigmoid")
            else -x,
        ]
    )
    x = x.reshape(128, 128)
    got = programs.run(p, {"x": x}, 128, 128, 0, programs.Schedule(tile_m=64, tile_n=128, warps=4))["y"].double()
    exact = programs.evaluate(p, {"x": x}, m=128, n=128, dtype=torch.float64, stored_as=None)["y"]
    error = (got - exact).abs()
    if name not in ("sin", "cos"):
        error = torch.where(exact == 0, error, error / exact.abs().clamp(min=1e-37))
    special = torch.tensor([[math.inf, -math.inf, math.nan, 0.0]])
    ends = programs.run(p, {"x": special}, 1, 4, 0, programs.Schedule(tile_m=1, tile_n=4, warps=1))["y"]
    wanted = programs.evaluate(p, {"x": special}, m=1, n=4, dtype=torch.float64, stored_as=None)["y"].float()
    assert torch.equal(ends.nan_to_num(9.0, 8.0, 7.0), wanted.nan_to_num(9.0, 8.0, 7.0)), ends
    return float(error.max())


def test_every_fp8_code_by_emulation(interp: Any) -> None:
    interp(check_fp8)


def check_fp8() -> None:
    def f(x):
        return {
            "e4": programs.store(x, dtype="float8_e4m3fn"),
            "e5": programs.store(x, dtype="float8_e5m2"),
            "e5n": programs.store(x, dtype="float8_e5m2", saturate=False),
            "b": programs.store(x, dtype="bfloat16"),
        }

    f.__annotations__ = {"x": programs.Tile}
    f.__name__ = "round_trip"
    renamed = lambda x: {("y" if k == "b" else k): v for k, v in f(x).items()}  # noqa: E731
    renamed.__annotations__ = {"x": programs.Tile}
    p = programs.trace(renamed, programs.signature(renamed, "pointwise"))
    codes = torch.arange(256, dtype=torch.uint8)
    exact = [codes.view(t).float() for t in (torch.float8_e4m3fn, torch.float8_e5m2)]
    values = torch.cat([v[v.isfinite()] for v in exact])
    between = (values.sort().values[1:] + values.sort().values[:-1]) / 2
    x = torch.cat(
        [
            values,
            between,
            torch.randn(512) * 10.0 ** torch.randint(-9, 6, (512,)),
            torch.tensor([math.nan, 1e30, -1e30]),
        ]
    )
    x = torch.cat([x, torch.zeros(-len(x) % 32)]).reshape(-1, 32)
    got = programs.run(p, {"x": x}, x.shape[0], 32, 0, programs.Schedule(**ONE))
    assert torch.equal(
        got["e4"].float().nan_to_num(9e9), x.clamp(-448, 448).to(torch.float8_e4m3fn).float().nan_to_num(9e9)
    )
    assert torch.equal(
        got["e5"].float().nan_to_num(9e9), x.clamp(-57344, 57344).to(torch.float8_e5m2).float().nan_to_num(9e9)
    )
    assert torch.equal(got["e5n"].float().nan_to_num(9e9), x.to(torch.float8_e5m2).float().nan_to_num(9e9))
    assert torch.equal(got["y"].float().nan_to_num(9e9), x.to(torch.bfloat16).float().nan_to_num(9e9))

    def g(x, v):
        return {"y": programs.store(x + v, dtype="float32")}

    g.__annotations__ = {"x": programs.Tile, "v": programs.RowVector}
    q = programs.trace(g, programs.signature(g, "pointwise"))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = codes.view(dtype).reshape(8, 32)
        y = programs.run(q, {"x": every, "v": torch.zeros(32).to(dtype)}, 8, 32, 0, programs.Schedule(**ONE))["y"]
        assert torch.equal(y.nan_to_num(9e9), every.float().nan_to_num(9e9))


def test_bf16_products_are_refused(interp: Any) -> None:
    assert interp(refusal) == ["unsupported", "unsupported", "unsupported"]


def refusal() -> list[str]:
    """Codes of what is refused in an interpreting process: bf16 on the CPU, fp64, and compiling for a GPU."""
    codes = []
    for dtype, arch, target in (("bfloat16", None, None), ("float64", None, None), ("float32", "sm_90", "sm_90")):
        p = programs.program("plain")
        problem = programs.Problem.example(p, m=32, n=32, k=32, dtype=dtype, arch=arch)
        try:
            programs.BACKEND.compile(p, problem, programs.Schedule(**SMALL), target)
        except BackendError as error:
            codes.append(error.code)
    return codes
