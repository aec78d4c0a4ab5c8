"""What the backend refuses, with which sentence; integers in 32 bits."""

from __future__ import annotations

import dataclasses

import pytest

import examples_curated
from coda import Schedule, errors
from coda.backends.registry import Support
from coda.primitives import (
    ColVector,
    RowVector,
    Scalar,
    Tile,
    abs,
    cast,
    clamp,
    column_index,
    pair,
    row_index,
    row_moments,
    row_sum,
    segment_max,
    segment_sum,
    select_column,
    store,
    unpair,
    where,
)
from coda.problem import Problem, TensorSpec
from coda.tracing import signature, trace

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import BACKEND

pytestmark = pytest.mark.null


def traced(f, **dtypes):
    return trace(f, signature(f, "epilogue"), dtypes=dtypes)


def plain(acc, c: Tile, r: RowVector, v: ColVector):
    return {"y": (acc + c) * r + v, "s": row_sum(acc)}


def reason(program, problem=None, **changes):
    problem = problem or Problem.example(program, m=1024, n=960, k=512)
    specs = dict(problem.tensors)
    tensors = {name: spec for name, spec in changes.items() if isinstance(spec, TensorSpec)}
    sizes = {name: x for name, x in changes.items() if name not in tensors}
    specs |= {name.replace("out_", "out."): spec for name, spec in tensors.items()}
    answer = BACKEND.supports(program, dataclasses.replace(problem, tensors=tuple(sorted(specs.items())), **sizes))
    assert answer.ok == (answer.reason == "")
    return answer.reason


BF16 = "bfloat16"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"c": TensorSpec(BF16, "col")}, ""),
        ({"a": TensorSpec(BF16, "col"), "b": TensorSpec(BF16, "col")}, ""),
        ({"r": TensorSpec(BF16), "v": TensorSpec("float16")}, ""),
        ({"out_s": TensorSpec("float32", "any", aligned=False)}, ""),  # the finisher writes any vector
        ({"m": 0}, "empty"),
        ({"k": 0}, "empty"),
        ({"m": 2**31}, "2^31"),
        ({"arch": None}, "CPU"),
        ({"arch": "sm_80"}, "Hopper"),
        ({"arch": "sm_120"}, "Hopper"),
        ({"dtype": "float32"}, "bfloat16 and float16"),
        ({"b": TensorSpec("float16")}, "equal dtypes"),
        ({"a": TensorSpec(BF16, "any")}, "contiguous along neither"),
        ({"a": TensorSpec(BF16, aligned=False)}, "multiple of 16 bytes"),
        ({"c": TensorSpec(BF16, "any")}, "c is not contiguous"),
        ({"c": TensorSpec(BF16, aligned=False)}, "16-byte aligned"),
        ({"c": TensorSpec("float8_e4m3fn")}, "c is float8_e4m3fn"),
        ({"r": TensorSpec("float64")}, "r is float64"),
        ({"v": TensorSpec("float32", "any")}, "strided or unaligned"),
        ({"v": TensorSpec("float32", aligned=False)}, "strided or unaligned"),
        ({"out_y": TensorSpec(BF16, "col")}, "row-major"),
        ({"out_y": TensorSpec(BF16, aligned=False)}, "row-major"),
        ({"out_y": TensorSpec("float8_e5m2")}, ""),
        ({"out_y": TensorSpec("int32")}, "stored as int32"),
    ],
)
def test_tensors(changes, words):
    assert (words in reason(traced(plain), **changes)) if words else not reason(traced(plain), **changes)


def half_width_operand(acc, f: Tile(width=0.5)):
    a, b = unpair(acc)
    return {"y": pair(a * f, b)}


def two_full_outputs(acc):
    a, b = unpair(acc)
    return {"y": pair(b, a), "z": acc}


def half_in_fp32(acc):
    a, b = unpair(acc)
    return {"y": store(a * b, dtype="float32")}


def wide_in_fp32(acc, z: Tile(width=2)):
    return {"y": store(z * 2, dtype="float32")}


def segments(acc):
    return {"s": segment_sum(acc, 48), "y": acc}


def small_segments(acc):
    return {"y": acc * segment_sum(acc, 8)}


def segments_of_a_matrix(acc, c: Tile):
    return {"y": acc * segment_sum(acc + c, 32)}


def segments_of_segments(acc):
    return {"y": acc * segment_sum(acc - segment_sum(acc, 32), 32)}


def segments_of_halves(acc):
    a, b = unpair(acc)
    return {"y": acc * segment_sum(pair(b, a), 32)}


def two_segments_in_one(acc):
    return {"y": acc, "s": segment_sum(acc, 32) / segment_max(acc, 32)}


def sixteen_bit_segments(acc):
    return {"y": acc, "s": store(segment_sum(acc, 32), dtype="bfloat16")}


def periods_that_do_not_meet(acc, g: RowVector(period=96)):
    return {"y": acc * g * segment_max(acc, 128)}


def wide_pairs_that_repeat(acc, g: RowVector(width=2, period=64), z: Tile(width=2)):
    return {"y": z * g}


def moments_of_halves(acc):
    even, odd = unpair(acc)
    mean, variance = row_moments(even * odd)
    return {"mean": mean, "variance": variance}


def moments_of_pairs(acc, z: Tile(width=2)):
    mean, variance = row_moments(z * 2)
    return {"y": acc, "mean": mean, "variance": variance}


def periodic(acc, g: RowVector(period=96), h: RowVector(period=10)):
    return {"y": acc * g * h}


def computed_index(acc, t: ColVector):
    return {"y": select_column(acc, t + 1)}


def fp8_between(acc):
    return {"y": cast(acc, "float8_e4m3fn") * 2}


def integer_product(acc, t: ColVector):
    return {"y": where(t * t > 4, acc, 0.0)}


@pytest.mark.parametrize(
    ("f", "dtypes", "words"),
    [
        (half_width_operand, {}, "f is a tile of half the width"),
        (two_full_outputs, {}, "two outputs of full width"),
        (half_in_fp32, {}, "half the width and is not a 16-bit float"),
        (wide_in_fp32, {}, "width 2 and is stored as float32"),
        (segments, {}, "segment_sum of 48 columns: groups are folded whose columns are a multiple of 32"),
        (small_segments, {}, "segment_sum of 8 columns"),
        (segments_of_a_matrix, {}, "matrix c, which is read after the fold"),
        (segments_of_segments, {}, "depends on segment_sum: both are folded in one walk"),
        (segments_of_halves, {}, "paired columns"),
        (two_segments_in_one, {}, "more than one segment reduction"),
        (sixteen_bit_segments, {}, "stored as bfloat16: those are stored as float32"),
        (moments_of_halves, {}, "row_moments of a value that is narrower"),
        (moments_of_pairs, {}, "row_moments of a value that is wider"),
        (periodic, {}, "h repeats every 10 columns"),
        (computed_index, {"t": "int"}, "from an operand"),
        (fp8_between, {}, "float8_e4m3fn"),
        (integer_product, {"t": "int"}, "mul needs all of an integer of 64 bits"),
    ],
)
def test_programs(f, dtypes, words):
    assert words in reason(traced(f, **dtypes))


def test_periods_that_no_tile_holds():
    program = traced(periods_that_do_not_meet)
    assert "tiles of 384 columns" in reason(program, Problem.example(program, n=3072))
    program = traced(wide_pairs_that_repeat)
    assert "width 2 and repeats" in reason(program, Problem.example(program, n=960, dtypes={"g": "bfloat16"}))


def scalars(acc, s: Scalar, k: Scalar):
    return {"y": where(rows_below(k), acc * s, 0.0)}


def rows_below(k):
    return row_index() < k


def test_int_scalars_go_to_another_backend():
    """Their values are no part of a problem: 2^40, or PyTorch's int64, would be refused at the launch, where nobody can choose."""
    program = traced(scalars, k="int")
    assert {o.name: o.dtype for o in program.operands} == {"s": "float", "k": "int"}
    assert "k is an int scalar" in reason(program)
    assert not reason(traced(scalars, k="float"))

    def in_the_finisher(acc, k: Scalar):
        return {"y": acc, "s": row_sum(acc) * (k % 7)}

    assert not reason(traced(in_the_finisher, k="int"))  # Triton's, which takes 64 bits


def test_auto_runs_what_this_backend_refuses(monkeypatch):
    from coda import tune
    from coda.backends import registry

    for name in ("triton", "cutedsl"):
        monkeypatch.setattr(type(registry.get(name)), "available", lambda self: Support(True))
    monkeypatch.setattr(tune.schedules, "find", lambda *args, **more: None)
    for dtype, chosen in (("float", "cutedsl"), ("int", "triton")):
        program = traced(scalars, k=dtype)
        assert tune.choose(program, Problem.example(program), None, None)[0].name == chosen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # CUTLASS's own
def test_what_the_machine_lacks_is_no_refusal_of_the_compiler(monkeypatch):
    """A tuner takes a `CompileError` for an answer and never tries again."""
    import torch

    from coda.backends.cutedsl import launch

    program = traced(plain)
    runner = launch.Runner(program, Problem.example(program), Schedule(backend="cutedsl"), "sm_90")
    said = {
        errors.BackendUnavailable("no device"): errors.BackendUnavailable,
        OSError(28, "No space left on device"): OSError,
        torch.OutOfMemoryError("CUDA out of memory"): torch.OutOfMemoryError,
        RuntimeError("ptxas died"): errors.CompileError,
    }
    for raised, cls in said.items():

        def fails(lowered, raised=raised):
            raise raised

        monkeypatch.setattr(launch, "modified", fails)
        with pytest.raises(cls) as caught:
            runner.prepare(torch.device("cpu"))
        assert type(caught.value) is cls


def test_programs_without_a_gemm():
    assert "without a GEMM" in reason(examples_curated.load("mx_quantize").program)


def test_matrices_must_leave_room():
    names = [f"t{i}" for i in range(16)]

    def program(count):
        space = {"Tile": Tile}
        exec(
            f"def f(acc, {', '.join(n + ': Tile' for n in names[:count])}): return {{'y': acc + {' + '.join(names[:count])}}}",
            space,
        )
        return traced(space["f"])

    assert not reason(program(8))
    assert "no room" in reason(program(16))


def test_integers_are_proved_to_fit():
    program = traced(integer_product, t="int")
    problem = Problem.example(program, dtypes={"t": "int32"})
    assert "may leave 32 bits" in reason(program, problem)

    def bounded(acc, t: ColVector):
        return {"y": where((t % 1024) * 1024 > 4, acc, 0.0)}

    program = traced(bounded, t="int")
    assert "negative" in reason(program, Problem.example(program, dtypes={"t": "int32"}))

    def floats(acc, t: ColVector):
        return {"y": acc * t}

    for dtype in ("int64", "int32", "uint8"):  # turned into floats by the loader, whatever the integer
        program = traced(floats, t="int")
        assert not reason(program, Problem.example(program, dtypes={"t": dtype}))


def int64(f):
    program = traced(f, t="int")
    return reason(program, Problem.example(program, m=1024, n=960, k=512, dtypes={"t": "int64"}))


def compared(acc, t: ColVector):
    return {"y": where((column_index() == t) & (t + 1 > row_index()), acc, where(abs(t) < 5, 1.0, 0.0))}


def clamped(acc, t: ColVector):
    return {"y": acc * clamp(t, -3, 3)}


def multiplied(acc, t: ColVector):
    return {"y": where(t * 2 > 4, acc, 0.0)}


def far_away(acc, t: ColVector):
    return {"y": where(t > 2**30, acc, 0.0)}


def counted_far(acc, t: ColVector):
    return {"y": where(t + 2**30 > 0, acc, 0.0)}


def both_ways(acc, t: ColVector):
    return {"y": where(t > 3, acc * t, 0.0)}


def with_each_other(acc, t: ColVector):
    return {"y": where(t > -t, acc, 0.0)}


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (compared, ""),
        (clamped, ""),
        (multiplied, "mul needs all of an integer of 64 bits"),
        (far_away, "numbers beyond 2^30"),
        (counted_far, "add needs all"),
        (both_ways, "to_float needs all"),
        (with_each_other, "numbers beyond 2^30"),
    ],
)
def test_integers_of_64_bits_are_compared_and_no_more(f, words):
    assert (words in int64(f)) if words else not int64(f)


def test_width_two_needs_sixteen_bits():
    program = examples_curated.load("swiglu_backward").program
    assert not reason(program)
    assert "only 16-bit floats travel as pairs" in reason(program, Problem.example(program, dtypes={"z": "float32"}))
    assert "column-major" in reason(program, z=TensorSpec(BF16, "col"))


def test_who_asks_for_what_cannot_run_all_the_same_is_told_so() -> None:
    def f(acc, t: ColVector):
        return {"y": where(column_index() == t * t, acc, 0.0)}

    program = traced(f, t="int")
    problem = Problem.example(program, m=512, n=512, k=512)
    specs = tuple((n, dataclasses.replace(s, dtype="int64") if n == "t" else s) for n, s in problem.tensors)
    problem = dataclasses.replace(problem, tensors=specs)
    assert not BACKEND.supports(program, problem).ok
    for ask in (BACKEND.default_schedule, BACKEND.candidates, lambda p, q: BACKEND.check(p, q, Schedule("cutedsl"))):
        with pytest.raises(errors.Unsupported):
            ask(program, problem)
    with pytest.raises(errors.Unsupported):
        BACKEND.compile(program, problem, Schedule("cutedsl"), "sm_90")
