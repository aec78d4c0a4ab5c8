"""The type rules: what combines, what does not, and what each mistake says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import coda
import coda.primitives as primitives
from coda import errors
from coda.primitives import (
    NAMES,
    ColVector,
    RowVector,
    Scalar,
    Tile,
    cast,
    clamp,
    col_sum,
    column_index,
    columns,
    gelu,
    maximum,
    minimum,
    pair,
    relu,
    round,
    row_index,
    row_logsumexp,
    row_max,
    row_mean,
    row_moments,
    row_sum,
    rows,
    rsqrt,
    segment_absmax,
    segment_mean,
    segment_sum,
    select_column,
    sign,
    silu,
    softplus,
    store,
    unpair,
    where,
)
from coda.primitives.value import OPS
from coda.tracing import signature, trace


def program(function, kind="epilogue", **options):
    return trace(function, signature(function, kind), **options)


def raises(error, function, *words, kind="epilogue"):
    """The function cannot be traced; the message has every word and names the author's line."""
    with pytest.raises(error) as caught:
        program(function, kind)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    return caught.value


def value_of(function, m=3, n=4, dtype=torch.float64, **tensors):
    """The output `y` of a pointwise function on `x`, in fp64."""
    return program(function, "pointwise").reference(dtype=dtype, **tensors)["y"]


pytestmark = pytest.mark.null


# the closed list ----------------------------------------------------------------------------------------------------


def test_the_closed_list_is_the_contracts():
    listed = """where minimum maximum clamp abs sign exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tanh erf sigmoid silu
    softplus gelu relu round floor ceil cast pair unpair row_index column_index rows columns RowVector ColVector Scalar Tile
    store row_sum row_mean row_max row_absmax col_sum col_mean col_max col_absmax segment_sum segment_mean segment_max
    segment_absmax row_logsumexp row_moments select_column"""
    assert set(NAMES) == set(listed.split())


def test_every_operation_states_class_version_and_formula():
    for op in OPS.values():
        assert op.primitive_class in (1, 2, 3, 4, 5)
        assert op.version >= 1
        assert op.flops >= 0
        assert op.formula


def test_every_name_has_a_docstring():
    assert [n for n in NAMES if not getattr(primitives, n).__doc__] == []


def test_a_missing_name_lists_near_ones():
    with pytest.raises(errors.UnknownPrimitive, match="row_softmax") as caught:
        primitives.row_softmax
    assert "row_sum" in caught.value.hint or "row_max" in caught.value.hint
    assert not hasattr(primitives, "matmul")
    with pytest.raises(errors.UnknownPrimitive, match=r"no 'square'\n  hint: write x \* x"):
        primitives.square
    with pytest.raises(ImportError):
        from coda.primitives import sotre  # noqa: F401


OPERAND = "pass it as an operand of the kernel"


@pytest.mark.parametrize(
    ("use", "said", "hint"),
    [
        (torch.sigmoid, "torch's sigmoid() on a traced value", "write sigmoid(x), from coda.primitives"),
        (torch.special.expit, "torch's special_expit()", "write sigmoid(x), from coda.primitives"),
        (torch.nn.functional.silu, "torch's silu()", "write silu(x), from coda.primitives"),
        (torch.nn.Sequential(torch.nn.ReLU()), "torch's relu()", "write relu(x), from coda.primitives"),
        (lambda v: torch.maximum(v, v), "torch's maximum()", "write maximum(x, y), from coda.primitives"),
        (lambda v: torch.where(v > 0, v, 0), "torch's where()", "write where(condition, a, b), from coda.primitives"),
        (lambda v: v.clamp(0, 1), "`.clamp`", "write clamp(x, low, high), from coda.primitives"),
        (lambda v: torch.pow(v, 2), "torch's pow()", "write x**2: a power is a constant integer"),
        (lambda v: v.square(), "`.square`", "write x * x"),
        (lambda v: v.to(torch.float16), "`.to`", "store(x, dtype) rounds what is returned"),
        (lambda v: torch.add(v, v), "torch's add()", "write x + y"),
        (lambda v: torch.remainder(v, 2), "torch's remainder()", "x % y of integers, x - y * floor(x / y) of floats"),
        (lambda v: torch.logical_not(v), "torch's logical_not()", "write ~c of a condition"),
        (lambda v: torch.ones(3).__iadd__(v), "not something a program can compute with", OPERAND),
        (lambda v: torch.tensor(v), "torch.tensor()", "a value is used as it is"),
        (lambda v: v.amin(1), "`.amin`", "the smallest of a row is -row_max(-x)"),
        (lambda v: v.isnan(), "`.isnan`", "write x != x"),
        (lambda v: v.permute(1, 0), "`.permute`", "the primitives are: abs, "),
        (lambda v: torch.matmul(v, v), "torch's matmul()", "a program has one GEMM, whose result is `acc`"),
        (torch.nn.Linear(4, 4), "torch's linear()", "a program has one GEMM, whose result is `acc`"),
        (lambda v: torch.softmax(v, -1), "torch's softmax()", "row_max"),
        (lambda v: v.sigmoid(), "`.sigmoid` of a traced value", "write sigmoid(x), from coda.primitives"),
        (lambda v: v.mT, "`.mT` of a traced value", "the primitives are"),
        (lambda v: v * torch.ones(3), "not something a program can compute with", OPERAND),
        (lambda v: torch.ones(3) * v, "not something a program can compute with", OPERAND),
        (lambda v: torch.ones(3) - v, "not something a program can compute with", OPERAND),
        (lambda v: maximum(v, torch.ones(3)), "not something a program can compute with", OPERAND),
        (lambda v: np.ones(3) * v, "not something a program can compute with", OPERAND),
        (lambda v: v * "2", "not something a program can compute with", None),
        (np.exp, "numpy's exp() on a traced value", "write exp(x), from coda.primitives"),
        (np.abs, "numpy's absolute()", "write abs(x), from coda.primitives"),
        (lambda v: np.maximum(v, 0), "numpy's maximum()", "write maximum(x, y), from coda.primitives"),
        (lambda v: np.clip(v, 0, 1), "numpy's clip()", "write clamp(x, low, high), from coda.primitives"),
        (lambda v: np.add(v, 1, out=np.ones(3)), "numpy's add()", "write x + y"),
        (np.add.reduce, "numpy's add()", "write x + y"),
        (np.asarray, "np.asarray()", "operators, and functions of coda.primitives"),
        (lambda v: np.array([v, v]), "np.asarray()", "operators, and functions of coda.primitives"),
    ],
)
def test_a_value_is_no_tensor(use, said, hint):
    def function(x: primitives.Tile):
        return {"y": use(x)}

    with pytest.raises(errors.AuthoringError) as caught:
        program(function, "pointwise")
    assert said in caught.value.what
    assert hint in caught.value.hint if hint else caught.value.hint is None
    assert "test_primitives.py" in caught.value.where


@pytest.mark.parametrize("name", ["tile", "scalar", "row_vector", "nosuch"])
def test_what_annotates_parameters_is_no_function_of_values(name):
    def f(x: Tile):
        return {"y": getattr(x, name)}

    with pytest.raises(errors.UnknownPrimitive) as caught:
        program(f, "pointwise")
    assert not any(kind in caught.value.hint for kind in ("Tile", "Scalar", "RowVector", "ColVector"))


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.1), np.float16(0.1), np.int64(3), np.array(0.1)])
def test_a_number_of_numpy_is_the_python_number(number):
    def made(by):
        def f(x: Tile):
            return {"y": by * x - x / by, "z": maximum(x, by), "w": where(by < x, by, x)}

        return program(f, "pointwise")

    assert made(number).digest == made(number.item()).digest
    values = [node.attr("value") for node in made(number).nodes if node.op == "const"]
    assert {type(value) for value in values} <= {int, float}


@pytest.mark.parametrize("power", [2, np.int64(2), np.array(2)])
def test_a_power_is_any_whole_number(power):
    def f(x: Tile):
        return {"y": x**power}

    assert [node.op for node in program(f, "pointwise").nodes] == ["operand", "mul"]


def test_no_number_that_python_lacks():
    def f(x: Tile):
        return {"y": np.longdouble(0.1) * x}

    raises(errors.AuthoringError, f, "longdouble", "use a Python number: float(x)", kind="pointwise")


def test_a_value_can_be_asked_for_protocols():
    seen = []

    def asked(x: primitives.Tile):
        seen.append([hasattr(x, "__cuda_array_interface__"), hasattr(x, "__len__"), hasattr(x, "shape")])
        return {"y": x}

    program(asked, "pointwise")
    assert seen[0] == [False, True, False]


# kinds and widths ---------------------------------------------------------------------------------------------------


def test_row_and_column_make_a_tile():
    def f(x: Tile, r: RowVector, c: ColVector):
        return {"y": r * c}

    x = torch.zeros(3, 4)
    r, c = torch.arange(4.0), torch.arange(3.0)
    assert torch.equal(value_of(f, x=x, r=r, c=c), torch.outer(c, r).double())


def test_widths_must_be_equal():
    def f(acc, z: Tile(width=2)):
        return {"y": acc + z}

    raises(errors.WidthMismatch, f, "width 2", "unpair", "test_primitives.py:")


def test_pair_is_the_inverse_of_unpair():
    def f(x: Tile):
        even, odd = unpair(x)
        return {"y": pair(even, odd), "swapped": pair(odd, even), "even": even}

    x = torch.randn(3, 6)
    out = program(f, "pointwise").reference(x)
    assert torch.equal(out["y"], x.double())
    assert torch.equal(out["swapped"], x.double().view(3, 3, 2).flip(-1).flatten(1))
    assert torch.equal(out["even"], x[:, ::2].double())


def test_pairs_do_not_nest_below_half_or_above_two():
    def quarter(acc):
        even, _ = unpair(acc)
        return {"y": unpair(even)[0]}

    def four(acc, z: Tile(width=2)):
        return {"y": pair(z, z)}

    raises(errors.WidthMismatch, quarter, "1/2")
    raises(errors.WidthMismatch, four, "width 2")


def test_rows_pair_too():
    def f(x: Tile, r: RowVector):
        even, odd = unpair(r)
        return {"y": x * pair(odd, even)}

    r = torch.arange(4.0)
    assert torch.equal(value_of(f, x=torch.ones(2, 4), r=r)[0], torch.tensor([1.0, 0, 3, 2]).double())


def test_a_periodic_row_repeats_along_the_columns():
    def f(x: Tile, r: RowVector(period=2)):
        return {"y": x * r}

    got = value_of(f, x=torch.ones(2, 6), r=torch.tensor([2.0, 3.0]))
    assert got[0].tolist() == [2, 3, 2, 3, 2, 3]


def test_segments_broadcast_over_their_tile_and_stay_segments_among_themselves():
    def f(x: Tile, c: ColVector):
        s = segment_sum(x, 2)
        return {"y": x / s, "s": s * c + 1, "worst": segment_absmax(x, 2), "mean": segment_mean(x, 2)}

    x = torch.tensor([[1.0, 3.0, -5.0, 1.0]])
    out = program(f, "pointwise").reference(x, torch.tensor([10.0]))
    assert out["y"].tolist() == [[0.25, 0.75, 1.25, -0.25]]
    assert out["s"].tolist() == [[41.0, -39.0]]
    assert out["worst"].tolist() == [[3.0, 5.0]]
    assert out["mean"].tolist() == [[2.0, -2.0]]


def test_segments_of_two_sizes_do_not_mix():
    def f(acc):
        return {"y": segment_sum(acc, 2) + segment_sum(acc, 4)}

    raises(errors.KindMismatch, f, "2 and 4")


def test_a_segment_size_must_divide_the_columns():
    def f(x: Tile):
        return {"y": segment_sum(x, 4)}

    with pytest.raises(errors.ShapeMismatch, match="multiple of 4"):
        program(f, "pointwise").reference(torch.ones(2, 6))


@pytest.mark.parametrize("size", [0, -2, 2.5, True])
def test_a_segment_size_is_a_positive_integer(size):
    def f(acc):
        return {"y": segment_sum(acc, size)}

    raises(errors.BadArgument, f, "positive integer")


# dtypes -------------------------------------------------------------------------------------------------------------


def test_integers_are_exact_and_become_float_beside_floats():
    def f(x: Tile, i: ColVector(dtype="int")):
        return {"y": x * 0 + (i // 3) * 3 + i % 3, "ratio": i / 2, "whole": store(i // -2, dtype="int64")}

    i = torch.tensor([7, -7, 2**40 + 1])
    out = program(f, "pointwise").reference(torch.ones(3, 1), i)
    assert out["y"][:, 0].tolist() == [7.0, -7.0, 2.0**40 + 1]
    assert out["ratio"].tolist() == [3.5, -3.5, 2.0**39 + 0.5]
    assert out["whole"].tolist() == [-4, 3, -(2**39) - 1]


def test_floor_division_of_floats_is_refused():
    def f(acc):
        return {"y": acc // 2}

    raises(errors.DTypeMismatch, f, "floordiv", "int")


def test_an_operand_becomes_an_integer_where_it_must_be_one():
    def f(acc, t: ColVector, w: ColVector):
        return {"y": select_column(acc * w, t + 1)}

    p = program(f)
    assert {o.name: str(o.dtype) for o in p.operands} == {"t": "int", "w": "float"}


def test_a_float_index_is_refused():
    def f(acc, t: ColVector):
        return {"y": select_column(acc, t)}

    with pytest.raises(errors.DTypeMismatch, match="select_column"):
        program(f, dtypes={"t": "float"})


def test_conditions_live_in_where_and_logic():
    def f(x: Tile):
        inside = (x > 0) & ~(x >= 3) | (x == 5)
        return {"y": where(inside, x, 0)}

    assert value_of(f, x=torch.tensor([[-1.0, 1, 3, 5]])).tolist() == [[0, 1, 0, 5]]

    def g(acc):
        return {"y": (acc > 0) + 1}

    raises(errors.DTypeMismatch, g, "where(condition, 1, 0)")

    def h(acc):
        return {"y": acc > 0}

    raises(errors.BadOutputs, h, "condition")


# phases -------------------------------------------------------------------------------------------------------------


def test_a_reduction_fed_back_names_the_ways_out():
    def f(acc):
        return {"y": acc * rsqrt(row_mean(acc * acc))}

    error = raises(errors.TileLocalError, f, "next GEMM", "segment_", "@coda.pointwise", "test_primitives.py:")
    assert error.code == "tile-local"


def test_finished_vectors_compute_with_their_own_axis_only():
    def f(acc, c: ColVector, s: Scalar):
        mean, variance = row_moments(acc)
        return {"y": (mean - c) * rsqrt(variance + s), "z": where(c >= 0, row_logsumexp(acc), 0)}

    p = program(f)
    assert p.output_type("y").finished
    assert p.output_type("z").finished

    def rows_and_columns(acc):
        return {"y": row_sum(acc) * col_sum(acc)}

    raises(errors.TileLocalError, rows_and_columns)

    def widths(acc, z: Tile(width=2)):
        return {"y": col_sum(acc) + col_sum(z)}

    raises(errors.WidthMismatch, widths)


def test_reductions_take_tiles_only():
    def f(acc, c: ColVector):
        return {"y": row_sum(c)}

    raises(errors.KindMismatch, f, "row_sum reduces a tile")

    def twice(acc):
        return {"y": row_sum(row_sum(acc))}

    raises(errors.KindMismatch, twice)


# Python on traced values --------------------------------------------------------------------------------------------


def _if(acc):
    return {"y": acc if acc > 0 else -acc}


def _min(acc):
    return {"y": min(acc, 0)}


def _not(acc):
    return {"y": not acc}


def _chain(acc):
    return {"y": 0 < acc < 1}


def _math(acc):
    return {"y": math.exp(acc)}


def _iterate(acc):
    even, odd = acc
    return {"y": even + odd}


def _index(acc):
    return {"y": acc[0]}


def _contains(acc):
    return {"y": 1 in acc}


@pytest.mark.parametrize("f", [_if, _min, _not, _chain, _math, _iterate, _index, _contains], ids=lambda f: f.__name__)
def test_python_control_flow_names_the_spelling(f):
    error = raises(errors.TracedControlFlow, f)
    assert error.hint


def test_constants_may_drive_python():
    def f(acc, *, terms: int = 3, flip: bool = False):
        y = 0.0
        for i in range(terms):
            y = y + acc * (i + 1)
        return {"y": -y if flip else y}

    assert "6" in program(f).explain() or program(f).digest
    a, b = torch.eye(2), torch.ones(2, 2)
    kernel = coda.epilogue(f)
    assert kernel(a, b).y[0, 0] == 6
    assert kernel(a, b, terms=2, flip=True).y[0, 0] == -3
    with pytest.raises(errors.UnknownOperand, match="compile-time"):
        kernel(a, b, terms=2.0)


def test_a_second_product_is_refused_with_the_way():
    def f(acc, z: Tile):
        return {"y": acc @ z}

    raises(errors.AuthoringError, f, "@coda.plan")


def test_a_primitive_outside_a_program_says_so():
    with pytest.raises(errors.AuthoringError, match="outside a program"):
        relu(1.0)


def test_a_value_cannot_leave_its_program():
    kept = []

    def f(acc):
        kept.append(acc)
        return {"y": acc}

    program(f)

    def g(acc):
        return {"y": acc + kept[0]}

    raises(errors.AuthoringError, g, "another program")


def test_powers_are_constant_integers():
    def f(x: Tile):
        return {"y": x**3 + x**-2}

    assert value_of(f, x=torch.tensor([[2.0]])).item() == 8.25

    def g(acc):
        return {"y": acc**0.5}

    raises(errors.BadArgument, g, "sqrt")


def test_too_many_nodes():
    def f(acc):
        y = acc
        for i in range(600):
            y = y * 1.5 + i
        return {"y": y}

    raises(errors.ProgramTooLarge, f, "512")


# values -------------------------------------------------------------------------------------------------------------


def test_elementwise_follows_pytorch_on_special_values():
    def f(x: Tile):
        return {
            "relu": relu(x),
            "low": minimum(x, 0.0),
            "high": maximum(x, 0.0),
            "clamp": clamp(x, -1, 1),
            "sign": sign(x),
            "round": round(x),
        }

    x = torch.tensor([[math.nan, -math.inf, math.inf, 0.5, 1.5, -2.5, -0.0]], dtype=torch.float64)
    out = program(f, "pointwise").reference(x)
    zero = torch.zeros(())
    expected = {
        "relu": x.relu(),
        "low": torch.minimum(x, zero),
        "high": torch.maximum(x, zero),
        "clamp": x.clamp(-1, 1),
        "sign": x.sign(),
        "round": x.round(),
    }
    for name, value in expected.items():
        assert torch.equal(out[name].nan_to_num(77), value.nan_to_num(77)), name


def test_activations_are_pytorchs():
    def f(x: Tile):
        return {"silu": silu(x), "gelu": gelu(x), "tanh": gelu(x, approximate="tanh"), "softplus": softplus(x)}

    x = torch.linspace(-30, 30, 61, dtype=torch.float64)[None]
    out = program(f, "pointwise").reference(x)
    nn = torch.nn.functional
    assert torch.allclose(out["silu"], nn.silu(x), rtol=1e-12, atol=1e-300)
    assert torch.allclose(out["gelu"], nn.gelu(x), rtol=1e-12, atol=1e-15)
    assert torch.allclose(out["tanh"], nn.gelu(x, approximate="tanh"), rtol=1e-12, atol=1e-15)
    assert torch.allclose(out["softplus"], nn.softplus(x, threshold=1e9), rtol=1e-12, atol=1e-300)


def test_silu_at_the_ends():
    """silu(-inf) is NaN as in PyTorch 2.13 (the limit would be 0); large finite gates are exact zeros, not NaN."""

    def f(x: Tile):
        return {"y": silu(x)}

    x = torch.tensor([[-math.inf, -1000.0, 1000.0]])
    got = value_of(f, x=x)[0]
    assert math.isnan(got[0])
    assert got[1] == 0
    assert math.copysign(1, got[1]) == -1
    assert got[2] == 1000


def test_gate_and_up_are_not_swapped():
    def f(z: Tile):
        g, u = unpair(z)
        return {"y": silu(g) * u}

    z = torch.tensor([[1.0, 3.0, 2.0, -1.0]])  # gate 1 2, up 3 -1, side by side
    assert value_of(f, z=z)[0].tolist() == pytest.approx([2.193176, -1.761594], abs=1e-6)


def test_adjacent_pairs_rotate_as_documented():
    def f(x: Tile, t: Tile):
        a, b = unpair(x)
        c, s = unpair(t)
        return {"y": pair(a * c - b * s, a * s + b * c)}

    angles = 3 * torch.tensor([1.0, 0.01], dtype=torch.float64)
    table = torch.stack([angles.cos(), angles.sin()], -1).flatten()[None]
    got = value_of(f, x=torch.tensor([[2.0, -1, 0.5, 3]]), t=table)[0].tolist()
    assert got == pytest.approx([-1.838865, 1.272233, 0.409789, 3.013648], abs=1e-6)


def test_maxima_ignore_nan_and_sums_pass_it_on():
    def f(x: Tile):
        return {"y": row_max(x), "s": row_sum(x), "l": row_logsumexp(x)}

    x = torch.tensor([[1.0, math.nan], [-math.inf, -math.inf], [2.0, math.inf]])
    out = program(f, "pointwise").reference(x)
    assert out["y"].tolist() == [1.0, -math.inf, math.inf]
    assert math.isnan(out["s"][0])
    assert math.isnan(out["l"][0])
    assert out["l"][1:].tolist() == [-math.inf, math.inf]


def test_empty_axes():
    def f(acc):
        return {
            "sum": row_sum(acc),
            "mean": row_mean(acc),
            "max": row_max(acc),
            "lse": row_logsumexp(acc),
            "c": col_sum(acc),
        }

    out = program(f).reference(torch.ones(2, 3), torch.ones(3, 0))
    assert out["sum"].tolist() == [0, 0]
    assert all(math.isnan(v) for v in out["mean"])
    assert out["max"].tolist() == [-math.inf] * 2
    assert out["lse"].tolist() == [-math.inf] * 2
    out = program(f).reference(torch.ones(0, 3), torch.ones(3, 2))
    assert out["c"].tolist() == [0, 0]
    out = program(f).reference(torch.ones(2, 0), torch.ones(0, 2))
    assert out["sum"].tolist() == [0, 0]


def test_select_column_outside_gives_zero():
    def f(x: Tile, t: ColVector):
        return {"y": select_column(x, t)}

    x = torch.arange(12.0).view(4, 3) + 1
    assert value_of(f, x=x, t=torch.tensor([0, 2, 3, -1])).tolist() == [1, 6, 0, 0]
    assert value_of(f, x=x, t=torch.tensor([-100, 2**40, 1, -(2**62)])).tolist() == [0, 0, 8, 0]


def test_positions_and_sizes():
    def f(x: Tile):
        return {"y": x * 0 + row_index() * columns() + column_index(), "m": row_index() * 0 + rows()}

    out = program(f, "pointwise").reference(torch.zeros(3, 4))
    assert torch.equal(out["y"], torch.arange(12.0, dtype=torch.float64).view(3, 4))
    assert out["m"].tolist() == [3, 3, 3]


def test_moments_are_stable():
    def f(x: Tile):
        mean, variance = row_moments(x)
        return {"y": variance, "mean": mean}

    x = torch.tensor([[1e8, 1e8 + 1, 1e8 + 2]], dtype=torch.float64)
    assert value_of(f, x=x).item() == pytest.approx(2 / 3)


def test_the_epilogue_rounds_once_unless_it_casts():
    """acc 374.9, bias -374 in bf16: once 0.8984375, twice 0.0."""

    @coda.epilogue
    def once(acc, bias: RowVector):
        return {"y": acc + bias}

    @coda.epilogue
    def twice(acc, bias: RowVector):
        return {"y": cast(acc, "bfloat16") + bias}

    a = torch.tensor([[374.0, 0.8984375]], dtype=torch.bfloat16)
    b = torch.ones(2, 1, dtype=torch.bfloat16)
    bias = torch.tensor([-374.0], dtype=torch.bfloat16)
    assert once(a, b, bias=bias).y.item() == 0.8984375
    assert twice(a, b, bias=bias).y.item() == 0.0


def test_fp8_stores_saturate_unless_told():
    @coda.pointwise
    def f(x: Tile):
        return {
            "y": store(x, dtype="float8_e4m3fn"),
            "wild": store(x, dtype="float8_e4m3fn", saturate=False),
            "same": x,
        }

    out = f(torch.tensor([[1000.0, -1000.0, math.nan, 1.0]]))
    assert out.y.dtype is torch.float8_e4m3fn
    assert out.y.float()[0, :2].tolist() == [448, -448]
    assert math.isnan(out.y.float()[0, 2])
    assert out.wild.float()[0, :2].isnan().all()
    assert out.wild.float()[0, 3] == 1
    assert out.same.dtype is torch.float32


def test_angles_are_exact_where_bf16_positions_would_collapse():
    @coda.pointwise
    def f(x: Tile, position: ColVector, frequency: RowVector):
        return {"y": primitives.cos(position * frequency) + 0 * x}

    got = f(torch.zeros(2, 1), torch.tensor([15962, 15936]), torch.ones(1)).y[:, 0]
    assert got.tolist() == pytest.approx([-0.908016, -0.267950], abs=1e-5)
