"""Schedules: what the mainloop takes, how many stages there is room for, and the shipped choice."""

from __future__ import annotations

import dataclasses

import pytest

import examples_curated
from coda import Schedule, errors, tune
from coda.primitives import RowVector, Tile, erf, exp, segment_max, tanh
from coda.problem import Problem
from coda.tracing import signature, trace

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import BACKEND, configs, cross, lowering

pytestmark = pytest.mark.null


def traced(f, **dtypes):
    return trace(f, signature(f, "epilogue"), dtypes=dtypes)


def reason(program, problem):
    return BACKEND.supports(program, problem).reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # CUTLASS's own
def test_what_was_measured_with_other_generated_or_device_code_is_measured_again():
    from coda.backends.cutedsl import operators
    from coda.backends.finishing.modules import GENERATOR

    generator, _, device = BACKEND.table.split(".")
    assert (generator, device) == (str(GENERATOR), operators.VERSION)


def lowered(name, **sizes):
    program = examples_curated.load(name).program
    problem = Problem.example(program, **sizes)
    return program, problem, lowering.lower(program, problem, 128, 128, "test")


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({}, True),
        ({"tile_n": 256}, True),
        ({"tile_n": 192, "pingpong": True}, True),
        ({"tile_m": 192, "tile_n": 128, "pingpong": True}, True),
        ({"tile_n": 208, "pingpong": True}, True),
        ({"tile_n": 224, "pingpong": True}, False),
        ({"tile_m": 256, "tile_n": 256}, False),
        ({"tile_m": 256, "tile_n": 128, "pingpong": True}, False),
        ({"tile_m": 96}, False),
        ({"tile_n": 120}, False),
        ({"cluster_m": 2, "cluster_n": 2}, True),
        ({"cluster_m": 3}, False),
        ({"cluster_m": 4, "cluster_n": 2}, False),
        ({"warps": 4}, False),
        ({"stages": 4}, False),
        ({"tile_k": 128}, False),
        ({"split_k": 2}, False),
        ({"tma": False}, False),
        ({"backend": "triton"}, False),
    ],
)
def test_schedules(changes, ok):
    _, _, form = lowered("residual_rms")
    schedule = Schedule(**{"backend": "cutedsl", **changes})
    if ok:
        configs.check(schedule, form, 90)
    else:
        with pytest.raises(errors.BadSchedule):
            configs.check(schedule, form, 90)


def test_pairs_with_outputs_need_wider_steps():
    _, _, form = lowered("gemm_swiglu")
    configs.check(Schedule(backend="cutedsl", tile_n=160), form, 90)
    with pytest.raises(errors.BadSchedule):
        configs.check(Schedule(backend="cutedsl", tile_n=144), form, 90)


def test_a_row_that_repeats_needs_tiles_of_whole_periods():
    def f(acc, g: RowVector(period=96)):
        return {"y": acc * g}

    program = traced(f)
    problem = Problem.example(program, n=960)
    assert BACKEND.default_schedule(program, problem).tile_n == 192
    form = lowering.lower(program, problem, 128, 128, "test")
    with pytest.raises(errors.BadSchedule, match="repeats"):
        configs.check(Schedule(backend="cutedsl"), form, 90)
    for dtype in ("bfloat16", "float16"):
        assert not reason(program, Problem.example(program, n=960, dtypes={"g": dtype}))
    assert "g is float64" in reason(program, Problem.example(program, n=960, dtypes={"g": "float64"}))


def test_groups_of_columns_need_tiles_of_whole_groups():
    def f(acc):
        return {"y": acc * segment_max(acc, 128)}

    program = traced(f)
    for m, n in ((4096, 4096), (8192, 8192), (512, 1024)):
        assert BACKEND.default_schedule(program, Problem.example(program, m=m, n=n)).tile_n % 128 == 0
    form = lowering.lower(program, Problem.example(program), 128, 128, "test")
    with pytest.raises(errors.BadSchedule, match="groups of 128 columns are folded"):
        configs.check(Schedule(backend="cutedsl", tile_n=192, pingpong=True), form, 90)

    def g(acc):
        return {"y": acc * segment_max(acc, 32)}

    form = lowering.lower(traced(g), Problem.example(traced(g), arch="sm_100"), 128, 128, "test", packed=True)
    configs.check(Schedule(backend="cutedsl"), form, 100)
    with pytest.raises(errors.BadSchedule, match="less than 64 columns"):
        configs.check(Schedule(backend="cutedsl", tile_n=256), form, 100)


@pytest.mark.parametrize(
    ("name", "tile", "stages"),
    [
        ("swiglu_backward", "128x128pp", 5),
        ("swiglu_backward", "128x192pp", 4),
        ("swiglu_backward", "128x256", 2),
        ("residual_rms", "128x256", 3),
        ("gemm_rope", "128x256", 3),
        ("rms_swiglu", "128x256", 4),
        ("rms_backward", "128x128pp", 5),
        ("gemm_cross_entropy", "128x192pp", 5),
    ],
)
def test_stages_are_worked_out_as_the_mainloop_does(name, tile, stages):
    program, problem, _ = lowered(name)
    m, n = map(int, tile.removesuffix("pp").split("x"))
    schedule = Schedule(backend="cutedsl", tile_m=m, tile_n=n, pingpong=tile.endswith("pp"))
    assert configs.stages(schedule, lowering.lower(program, problem, m, n, "test"), problem) == stages


def test_one_stage_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(cross, "build", lambda *args: pytest.fail("compiled"))

    def four(acc, w: Tile, x: Tile, y: Tile, z: Tile):
        s = acc + w + x + y + z
        return {"p": s, "q": s * 2}

    program = traced(four)
    problem = Problem.example(program)
    with pytest.raises(errors.BadSchedule, match="stages"):
        BACKEND.compile(program, problem, Schedule(backend="cutedsl", tile_n=256), "sm_90")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    "size", [(1, 128), (64, 4096), (512, 4096), (1000, 1032), (4096, 4096), (8192, 8192), (4096, 32768)]
)
def test_the_shipped_choice_is_valid_for_every_supported_example(arch, size):
    for id_ in examples_curated.catalog():
        program = examples_curated.load(id_).program
        if not hasattr(program, "nodes") or program.kind != "epilogue":
            continue
        problem = Problem.example(program, m=size[0], n=size[1], k=512, arch=arch)
        if not BACKEND.supports(program, problem).ok:
            continue
        schedule = BACKEND.default_schedule(program, problem)
        form = lowering.lower(program, problem, schedule.tile_m, schedule.tile_n, "test")
        configs.check(schedule, form, configs.family(arch))
        assert arch != "sm_90" or configs.check_stages(schedule, form, problem) >= 2


@pytest.mark.parametrize(
    ("task", "m", "n", "k", "tile"),
    [
        ("gemm_swiglu", 4096, 4096, 4096, (128, 128, 2)),  # 192 columns would leave a sixth of the last wave idle
        ("gemm_swiglu", 8192, 8192, 4096, (128, 192, 2)),
        ("rms_backward", 16384, 4096, 12288, (128, 192, 2)),
        ("swiglu_backward", 8192, 8192, 8192, (128, 192, 2)),
        ("swiglu_backward", 16384, 11008, 4096, (128, 128, 2)),  # too short a product for that epilogue
        ("gelu_backward", 8192, 8192, 8192, (128, 192, 2)),
        ("spectral_mask", 8192, 8192, 8192, (128, 192, 2)),
        ("spectral_mask", 8192, 8192, 8191, (128, 128, 2)),
        ("rms_scale", 128, 4096, 4096, (64, 64, 1)),
        ("rms_scale", 1, 64, 4096, (64, 64, 1)),
    ],
)
def test_the_shipped_choice(task, m, n, k, tile):
    program = examples_curated.load(task).program
    chosen = BACKEND.default_schedule(program, Problem.example(program, m=m, n=n, k=k, arch="sm_90"))
    assert (chosen.tile_m, chosen.tile_n, chosen.cluster_m) == tile
    assert chosen.pingpong


def test_whole_rows_in_one_wave_read_a_once():
    """Without ping-pong, but for what reads much or sums up columns; a call takes this backend there, and for any small product of few
    columns."""
    light, gated, columns, pairs = (
        examples_curated.load(name).program for name in ("rms_scale", "rms_swiglu", "gelu_backward", "swiglu_backward")
    )

    def chosen(program, m, n):
        schedule = BACKEND.default_schedule(program, Problem.example(program, m=m, n=n, k=4096, arch="sm_90"))
        return schedule.tile_m, schedule.tile_n, schedule.pingpong

    assert chosen(light, 16384, 256) == chosen(gated, 16384, 256) == (128, 256, False)
    assert chosen(light, 16384, 200) == (128, 256, False)
    assert {chosen(light, m, 256)[2] for m in (512, 17000, 65536)} == {True}
    assert chosen(light, 16384, 128)[2]
    assert chosen(pairs, 16384, 256)[2]
    assert chosen(columns, 16384, 256)[2]
    assert {tune.order(Problem.example(light, m=m, n=n, k=4096))[0] for m in (512, 16384) for n in (128, 256)} == {
        "cutedsl"
    }
    assert tune.order(Problem.example(light, m=512, n=4096, k=4096))[0] == "triton"


@pytest.mark.parametrize(
    ("task", "m", "n", "k", "tile"),
    [
        ("residual_rms", 4096, 4096, 11008, (128, 256, False)),
        ("residual_rms", 4096, 4096, 4096, (128, 128, True)),
        ("residual_rms", 8192, 8192, 8192, (128, 192, True)),  # 256 columns would leave half of the last wave idle
        ("gelu_backward", 4096, 4096, 11008, (128, 128, True)),
        ("rms_backward", 4096, 4096, 11008, (128, 128, True)),  # two tiles read, and columns summed
        ("residual_rms", 512, 4096, 11008, (128, 128, True)),
    ],
)
def test_a_long_product_before_a_light_epilogue_takes_the_widest_tile(task, m, n, k, tile):
    program = examples_curated.load(task).program
    chosen = BACKEND.default_schedule(program, Problem.example(program, m=m, n=n, k=k, arch="sm_90"))
    assert (chosen.tile_m, chosen.tile_n, chosen.pingpong) == tile


def test_more_instructions_than_the_product_hides_take_128_columns():
    def busy(acc, z: Tile):
        return {"y": acc * erf(z) * tanh(z) * exp(z) / (1.0 + z * z)}

    chosen = [
        BACKEND.default_schedule(p, Problem.example(p, m=8192, n=8192, k=4096))
        for p in (traced(busy), dataclasses.replace(traced(busy), fast_math=True))
    ]
    assert [s.tile_n for s in chosen] == [128, 192]
