"""Small programs that together use every operation, and the check that the backend's tests share.

PROGRAMS   name -> Case: the function, its kind, dtypes of vectors, what N must be a multiple of
program    the traced program of a case
run        bind tensors (poisoned outputs, guarded nothing), launch, return the outputs
check      run and compare with the evaluation in fp64, within twice what PyTorch in fp32 loses
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.backends.triton import BACKEND
from coda.evaluate import evaluate
from coda.primitives import (
    ColVector,
    RowVector,
    Scalar,
    Tile,
    cast,
    ceil,
    clamp,
    col_absmax,
    col_max,
    col_mean,
    col_sum,
    column_index,
    columns,
    cos,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    gelu,
    log,
    log1p,
    log2,
    maximum,
    minimum,
    pair,
    relu,
    round,
    row_absmax,
    row_index,
    row_logsumexp,
    row_max,
    row_mean,
    row_moments,
    row_sum,
    rows,
    rsqrt,
    segment_absmax,
    segment_max,
    segment_mean,
    segment_sum,
    select_column,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    store,
    tanh,
    unpair,
    where,
)
from coda.problem import ITEM_BYTES, Problem, Schedule, TensorSpec
from coda.program import EpilogueProgram
from coda.testing import on_tensor_cores
from coda.tracing import signature, trace


@dataclass(frozen=True)
class Case:
    """A program under test."""

    function: Callable[..., Any]
    kind: str = "epilogue"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    multiple: int = 1
    fast_math: bool = False


PROGRAMS: dict[str, Case] = {}


def case(kind: str = "epilogue", *, multiple: int = 1, fast_math: bool = False, **dtypes: str) -> Callable[[Any], Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = Case(function, kind, dtypes, multiple, fast_math)
        return function

    return add


@case()
def plain(acc):
    return {"y": acc}


@case()
def swiglu_backward(acc, z: Tile(width=2)):
    g, u = unpair(z)
    s = sigmoid(g)
    y = g * s
    dg, du = acc * u * (s + y * (1 - s)), acc * y
    return {"dz": pair(dg, du), "h": y * u, "zdz": row_sum(g * dg + u * du)}


@case(multiple=2)
def swiglu(acc):
    g, u = unpair(acc)
    return {"z": acc, "h": silu(g) * u, "top": row_absmax(g), "sums": col_sum(u)}


@case()
def residual_rms(acc, residual: Tile, gamma: RowVector, *, eps: float = 1e-6):
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


@case(target="int")
def cross_entropy(acc, target: ColVector, scale: Scalar):
    x = acc * scale
    lse = row_logsumexp(x)
    return {"loss": where(target >= 0, lse - select_column(x, target), 0.0), "lse": lse}


@case()
def norm_backward(acc, x: Tile, gamma: RowVector, rstd: ColVector, mean: ColVector):
    xhat = (x - mean) * rstd
    return {
        "dx": acc * gamma * rstd,
        "dgamma": col_sum(acc * xhat),
        "dbeta": col_sum(acc),
        "c1": row_mean(acc * gamma),
        "c2": row_mean(acc * gamma * xhat),
        "twice": col_mean(exp(acc)) * 2 + gamma,
    }


@case()
def reductions(acc):
    e = exp(acc)
    mean, var = row_moments(e)
    return {
        "rs": row_sum(e),
        "rm": row_mean(e),
        "rx": row_max(acc - 3),
        "ra": row_absmax(acc),
        "cs": col_sum(e),
        "cm": col_mean(e),
        "cx": col_max(acc - 3),
        "ca": col_absmax(acc),
        "mean": mean,
        "std": sqrt(var + 1e-5),
        "lse": row_logsumexp(e),
    }


@case()
def maths(acc):
    x = acc * 3
    p = abs(x) + 0.5
    return {
        "e": exp(-p) + exp2(x) + expm1(x * 0.01),
        "l": log(p) + log2(p) + log1p(p),
        "r": sqrt(p) * rsqrt(p + 1),
        "t": sin(x) + cos(x * 2),
        "h": tanh(x) + erf(x) + sigmoid(x),
        "i": round(x) + floor(x * 2) + ceil(x * 3) + sign(x),
        "s": softplus(x) + gelu(x) + gelu(x, "tanh") + relu(x) + silu(x),
        "c": clamp(x, -1.0, 1.5) + minimum(x, 0.25) + maximum(-x, x * 2) + x**3,
        "w": where((x > 0.5) | ~(x >= -1) & (x != 0), x, -x)
        + where((x < 1) & (x <= 0), 1, 2)
        + where(x == 0, 5.0, x / p),
    }


@case(fast_math=True)
def fast(acc):
    return {"y": tanh(acc) + sigmoid(acc) + exp(acc), "s": row_sum(acc)}


@case(index="int", shift="int", bias="int")
def integers(acc, index: ColVector, shift: RowVector, bias: Scalar):
    i = index * 1000003 + shift // 7 - row_index() % 5
    j = (column_index() - 3) % 4 + (index - 50) // 3 + bias
    causal = column_index() <= row_index()
    return {
        "i": store(i + columns() * 0, dtype="int64"),
        "j": store(j, dtype="int32"),
        "masked": where(causal, acc, -1.0) + where(i > j, 1, 0),
        "big": store(index * 3 + rows() - abs(index) + sign(index), dtype="int64"),
        "low": store(minimum(shift, 4) + maximum(shift, 9) + column_index(), dtype="int64"),
    }


@case(multiple=32)
def segments(acc, z: Tile(width=2), gain: ColVector):
    q = segment_absmax(acc, 16)
    scale = maximum(q, 1e-6) / 127.0
    m = segment_mean(z, 8)
    return {
        "x": round(acc / scale),
        "scale": scale * gain,
        "m": m,
        "d": z - m,
        "s": segment_sum(acc, 32),
        "hi": segment_max(z - 5, 2),
    }


@case(multiple=24)
def odd_segments(acc, freq: RowVector(period=24)):
    q = segment_absmax(acc, 12)
    g, u = unpair(acc)
    return {
        "x": acc / (q + 1) + freq,
        "q": q * 2,
        "hi": segment_max(acc - 4, 24),
        "half": segment_sum(g * u, 6),
        "rs": row_sum(exp(acc)),
        "lse": row_logsumexp(acc),
        "var": row_moments(acc)[1],
        "cs": col_sum(exp(acc)),
    }


@case(multiple=12)
def rope(acc, freq: RowVector(period=6, width=0.5), position: ColVector):
    x, y = unpair(acc)
    angle = freq * position
    c, s = cos(angle), sin(angle)
    return {"y": pair(x * c - y * s, x * s + y * c)}


@case(multiple=2, k="int")
def vectors(acc, gamma: RowVector, wide: RowVector(width=2), narrow: RowVector(width=0.5), c: ColVector, k: ColVector):
    even, odd = unpair(gamma)
    both = pair(gamma, gamma * 2)
    return {
        "half": even * odd + narrow,
        "two": both + wide,
        "col": c * 2 + k,
        "mixed": col_sum(pair(acc, gamma)) * wide,
        "t": acc * unpair(wide)[1] + pair(narrow, 1.0),
        "p": pair(unpair(acc)[0], c),
    }


@case()
def stores(acc, r: Tile):
    y = acc + r
    return {
        "y": y,
        "y16": store(y, dtype="float16"),
        "y32": store(y, dtype="float32"),
        "yb": store(y, dtype="bfloat16"),
        "f8": store(y * 200, dtype="float8_e4m3fn"),
        "f8n": store(y * 200, dtype="float8_e4m3fn", saturate=False),
        "f5": store(y * 30000, dtype="float8_e5m2"),
        "f5n": store(y * 30000, dtype="float8_e5m2", saturate=False),
        "c": cast(y, "bfloat16") + cast(y * 100, "float8_e4m3fn") + cast(y, "float16") + cast(y, "float8_e5m2"),
        "s": store(row_sum(y), dtype="float16"),
    }


@case("pointwise")
def rms_norm(x: Tile, gamma: RowVector, *, eps: float = 1e-6):
    return {"y": x * gamma, "rstd": rsqrt(row_mean(x * x) + eps), "cs": col_sum(x)}


@case("pointwise", multiple=2)
def swiglu_forward(z: Tile(width=2), scale: ColVector):
    g, u = unpair(z)
    return {"h": silu(g) * u * scale, "top": row_max(z)}


@case("pointwise", multiple=8)
def quantize(x: Tile, amax: ColVector):
    return {"q": store(x / amax * 448, dtype="float8_e4m3fn"), "s": segment_absmax(x, 8), "amax": amax / 448}


def program(name: str) -> EpilogueProgram:
    """The traced program of a case."""
    c = PROGRAMS[name]
    return trace(c.function, signature(c.function, c.kind), fast_math=c.fast_math, dtypes=c.dtypes)  # type: ignore[arg-type]


# running ------------------------------------------------------------------------------------------------------------


def spec_of(x: torch.Tensor) -> TensorSpec:
    """Layout and alignment of a tensor."""
    name = str(x.dtype).removeprefix("torch.")
    if x.ndim < 2:
        return TensorSpec(name, "row" if x.stride() in ((1,), ()) or x.numel() < 2 else "any", x.data_ptr() % 16 == 0)
    layout = "row" if x.stride(1) == 1 else "col" if x.stride(0) == 1 else "any"
    outer = {"row": x.stride(0), "col": x.stride(1), "any": 1}[layout]
    return TensorSpec(name, layout, x.data_ptr() % 16 == 0 and outer * ITEM_BYTES[name] % 16 == 0)  # type: ignore[arg-type]


def inputs(p: EpilogueProgram, m: int, n: int, k: int, dtype: torch.dtype, device: str, seed: int) -> dict[str, Any]:
    """Random inputs: tiles in `dtype`, float vectors in fp32, int vectors in int64."""
    g = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {}
    if p.kind == "epilogue":
        found["a"] = torch.randn(m, k, generator=g).to(dtype)
        found["b"] = (torch.randn(k, n, generator=g) / math.sqrt(max(k, 1))).to(dtype)
    for o in p.operands:
        shape = o.shape(m, n)
        if o.kind == "scalar":
            found[o.name] = o.default if o.default is not None else 3 if o.dtype == "int" else 1.5
        elif o.dtype == "int":
            found[o.name] = torch.randint(-2, max(n, 1) + 2, shape, generator=g)
        else:
            found[o.name] = (
                torch.randn(shape, generator=g).abs().add(0.5)
                if o.kind != "tile"
                else torch.randn(shape, generator=g).to(dtype)
            )
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in found.items()}


def outputs(p: EpilogueProgram, m: int, n: int, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Outputs full of NaN (or of a conspicuous integer)."""
    found = {}
    for o in p.outputs:
        target = getattr(torch, p.output_dtype(o.name, str(dtype).removeprefix("torch.")))
        shape = p.output_shape(o.name, m, n)
        if target.is_floating_point:
            found[f"out.{o.name}"] = torch.full(shape, math.nan, device=device).to(target)
        else:
            found[f"out.{o.name}"] = torch.full(shape, -(2**31), dtype=target, device=device)
    return found


def run(
    p: EpilogueProgram,
    bound: Mapping[str, Any],
    m: int,
    n: int,
    k: int,
    schedule: Schedule | None,
    out: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Launch on these inputs; every output by name."""
    first = bound["a"] if p.kind == "epilogue" else bound[p.first_tile.name]  # type: ignore[union-attr]
    out = out or outputs(p, m, n, first.dtype, str(first.device))
    tensors = {**bound, **out}
    specs = tuple(
        sorted((name, spec_of(x)) for name, x in tensors.items() if isinstance(x, torch.Tensor) and x.ndim != 0)
    )
    arch = f"sm_{''.join(map(str, torch.cuda.get_device_capability()))}" if first.is_cuda else None
    problem = Problem(m, n, k, str(first.dtype).removeprefix("torch."), specs, arch)
    artifact = BACKEND.compile(p, problem, schedule or BACKEND.default_schedule(p, problem), None)
    BACKEND.launch(artifact, tensors)
    return {name.removeprefix("out."): x for name, x in out.items()}


BITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}


def compare(p: EpilogueProgram, bound: Mapping[str, Any], got: Mapping[str, torch.Tensor], m: int, n: int) -> None:
    """Against fp64 from the same inputs, within twice the error of fp32 PyTorch (on a GPU with the vendor's accumulators) plus some
    units in the last place."""
    first = bound["a"] if p.kind == "epilogue" else bound[p.first_tile.name]  # type: ignore[union-attr]
    name = str(first.dtype).removeprefix("torch.")
    exact = evaluate(p, bound, m=m, n=n, dtype=torch.float64, stored_as=None)
    product = on_tensor_cores if first.is_cuda else None
    eager = evaluate(p, bound, m=m, n=n, dtype=torch.float32, stored_as=name, product=product)
    for o in p.outputs:
        y, ref, other = got[o.name], exact[o.name], eager[o.name]
        assert (y.shape, y.dtype) == (ref.shape, other.dtype), o.name
        if not y.dtype.is_floating_point:
            assert torch.equal(y, other), f"{o.name}: integers differ"
            continue
        y, other = y.double(), other.double()
        if not o.saturate and y.dtype is torch.float64 and p.output_dtype(o.name, name) == "float8_e4m3fn":
            other = torch.where(ref.abs() > 464, math.nan, other)  # PyTorch 2.13 clips although it was not asked to
        assert torch.equal(y.isnan(), other.isnan()), (
            f"{o.name}: NaN in other places: {int(y.isnan().sum())} and {int(other.isnan().sum())}"
        )
        infinite = other.isinf() | other.isnan()
        assert torch.equal(y[other.isinf()], other[other.isinf()]), f"{o.name}: infinities differ"
        if p.output_dtype(o.name, name).startswith("float8"):
            ref = other  # every code is checked; ties may fall either way
        y, ref, other = y[~infinite], ref[~infinite], other[~infinite]
        if y.numel():
            error, allowed = (y - ref).abs().max().item(), 2 * (other - ref).abs().max().item()
            bits = BITS.get(str(got[o.name].dtype).removeprefix("torch."), 2.0**-20)
            floor = bits * max(ref.abs().max().item(), 1e-3)
            assert error <= allowed + floor, f"{o.name}: error {error:.3g}, allowed {allowed:.3g} + {floor:.3g}"


def check(
    name: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    schedule: dict[str, Any] | None = None,
    device: str = "cpu",
) -> None:
    """One program on one problem, twice: right, and the same bits both times."""
    p, c = program(name), PROGRAMS[name]
    n = -(-n // c.multiple) * c.multiple
    k = k if c.kind == "epilogue" else 0
    bound = inputs(p, m, n, k, getattr(torch, dtype), device, seed=m * 7 + n + k)
    chosen = None if schedule is None else Schedule(**schedule)
    got = run(p, bound, m, n, k, chosen)
    compare(p, bound, got, m, n)
    again = run(p, bound, m, n, k, chosen)
    for output, x in got.items():
        assert torch.equal(x.view(torch.uint8), again[output].view(torch.uint8)), f"{output}: two runs differ"
