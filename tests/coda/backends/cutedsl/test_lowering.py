"""What a program becomes, and that it means the same: generated functions run here on whole matrices, in fp64.

The functions that a generated body calls are given PyTorch meanings, so that mode, lanes, pairs, stores and statistics
are compared with `coda.evaluate` without a GPU. What the device makes of them is the GPU tests' business.
"""

from __future__ import annotations

import importlib
import inspect
import math

import pytest
import torch

import coda
import examples_curated
from coda.evaluate import evaluate
from coda.primitives import (
    ColVector,
    RowVector,
    Scalar,
    Tile,
    clamp,
    col_max,
    column_index,
    columns,
    cos,
    gelu,
    maximum,
    minimum,
    pair,
    row_absmax,
    row_index,
    row_logsumexp,
    row_max,
    row_mean,
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
    sin,
    store,
    unpair,
    where,
)
from coda.problem import Problem
from coda.tracing import signature, trace

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import lowering
from coda.backends.finishing.anatomy import statistic

pytestmark = pytest.mark.interp

SUITE = [
    ("gemm_rope", "gemm_rope"),
    ("gemm_swiglu", "gemm_swiglu"),
    ("gemm_cross_entropy", "gemm_cross_entropy"),
    ("residual_rms", "residual_rms"),
    ("residual_layernorm", "residual_layernorm"),
    ("rms_scale", "rms_scale"),
    ("rms_swiglu", "rms_swiglu"),
    ("rms_rope", "rms_rope"),
    ("rms_cross_entropy", "rms_cross_entropy"),
    ("rms_backward", "rms_backward"),
    ("swiglu_backward", "swiglu_backward"),
    ("residual_rms_linear", "residual_rms"),
    ("residual_rms_linear", "scaled"),
]


def curated(file, name):
    return getattr(importlib.import_module(f"examples_curated.{file}"), name).program


# more programs than the suite: everything that the lowering has a branch for ----------------------------------------


def everything_wide(acc, z: Tile(width=2), w: RowVector(width=2), v: ColVector, t: Tile):
    g, u = unpair(z * w)
    both = pair(g * acc, u + v)
    return {
        "both": both,
        "t": store(t * g, dtype="float32"),
        "s": row_sum(both),
        "top": row_max(both),
        "amax": row_absmax(both),
        "c": col_max(g - u),
    }


def halves(acc, v: ColVector, r: RowVector, z: Tile(width=2)):
    a, b = unpair(acc * v)
    p, q = unpair(r)
    zs = z * 2.0
    return {
        "wide": zs,
        "h": sigmoid(a) * b + p * q,
        "s": row_mean(a * b),
        "l": row_logsumexp(a),
        "top": row_max(a),
        "amax": row_absmax(b),
        "c": col_max(acc),
    }


def integers(acc, t: ColVector, k: RowVector, s: Scalar):
    i = (row_index() * 3 + columns()) % 7
    inside = (column_index() >= t) & (row_index() < rows() - 1) & ~(k == 3)
    return {
        "y": where(inside, acc * k, where(i > 3, -acc, 0.25)) + s,
        "n": acc + minimum(maximum(t, 5), 999) - sign(t) + abs(clamp(k, -9, 9)) // 2,
        "chosen": select_column(acc / 4.0, t),
    }


def maths(acc, r: RowVector):
    x = clamp(acc, -2.0, 2.0)
    y = gelu(x) + gelu(x, approximate="tanh") + cos(x * r) + 1 / (2 + x * x)
    return {"y": y, "q": round(x * 8) / 8, "s": row_sum(x * y)}


def rope(acc, f: RowVector(width=0.5), g: RowVector(width=0.5, period=4), r: RowVector(period=8), p: ColVector):
    even, odd = unpair(acc * r)
    angle = p * f * g + column_index(0.5)
    return {"y": pair(even * cos(angle) - odd * sin(angle), even * sin(angle) + odd * cos(angle))}


def heads(acc, gamma: RowVector(period=32), f: RowVector(width=0.5, period=16), p: ColVector, *, eps: float = 1e-6):
    n = acc * rsqrt(segment_mean(acc * acc, 32) + eps) * gamma
    even, odd = unpair(n)
    angle = p * f
    return {
        "y": pair(even * cos(angle) - odd * sin(angle), even * sin(angle) + odd * cos(angle)),
        "power": maximum(segment_sum(acc * acc, 32), 1e-3) / 4.0,
    }


def blocks(acc, r: RowVector, v: ColVector, c: Tile):
    x = acc * r + v
    scale = maximum(segment_absmax(x, 64), 1e-12) / 448.0
    return {
        "q": x / scale + c,
        "scale": scale,
        "top": segment_max(acc - column_index(), 32),
        "s": row_sum(x * segment_mean(x, 64)),
    }


def wide_targets(acc, t: ColVector, u: RowVector):
    """int64: compared, clamped and counted from, wherever they are."""
    inside = (column_index() == t) | (t - 7 > row_index()) | (abs(t) < 3) | (sign(u) < 0)
    return {"y": where(inside, acc, 0.25) + clamp(t, -5, 9) + maximum(minimum(u, 40), -40)}


def traced(f, **dtypes):
    return trace(f, signature(f, "epilogue"), dtypes=dtypes)


OTHERS = {
    "wide": traced(everything_wide),
    "halves": traced(halves),
    "integers": traced(integers, t="int", k="int"),
    "maths": traced(maths),
    "rope": traced(rope, p="int"),
    "heads": traced(heads, p="int"),
    "blocks": traced(blocks),
    "wide_targets": traced(wide_targets, t="int", u="int"),
}
PROGRAMS = {f"{file}.{name}": curated(file, name) for file, name in SUITE} | OTHERS
PROGRAMS["softcap_cross_entropy"] = curated("softcap_cross_entropy", "softcap_cross_entropy")


# the device's functions, on matrices --------------------------------------------------------------------------------


class Pair:
    """Both columns of a pair."""

    def __init__(self, a, b):
        self.a, self.b = a, b


def split(x):
    return x[:, 0::2], x[:, 1::2]


def join(even, odd):
    return torch.stack(torch.broadcast_tensors(even, odd), -1).flatten(-2)


def same(x):
    return x


def as_tensor(x):
    return torch.as_tensor(x, dtype=torch.float64) if isinstance(x, (int, float)) else x


MEANING = {
    "split_bfloat16": split,
    "split_float16": split,
    "join_bfloat16": join,
    "join_float16": join,
    "integer": same,
    "to_float": lambda x: x.double(),
    "Float32": as_tensor,
    "Int32": lambda x: torch.as_tensor(x),
    "Boolean": lambda x: torch.as_tensor(x),
    "pack": Pair,
    "div": lambda x, y: x / y,
    "maximum": lambda x, y: torch.maximum(as_tensor(x), as_tensor(y)),
    "minimum": lambda x, y: torch.minimum(as_tensor(x), as_tensor(y)),
    "larger": torch.fmax,
    "where": lambda c, x, y: torch.where(c, as_tensor(x), as_tensor(y)),
    "where_int": lambda c, x, y: torch.where(c, x, y),
    "magnitude": torch.abs,
    "sign": torch.sign,
    "round_even": torch.round,
    "reciprocal": torch.reciprocal,
    "exp_nonpositive": torch.exp,
    "fma": lambda x, y, z: x * y + z,
    "inf": math.inf,
    "nan": math.nan,
    **{
        n: getattr(torch, n) for n in ("exp", "log1p", "expm1", "tanh", "erf", "sigmoid", "cos", "sin", "rsqrt", "sqrt")
    },
}


def simulated(program, problem, tensors):
    """Tile outputs and statistics of the generated function."""
    lowered = lowering.lower(program, problem, 128, 128, "test")
    names = dict(MEANING)
    exec(compile(lowered.source, "<generated>", "exec"), names)
    pairs = lowered.mode == "acc_pair"
    acc = tensors["a"].double() @ tensors["b"].double()
    places = {
        "row_index": torch.arange(problem.m),
        "column_index": torch.arange(problem.n),
        "half_index": torch.arange(problem.n // 2),
    }
    arguments, written = {}, {}
    for port in sorted(lowered.parameters, key=lambda port: port.how == "segment"):
        if port.how == "segment":
            x = segment_statistic(lowered, names, port, acc, arguments).repeat_interleave(port.period, 1)
            arguments[port.name] = Pair(*split(x)) if pairs else x
            continue
        if port.how == "count":
            arguments[port.name] = torch.tensor(problem.m if port.operand == "rows" else problem.n)
            continue
        x = places[port.operand] if port.operand in places else torch.as_tensor(tensors[port.operand])
        if port.narrow:
            x = x.clamp(-(2**30), 2**30)
        x = x.double() if x.is_floating_point() or not (port.how == "scalar" or port.view or port.narrow) else x
        if port.how == "col":
            x = x[:, None]
        elif port.how == "spread":
            x = x.repeat_interleave(2 if port.half else 1)
            x = x.repeat(problem.n // x.numel())[None]
            x = Pair(*split(x)) if pairs else x
        elif port.how in ("row", "tile"):
            x = x[None] if port.how == "row" else x
            if pairs:  # of a view every element is itself two numbers
                step = 2 if port.view and x.shape[1] == 2 * problem.n else 1
                x = Pair(*split(x)) if step == 1 else Pair(*(torch.stack(h, -1).flatten(-2) for h in wide_halves(x)))
        arguments[port.name] = x
    for outside in lowered.segments:
        port = next(p for p in lowered.ports if p.name == outside.segment)
        folded = segment_statistic(lowered, names, port, acc, arguments)
        written[outside.output] = names[outside.function](folded)
    results = names[lowered.function](Pair(*split(acc)) if pairs else acc, **arguments)
    full = {k: join(v.a, v.b) if isinstance(v, Pair) and not wide(v, problem) else v for k, v in results.items()}
    return lowered, full | written


def segment_statistic(lowered, names, port, acc, arguments):
    """What is folded of every element, folded."""
    before = names[lowered.prepass]
    seen = {n: arguments[n] for n in inspect.signature(before).parameters if n != "acc"}
    value = before(acc, **{n: join(x.a, x.b) if isinstance(x, Pair) else x for n, x in seen.items()})[port.name]
    groups = value.unflatten(1, (-1, port.period))
    return groups.sum(-1) if port.fold == "sum" else groups.amax(-1)


def wide_halves(x):
    """Even and odd pairs of an (M, 2N) matrix, each as the pair of its columns."""
    q = x.reshape(x.shape[0], -1, 4)
    return (q[:, :, 0], q[:, :, 1]), (q[:, :, 2], q[:, :, 3])


def wide(v, problem):
    return v.a.shape[1] == problem.n


def joined_wide(v):
    q = torch.stack([v.a.reshape(v.a.shape[0], -1, 2), v.b.reshape(v.b.shape[0], -1, 2)], 2)
    return q.flatten(1)


def folded(sink, value, n, tensors, program):
    s = sink.statistic
    if isinstance(value, tuple):
        value = value[0] * value[1]
    dim = 0 if s.axis == "col" else 1
    if s.fold == "sum":
        return value.sum(dim)
    if s.fold == "max":
        return value.amax(dim)
    if s.fold == "absmax":
        return value.abs().amax(dim)
    if s.fold == "logsumexp":
        return value.logsumexp(dim)
    if s.fold == "moments":
        return value
    index = tensors[str(program.nodes[s.index].attr("name"))]
    inside = (index >= 0) & (index < n)
    return torch.where(inside, value.gather(1, torch.where(inside, index, 0)[:, None])[:, 0], 0.0)


def inputs(program, problem, seed=0):
    g = torch.Generator().manual_seed(seed)
    tensors = {
        "a": torch.randn(problem.m, problem.k, generator=g),
        "b": torch.randn(problem.k, problem.n, generator=g) / 4,
    }
    for o in program.operands:
        if o.kind == "scalar":
            tensors[o.name] = o.default if o.default is not None else 0.75
        elif o.dtype == "int":
            tensors[o.name] = torch.randint(-3, problem.n + 3, o.shape(problem.m, problem.n), generator=g)
            if problem.spec(o.name).dtype == "int64":  # beyond 32 bits on both sides
                tensors[o.name][::3] = torch.randint(-(2**40), 2**40, tensors[o.name][::3].shape, generator=g)
                tensors[o.name][::5] = torch.tensor([2**32, 2**32 + 5, -(2**32) + 1])[
                    torch.arange(len(tensors[o.name][::5])) % 3
                ]
        else:
            tensors[o.name] = torch.randn(o.shape(problem.m, problem.n), generator=g)
    return tensors


def example(program, m=12, n=16, k=8):
    n = n if "segment" not in "".join(node.op for node in program.nodes) else 128
    width = "int64" if program.name in ("wide_targets", "heads") else "int32"
    ints = {o.name: width for o in program.operands if o.dtype == "int" and o.kind != "scalar"}
    return Problem.example(
        program,
        m=m,
        n=n,
        k=k,
        dtypes=ints | dict.fromkeys([o.name for o in program.operands if o.width == 2], "bfloat16"),
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_generated_function_means_the_program(name):
    program = PROGRAMS[name]
    problem = example(program)
    tensors = inputs(program, problem)
    expected = evaluate(program, tensors, m=problem.m, n=problem.n, dtype=torch.float64, stored_as=None)
    lowered, results = simulated(program, problem, tensors)
    assert {s.output for s in lowered.stores} == {
        o.name for o in program.outputs if program.output_type(o.name).kind == "tile"
    }
    for s in lowered.segments:
        torch.testing.assert_close(results[s.output], expected[s.output], rtol=1e-12, atol=1e-12)
    for s in lowered.stores:
        value = results[s.name]
        value = joined_wide(value) if isinstance(value, Pair) else value
        torch.testing.assert_close(value.expand(expected[s.output].shape), expected[s.output], rtol=1e-12, atol=1e-12)
    nodes = program.nodes
    for sink in lowered.sinks:  # one that is returned as it is must equal its output
        for output in program.outputs:
            node = nodes[output.node]
            if node.args and node.args[0] == sink.statistic.source and statistic(node) == sink.statistic:
                value = folded(sink, results[sink.name], problem.n, tensors, program)
                if node.op == "row_moments":
                    value = value.mean(1) if node.attr("part") == "mean" else value.var(1, correction=0)
                value = value / problem.m if node.op == "col_mean" else value
                value = value / program.nodes[node.args[0]].type.columns(problem.n) if node.op == "row_mean" else value
                torch.testing.assert_close(value, expected[output.name], rtol=1e-12, atol=1e-12)


def shape_of(name):
    lowered = lowering.lower(PROGRAMS[name], Problem.example(PROGRAMS[name]), 128, 128, "test")
    return (
        lowered.mode,
        [(s.name, s.view) for s in lowered.stores],
        [(s.statistic.axis, s.statistic.fold, s.mask, s.scaled) for s in lowered.sinks],
        [(p.name, p.how, p.view) for p in lowered.ports],
    )


def test_the_suite_takes_the_modes_and_operators_that_were_measured():
    assert shape_of("gemm_swiglu.gemm_swiglu") == ("acc_pair", [("D", False), ("o_h", False)], [], [])
    assert shape_of("gemm_rope.gemm_rope") == ("acc_pair", [("D", False)], [], [("x_cos_sin", "tile", False)])
    assert shape_of("swiglu_backward.swiglu_backward") == (
        "element",
        [("D", True), ("o_h", False)],
        [("row", "sum", "", False)],
        [("x_z", "tile", True)],
    )
    assert shape_of("residual_rms.residual_rms") == (
        "element",
        [("D", False), ("o_q", False)],
        [("row", "sum", "", True)],
        [("x_residual", "tile", False), ("x_gamma", "row", False)],
    )
    assert shape_of("gemm_cross_entropy.gemm_cross_entropy") == (
        "element",
        [("D", False)],
        [("row", "logsumexp", "", False), ("row", "select", "", False)],
        [("i_target", "index", False)],
    )


@pytest.mark.parametrize(
    ("m", "n", "tile", "rows", "columns"),
    [
        (256, 256, (128, 128), "", ""),
        (200, 256, (128, 128), "", "elements"),
        (256, 264, (128, 128), "elements", ""),
        (256, 288, (128, 128), "parts", ""),
        (384, 256, (256, 128), "", "parts"),
        (448, 256, (256, 128), "", "elements"),
        (384, 256, (192, 128), "", ""),
        (512, 256, (192, 128), "", "elements"),
    ],
)
def test_statistics_are_masked_where_the_matrix_does_not_divide(m, n, tile, rows, columns):
    @coda.epilogue
    def both(acc, r: RowVector):
        y = acc * r
        return {"y": y, "s": row_sum(y * y), "c": col_max(y)}

    problem = Problem.example(both.program, m=m, n=n, k=64)
    sinks = lowering.lower(both.program, problem, *tile, "test").sinks
    assert {s.statistic.axis: s.mask for s in sinks} == {"row": rows, "col": columns}
    assert [s.scaled for s in sinks if s.statistic.axis == "row"] == [rows != "elements"]
    sinks = lowering.lower(both.program, problem, *tile, "test", packed=True).sinks  # parts of another size
    assert "parts" not in {s.mask for s in sinks}


def test_sizes_are_arguments_and_not_in_the_text():
    program = PROGRAMS["softcap_cross_entropy"]
    texts = {
        lowering.lower(program, Problem.example(program, m=m, n=n, k=k), 128, 128, "t").source
        for m, n, k in [(128, 256, 64), (384, 1024, 128)]
    }
    assert len(texts) == 1


def test_different_programs_have_different_functions_and_the_same_one_is_stable():
    def f(acc, c: float = 1.0):
        return {"y": acc * 2.0}

    def g(acc, c: float = 1.0):
        return {"y": acc * 3.0}

    p, q = traced(f), traced(g)
    make = lambda x, v="1": lowering.lower(x, Problem.example(x), 128, 128, v)  # noqa: E731
    assert make(p).function == make(p).function
    assert len({make(p).function, make(q).function, make(p, "2").function}) == 3
    named = [curated("rms_scale", "rms_scale"), curated("residual_rms_linear", "scaled")]
    assert len({make(x).function for x in named}) == 1  # two names of one program share a kernel


def test_pairs_of_lanes_on_blackwell():
    program = PROGRAMS["residual_rms.residual_rms"]
    source = lowering.lower(program, Problem.example(program, arch="sm_100"), 128, 128, "t", packed=True).source
    assert "acc.lo, x_residual.lo, x_gamma.lo" in source
    assert "F2(lo[name], hi[name])" in source
    assert "(v4, v4)" not in source


def test_every_example_is_supported_or_has_a_reason():
    from coda.backends.cutedsl import BACKEND

    for id_ in examples_curated.catalog():
        program = examples_curated.load(id_).program
        if not hasattr(program, "nodes"):
            continue
        answer = BACKEND.supports(program, Problem.example(program))
        assert answer.ok or len(answer.reason) > 20
        assert answer.ok or (id_, id_) not in SUITE
