"""Programs, inputs and comparisons of the GPU tests and of `gpu_probe.py`; compiles them ahead, many at a time.

CASES     every (program, sizes, dtype, schedule) that the tests run
check     run one case and compare every output with `coda.evaluate` in fp64
warm      compile all cases in parallel processes into quack's disk cache (`python gpu_checks.py SHARD SHARDS`)
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import filelock
import torch

from coda.backends.cutedsl import BACKEND, configs
from coda.binding import bind
from coda.evaluate import evaluate
from coda.primitives import (
    ColVector,
    RowVector,
    Scalar,
    Tile,
    abs,
    clamp,
    col_absmax,
    col_sum,
    column_index,
    cos,
    exp,
    gelu,
    maximum,
    minimum,
    pair,
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
    sin,
    sqrt,
    store,
    tanh,
    unpair,
    where,
)
from coda.problem import Schedule
from coda.program import EpilogueProgram
from coda.tracing import signature, trace

SUITE = (
    "gemm_rope",
    "gemm_swiglu",
    "gemm_cross_entropy",
    "residual_rms",
    "residual_layernorm",
    "rms_scale",
    "rms_swiglu",
    "rms_rope",
    "rms_cross_entropy",
    "rms_backward",
    "swiglu_backward",
    "softcap_cross_entropy",
    "bias_gelu_fp8",
)
PLAN = ("residual_rms", "scaled")


def bias_gelu_sums(acc, bias: RowVector, scale: ColVector):
    """f(0) is not 0 and a loaded vector is stale beyond the matrix: sums must not see either."""
    y = gelu(acc + bias) * exp(scale)
    e = exp(-acc * 0.1 + bias)
    return {"y": y, "r": row_sum(e), "c": col_sum(e), "top": row_max(y), "amax": row_absmax(e), "ca": col_absmax(e)}


def half_sums(acc, scale: ColVector):
    """Pairs: full and half width, every fold."""
    a, b = unpair(acc * scale)
    h = sigmoid(a) * b
    mean, variance = row_moments(acc * scale)
    return {
        "mean": mean,
        "variance": variance,
        "h": h,
        "y": pair(b, a),
        "s": row_mean(h + 1.0),
        "l": row_logsumexp(h),
        "top": row_max(h),
        "amax": row_absmax(h),
        "c": col_sum(acc + 1.0),
    }


def wide_vectors(acc, z: Tile(width=2), w: RowVector(width=2), eps: Scalar):
    """Two views, a wide row, no accumulator in one output, a scalar."""
    g, u = unpair(z * w)
    return {"y": z + eps, "t": store(acc * g, dtype="float32"), "top": row_max(pair(g, u)), "s": row_sum(z)}


def integers(acc, t: ColVector, k: RowVector):
    """int32 vectors as they are, int64 only as an index."""
    inside = (column_index() >= minimum(k, 900)) & (row_index() < rows() - 1)
    return {"y": where(inside, acc, 0.25) + maximum(clamp(k, -5, 5), 1), "p": select_column(acc, t)}


def special(acc, r: RowVector, t: ColVector):
    """Infinities and NaN: r has zeros, so acc / r has infinities of both signs; t selects one of them."""
    y = acc / r
    return {
        "l": row_logsumexp(minimum(y, 1e30)),
        "li": row_logsumexp(abs(y)),
        "p": select_column(y, t),
        "y": maximum(sqrt(r) * acc, 0.0),  # NaN where r is negative
        "top": row_max(sqrt(acc)),
    }


def rope(acc, f: RowVector(width=0.5, period=32), r: RowVector(period=64), p: ColVector):
    """Angles from positions and frequencies, computed in registers; rows that repeat."""
    even, odd = unpair(acc * r)
    angle = p * f + column_index(0.5) * 0.125
    return {"y": pair(even * cos(angle) - odd * sin(angle), even * sin(angle) + odd * cos(angle))}


def half_row(acc, f: RowVector(width=0.5)):
    """A row of half the width."""
    a, b = unpair(acc)
    return {"h": a * f + b, "s": row_sum(b * f)}


def infinite(acc, v: ColVector):
    """Infinite rows: what is beyond the matrix would be 0·inf, and turn their sums into NaN."""
    mean, variance = row_moments(acc)
    sums = {"s": row_sum(acc), "w": row_sum(abs(acc) * v), "c": col_sum(acc)}
    return {**sums, "amax": row_absmax(acc), "mean": mean, "variance": variance}


def far_from_zero(acc, far: RowVector, skew: ColVector):
    """Deviations a hundredth of the mean: squares would cancel. Beyond the matrix the row is stale, f(0) is not 0."""
    mean, variance = row_moments(acc + 100.0 + 0.5 * far)
    other, spread = row_moments(acc * skew)
    huge, beyond = row_moments(acc * 1e25)  # squares overflow, means do not
    more = {"huge": huge, "beyond": beyond, "s": row_sum(acc * acc)}
    return {"mean": mean, "variance": variance, "other": other, "spread": spread, **more}


def maths(acc, x: Tile):
    """sin and cos far out, and the functions with a hardware approximation."""
    return {"s": store(sin(x * 4096.0) + 0 * acc, "float32"), "c": store(cos(x) + tanh(acc), "float32")}


def near(acc, x: Tile):
    """Functions with a hardware approximation, at arguments where it is a good one."""
    return {"s": store(sin(x) + 0 * acc, "float32"), "c": store(cos(x) + tanh(acc), "float32")}


def heads(acc, short: RowVector(period=64), half: RowVector(width=0.5, period=32), p: ColVector, eps: Scalar):
    """Groups of columns normalised where they are; rows of 16 bits that repeat, one of them for two columns each."""
    n = acc * rsqrt(segment_mean(acc * acc, 64) + eps) * short
    even, odd = unpair(n)
    return {"y": pair(even * half - odd, odd * half + even), "s": row_sum(n)}


def blocks(acc, r: RowVector, v: ColVector):
    """Every fold of groups, groups of two sizes, their outputs, and statistics beside them."""
    x = acc * r + v
    scale = maximum(segment_absmax(x, 64), 1e-12) / 448.0
    return {
        "y": x / scale,
        "scale": scale,
        "top": segment_max(x, 32),
        "s": row_sum(x * segment_mean(x, 64)),
        "c": col_sum(x * segment_sum(x, 32)),
    }


def targets(acc, t: ColVector, far: RowVector(period=64)):
    """int64, beyond 32 bits on both sides, compared with numbers of rows and columns."""
    hit = (column_index() == t) | (abs(t) < 3) | (t - 5 > row_index()) | (far > 2)
    return {"y": where(hit, acc, 0.25), "p": select_column(acc, t)}


def columns_kept(acc, z: Tile(width=2)):
    """Moves pairs and nothing else."""
    return {"y": z}


def traced(f: Any, **dtypes: str) -> EpilogueProgram:
    """The program of a function."""
    return trace(f, signature(f, "epilogue"), dtypes=dtypes)


def curated(file: str, name: str) -> EpilogueProgram:
    """A program of the bank."""
    return getattr(importlib.import_module(f"examples_curated.{file}"), name).program


PROGRAMS: dict[str, EpilogueProgram] = {name: curated(name, name) for name in SUITE}
PROGRAMS |= {f"plan.{name}": curated("residual_rms_linear", name) for name in PLAN}
PROGRAMS |= {
    "bias_gelu_sums": traced(bias_gelu_sums),
    "half_sums": traced(half_sums),
    "wide_vectors": traced(wide_vectors),
    "integers": traced(integers, t="int", k="int"),
    "special": traced(special, t="int"),
    "maths": traced(maths),
    "near": traced(near),
    "columns_kept": traced(columns_kept),
    "rope": traced(rope, p="int"),
    "half_row": traced(half_row),
    "infinite": traced(infinite),
    "far_from_zero": traced(far_from_zero),
    "heads": traced(heads),
    "blocks": traced(blocks),
    "targets": traced(targets, t="int", far="int"),
}


FUNCTIONS = {
    "exp": 88.0,
    "expm1": 88.0,
    "exp2": 126.0,
    "sigmoid": 85.0,
    "tanh": 60.0,
    "erf": 60.0,
    "sin": 1e5,
    "cos": 1e5,
    "log": 1e6,
    "log2": 1e6,
    "log1p": 1e6,
    "sqrt": 1e6,
    "rsqrt": 1e6,
}
"""Functions of one number, and how far out they are tried."""


def function(name: str) -> EpilogueProgram:
    """The program of one function of an fp32 tile; the product is zero."""
    from coda.primitives import map as primitives

    def f(acc, x: Tile):
        return {"y": store(getattr(primitives, name)(x) + acc, "float32")}

    return traced(f)


PROGRAMS |= {f"function.{name}": function(name) for name in FUNCTIONS}


@dataclasses.dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    tile: str = "128x128pp"
    cluster: tuple[int, int] = (2, 1)
    fast: bool = False

    @property
    def program(self) -> EpilogueProgram:
        """The program."""
        p = PROGRAMS[self.name]
        return dataclasses.replace(p, fast_math=True) if self.fast else p

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        m, n = map(int, self.tile.removesuffix("pp").split("x"))
        pingpong = self.tile.endswith("pp")
        return Schedule(
            "cutedsl", tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=self.cluster[0], cluster_n=self.cluster[1]
        )

    def __str__(self) -> str:
        return f"{self.name}-{self.m}x{self.n}x{self.k}-{self.dtype}-{self.tile}{'-fast' if self.fast else ''}"


ALIGNED, RAGGED, TINY = (512, 768, 512), (300, 1040, 264), (1, 144, 8)
WHOLE = [name for name in PROGRAMS if not name.startswith("function.")]
CASES = [Case(name, *ALIGNED) for name in WHOLE]
PERIODIC = ("rope", "heads", "blocks", "targets")
"""Their N is a multiple of 64."""
CASES += [Case(name, 300, 1088 if name in PERIODIC else 1040, 264) for name in WHOLE]
CASES += [Case(name, *RAGGED, "float16") for name in WHOLE if name not in PERIODIC]
CASES += [Case(name, 300, 1088, 264, tile=t) for name in PERIODIC for t in ("128x192pp", "128x256", "64x256pp")]
CASES += [
    Case(name, *TINY)
    for name in ("residual_rms", "residual_layernorm", "rms_swiglu", "gemm_cross_entropy", "rms_backward")
]
HEAVY = (
    "swiglu_backward",
    "rms_backward",
    "rms_cross_entropy",
    "half_sums",
    "bias_gelu_sums",
    "residual_layernorm",
    "far_from_zero",
)
CASES += [Case(name, *RAGGED, tile=t) for name in HEAVY for t in ("128x192pp", "128x256", "64x256")]
CASES += [Case(name, *RAGGED, tile="256x128", cluster=(1, 1)) for name in ("residual_rms", "gemm_rope")]
CASES += [Case(name, *RAGGED, fast=True) for name in ("swiglu_backward", "rms_swiglu", "near")]


FUNCTION_CASES = [Case(f"function.{name}", 256, 256, 64) for name in FUNCTIONS]


def function_inputs(case: Case) -> dict[str, Any]:
    """Arguments of every magnitude and sign; a product of zero."""
    name = case.name.removeprefix("function.")
    top, half = FUNCTIONS[name], 256 * 128
    sizes = torch.cat(
        [
            torch.logspace(-20, math.log10(top), half, dtype=torch.float64),
            torch.linspace(1e-3, min(top, 60.0), half, dtype=torch.float64),
        ]
    )
    x = sizes.float().reshape(256, 256).cuda()
    if name not in ("log", "log2", "sqrt", "rsqrt", "log1p"):
        x = torch.where(torch.arange(256, device="cuda") % 2 == 0, x, -x.clamp(max=85.0) if "exp" in name else -x)
    zeros = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    return {"a": zeros[:, :64].contiguous(), "b": zeros[:64], "x": x}


def inputs(case: Case, seed: int = 0, device: str = "cuda") -> dict[str, Any]:
    """Tensors of a case."""
    g = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device)  # noqa: E731
    tensors: dict[str, Any] = {
        "a": normal(case.m, case.k).to(dtype),
        "b": (normal(case.k, case.n) / math.sqrt(case.k)).to(dtype),
    }
    for o in case.program.operands:
        shape = o.shape(case.m, case.n)
        if o.kind == "scalar":
            tensors[o.name] = 300.0 if o.name == "scale" else 0.5 if o.default is None else o.default
        elif case.name == "rope":
            tensors[o.name] = (
                normal(*shape) if o.name != "p" else torch.randint(0, 4096, shape, generator=g, device=device)
            )
            tensors[o.name] = tensors[o.name].sign() * 2.0**-4 if o.name == "f" else tensors[o.name]
        elif o.dtype == "int":
            wanted = torch.randint(-9, case.n + 9, shape, generator=g, device=device)
            tensors[o.name] = wanted if o.kind == "col" or o.name == "far" else wanted.int()
            if case.name == "targets":
                tensors[o.name][::5] += 2**32 * torch.randint(-3, 3, shape, generator=g, device=device)[::5]
        elif o.name in ("short", "half"):
            tensors[o.name] = normal(*shape).to(dtype)
        else:
            tensors[o.name] = normal(*shape).to(dtype if o.kind == "tile" or o.width == 2 else torch.float32)
    if case.name == "infinite":
        tensors["a"][::3, 0] = math.inf
        tensors["b"][0] = tensors["b"][0].abs()
        tensors["v"][::5] = math.inf
    if case.name == "special":
        tensors["r"][::7] = 0.0
        tensors["t"] = torch.arange(case.m, device=device) % case.n // 7 * 7
    return tensors


def bound(case: Case, tensors: dict[str, Any], out: dict[str, Any] | None = None) -> Any:
    """The checked call; outputs are poisoned."""
    rest = {name: x for name, x in tensors.items() if name not in ("a", "b")}
    found = bind(case.program, (tensors["a"], tensors["b"]), rest, out)
    for name, x in found.tensors.items():
        if name.startswith("out.") and (out or {}).get(name[4:]) is not x:
            x.fill_(math.nan)
    return found


def run(case: Case, tensors: dict[str, Any], out: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Outputs by name."""
    call = bound(case, tensors, out)
    artifact = BACKEND.compile(case.program, call.problem, case.schedule, None)
    BACKEND.launch(artifact, call.tensors)
    return {name: call.tensors[f"out.{name}"] for name in call.outputs}


def error(got: torch.Tensor, exact: torch.Tensor, fast: bool = False) -> float:
    """The largest error in units of what is allowed; infinite where NaN or infinities differ."""
    x, y = got.double(), exact
    if not torch.equal(x.isnan(), y.isnan()):
        return math.inf
    limit = torch.finfo(got.dtype).max
    if got.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):  # these saturate
        y = y.clamp(-limit, limit)
    big = y.abs() > limit
    if not torch.equal(x.isinf(), big & ~y.isnan()) or not torch.equal(x[big].sign(), y[big].sign()):
        return math.inf
    ok = y.isfinite() & ~big
    if not ok.any():
        return 0.0
    size = y[ok].square().mean().sqrt()
    rounding = torch.finfo(got.dtype).eps / 2 if got.dtype.itemsize < 4 else 0.0
    floor = (2e-4 if fast else 2e-5) * (y[ok].abs() + size) + torch.finfo(got.dtype).smallest_normal * (
        2.0**-4 if got.dtype is torch.float8_e4m3fn else 1
    )
    return float(((x - y).abs()[ok] / (1.01 * rounding * y[ok].abs() + floor)).max())


def exact(case: Case, tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Outputs in fp64."""
    return evaluate(case.program, tensors, m=case.m, n=case.n, dtype=torch.float64, stored_as=None)


def check(case: Case, seed: int = 0) -> dict[str, float]:
    """Error of every output, in units of what is allowed."""
    tensors = inputs(case, seed)
    got, wanted = run(case, tensors), exact(case, tensors)
    return {name: error(got[name], wanted[name], case.fast) for name in got}


def warm(processes: int | None = None) -> None:
    """Compile every case, several at a time; once, where several processes of one test run share the cases."""
    run = f"{os.environ.get('PYTEST_XDIST_TESTRUNUID') or os.getpgrp()}-{configs.DEVICE_CODE}"
    mark = pathlib.Path(tempfile.gettempdir()) / f"coda-gpu-checks-{os.getuid()}-{run}"
    with filelock.FileLock(f"{mark}.lock"):
        if not mark.exists():
            _compile_all(processes)
            mark.touch()


def _compile_all(processes: int | None) -> None:
    count = processes or max(1, min(12, (os.cpu_count() or 2) - 2))
    here = pathlib.Path(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen([sys.executable, str(here), str(i), str(count)], env=environment) for i in range(count)
    ]
    for child in children:
        child.wait()


def main(shard: int, shards: int) -> None:
    """Compile every `shards`-th case; what fails is reported where it is run."""
    for case in (CASES + FUNCTION_CASES)[shard::shards]:
        try:
            call = bound(case, function_inputs(case) if case in FUNCTION_CASES else inputs(case))
            BACKEND.compile(case.program, call.problem, case.schedule, None)
        except Exception as problem:
            print(f"{case}: {type(problem).__name__}: {problem}"[:500], file=sys.stderr)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
