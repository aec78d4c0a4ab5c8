"""Compiling for GPUs that are not here: machine code, resources, what is refused; and that kernels keep their identity."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
import subprocess
import sys

import pytest

import examples_curated
from coda import Schedule, errors
from coda.primitives import (
    ColVector,
    RowVector,
    column_index,
    cos,
    pair,
    row_index,
    rsqrt,
    segment_absmax,
    segment_mean,
    sin,
    store,
    unpair,
    where,
)
from coda.problem import Problem
from coda.tracing import signature, trace

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import BACKEND, configs, cross

pytestmark = [
    pytest.mark.interp,
    pytest.mark.skipif(
        bool(configs.versions_wrong()), reason=configs.versions_wrong() or "the pinned packages are here"
    ),
]

PINGPONG = Schedule(backend="cutedsl", cluster_m=2, pingpong=True)


def problem(name, m, n, arch="sm_90"):
    program = examples_curated.load(name).program
    return program, Problem.example(program, m=m, n=n, k=512, arch=arch)


def test_a_ragged_backward_kernel_on_hopper():
    program, where = problem("swiglu_backward", 1000, 1040)
    artifact = BACKEND.compile(program, where, PINGPONG, "sm_90")
    assert artifact.cubin is not None
    assert artifact.cubin[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", artifact.cubin, 18)[0] == 190  # CUDA
    assert artifact.registers == 168  # pinned by the mainloop's launch bounds
    assert artifact.spills < 64  # 0 where N divides into tiles; the mask of the last tile costs a few registers
    assert 180 * 1024 < artifact.shared_memory <= 227 * 1024
    assert artifact.payload.stages[0] == 5
    assert "split_bfloat16(x_z)" in artifact.source
    assert "def finish_kernel(" in artifact.source


def heads(acc, gamma: RowVector(period=64), f: RowVector(width=0.5, period=32), p: ColVector, *, eps: float = 1e-6):
    n = acc * rsqrt(segment_mean(acc * acc, 64) + eps) * gamma
    even, odd = unpair(n)
    return {"y": pair(even * cos(p * f), odd * sin(p * f))}


def blocks(acc, r: RowVector):
    scale = segment_absmax(acc * r, 128) / 448.0
    return {"q": store(acc / scale, dtype="float8_e4m3fn"), "scale": scale}


def targets(acc, t: ColVector, u: RowVector(period=64)):
    return {"y": where((column_index() == t) & (row_index() > u), acc, 0.0)}


BEYOND_QUACK = {"heads": (heads, {"p": "int"}), "blocks": (blocks, {}), "targets": (targets, {"t": "int", "u": "int"})}


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", BEYOND_QUACK)
def test_segments_repeated_rows_of_16_bits_and_integers_of_64(name, arch):
    function, ints = BEYOND_QUACK[name]
    program = trace(function, signature(function, "epilogue"), dtypes=ints)
    dtypes = dict.fromkeys(ints, "int64") | {"gamma": "bfloat16", "r": "bfloat16"}
    shape = Problem.example(
        program,
        m=1000,
        n=1024,
        k=512,
        arch=arch,
        dtypes={o.name: dtypes.get(o.name, "float32") for o in program.operands if o.kind != "scalar"},
    )
    artifact = BACKEND.compile(program, shape, BACKEND.default_schedule(program, shape), arch)
    assert artifact.cubin is not None
    assert artifact.spills == 0


def test_exact_gelu_backward_is_cheap_enough():
    """Spills on 192 columns grow with the instructions of an element: 144 bytes with the library's erf and exp."""
    program, where = problem("gelu_backward", 8192, 8256)
    artifact = BACKEND.compile(program, where, dataclasses.replace(PINGPONG, tile_n=192), "sm_90")
    assert artifact.spills <= 120


@pytest.mark.parametrize(("n", "tile", "spills"), [(1024, 128, 0), (1056, 128, 0), (1040, 128, 0), (1024, 192, 128)])
def test_moments_leave_the_mainloop_its_registers_and_stages(n, tile, spills):
    """With whole tiles, whole parts of one, single columns masked; bytes that are spilled."""
    program, where = problem("residual_layernorm", 1000, n)
    artifact = BACKEND.compile(program, where, dataclasses.replace(PINGPONG, tile_n=tile), "sm_90")
    assert artifact.spills <= spills
    assert artifact.payload.stages[0] == (6 if tile == 128 else 4)
    assert f"tiles_n, M, rows, rows_ok, N, {tile})" in artifact.source  # a slot of the finisher is a tile


@pytest.mark.parametrize("name", ["rms_cross_entropy", "residual_layernorm"])
def test_statistics_on_blackwell(name):
    program, where = problem(name, 1000, 1040, "sm_100")
    artifact = BACKEND.compile(program, where, BACKEND.default_schedule(program, where), "sm_100")
    assert artifact.cubin is not None
    assert artifact.registers > 32


def test_what_cannot_be_built_is_refused_without_compiling():
    program, where = problem("rms_scale", 128, 128)
    with pytest.raises(errors.BadSchedule, match="cutedsl"):
        BACKEND.compile(program, where, Schedule(), "sm_90")
    with pytest.raises(errors.Unsupported, match="Hopper"):
        BACKEND.compile(program, where, PINGPONG, "sm_80")
    pointwise = examples_curated.load("mx_quantize").program
    with pytest.raises(errors.Unsupported, match="without a GEMM"):
        BACKEND.compile(pointwise, Problem.example(pointwise), PINGPONG, "sm_90")


def test_a_slow_compilation_is_ended():
    program, where = problem("rms_scale", 128, 128)
    with pytest.raises(errors.CompileError, match="too long"):
        cross.build(program, where, PINGPONG, "sm_90", seconds=0.2)


IDENTITY = """
import torch, linecache
from coda.backends.cutedsl import launch, operators
from coda.backends.cutedsl.lowering import lower
from coda.problem import Problem
from coda.tracing import signature, trace

def program(c, fast=False):
    def f(acc):
        from coda.primitives import exp, row_sum
        y = exp(acc * c)
        return {"y": y, "s": row_sum(y)}
    import dataclasses
    return dataclasses.replace(trace(f, signature(f, "epilogue")), fast_math=fast)

def digest(p, n=256, version=operators.VERSION):
    operators.VERSION = version
    lowered = lower(p, Problem.example(p, m=256, n=n, k=64), 128, 128, version)
    launch.modified.cache_clear()
    return launch.modified(lowered).semantic_digest

assert digest(program(2.0)) == digest(program(2.0))
different = [digest(program(2.0)), digest(program(2.5)), digest(program(2.0, True)), digest(program(2.0), 264)]
different.append(digest(program(2.0), 256, "another version of operators.py"))
assert len(set(different)) == 5, different
"""


def test_different_kernels_never_share_an_identity():
    """Constants, fast maths, masks and the version of our operators are all in quack's digest."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", IDENTITY], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_importing_the_backend_imports_neither_quack_nor_cutlass():
    code = "import sys, coda.backends.cutedsl; print([m for m in ('quack', 'cutlass', 'triton') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_without_the_packages_the_import_fails_and_names_them(tmp_path):
    code = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'quack' else real(name, *a)\n"
        "import coda.backends.cutedsl"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: quack-kernels is not installed" in run.stderr


def test_machine_code_is_found_in_an_object_file():
    with pytest.raises(errors.CompileError, match="no machine code"):
        cross.resources(pathlib.Path(sys.executable).read_bytes()[:100_000])
