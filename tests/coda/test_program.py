"""Programs and plans as data: digest, JSON, explanation, cost, and what their signatures accept."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import coda
import examples_curated
from coda import Problem, Schedule, errors
from coda.evaluate import evaluate
from coda.kernel import from_json
from coda.plan import Plan
from coda.primitives import ColVector, RowVector, Scalar, Tile, pair, row_mean, row_sum, rsqrt, sigmoid, store, unpair
from coda.problem import CHOICES
from coda.program import EpilogueProgram

pytestmark = pytest.mark.null


@coda.epilogue
def swiglu_backward(acc, z: Tile(width=2)):
    """dZ, recomputed activation and <Z, dZ>."""
    g, u = unpair(z)
    s = sigmoid(g)
    y = g * s
    dg, du = acc * u * (s + y * (1 - s)), acc * y
    return {"dz": pair(dg, du), "h": y * u, "zdz": row_sum(g * dg + u * du)}


@coda.epilogue
def residual_rms(acc, residual: Tile, gamma: RowVector, *, eps: float = 1e-6):
    h = acc + residual
    return {"h": h, "q": h * gamma, "rstd": rsqrt(row_mean(h * h) + eps)}


@coda.epilogue
def scaled(acc, rstd: ColVector):
    return {"z": acc * rstd}


@coda.plan
def residual_rms_linear(y, w_o, residual, gamma, w_1, *, eps: float = 1e-6):
    """Two GEMMs around a norm."""
    r = residual_rms(y, w_o, residual=residual, gamma=gamma, eps=eps)
    return {"h": r.h, "z": scaled(r.q, w_1, rstd=r.rstd).z}


# digest -------------------------------------------------------------------------------------------------------------


def digest(body, parameters="acc, x: Tile, c: ColVector", decorator="@coda.epilogue", name="f"):
    space = {"coda": coda, **{n: getattr(coda.primitives, n) for n in coda.primitives.NAMES}}
    exec(f"{decorator}\ndef {name}({parameters}):\n    {body}\n", space)
    return space[name].program.digest


BASE = "return {'y': acc * x + c * 2}"


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (BASE, {"name": "g"}),
        ("'''A docstring.'''\n    " + BASE, {}),
        ("dead = acc * 3\n    " + BASE, {}),
        ("p = x * acc\n    return {'y': c * 2 + p}", {}),
        ("return {'y': acc * x + c * 2.0}", {}),
        (BASE, {"parameters": "acc, c: ColVector, x: Tile"}),
    ],
    ids=["name", "docstring", "dead code", "order of commuting arguments", "2 beside a float", "order of operands"],
)
def test_the_digest_ignores(body, options):
    assert digest(body, **options) == digest(BASE)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("return {'z': acc * x + c * 2}", {}),
        ("return {'y': acc * x + c * 2.0000000000000004}", {}),
        ("return {'y': acc * x + (c + c)}", {}),
        ("return {'y': store(acc * x + c * 2, dtype='float32')}", {}),
        ("return {'y': cast(acc * x, 'bfloat16') + c * 2}", {}),
        ("return {'y': acc * w + c * 2}", {"parameters": "acc, w: Tile, c: ColVector"}),
        (BASE, {"decorator": "@coda.epilogue(fast_math=True)"}),
        ("return {'y': acc * x + c * 2}", {"parameters": "acc, x: Tile, c: RowVector"}),
        ("return {'y': acc * x + c * 2, 'more': acc}", {}),
    ],
    ids=["output name", "constant by one ulp", "formula", "store", "cast", "operand name", "fast", "kind", "outputs"],
)
def test_the_digest_sees(body, options):
    assert digest(body, **options) != digest(BASE)


def test_the_digest_sees_defaults_and_negative_zero():
    with_eps = "acc, x: Tile, c: ColVector, *, eps: float = "
    assert digest("return {'y': acc + eps}", with_eps + "1e-6") != digest("return {'y': acc + eps}", with_eps + "1e-5")
    assert digest("return {'y': acc * 0.0}") != digest("return {'y': acc * -0.0}")
    assert digest("return {'y': acc + (c // 1)}") != digest("return {'y': acc + c}")


def test_the_digest_is_what_it_was():
    """A change here makes every kept kernel stale: it must be a decision (a version of an operation), not an accident."""
    assert swiglu_backward.program.digest == "430111f244b4414b79631ec538103f9d2dca79d17c3cc0022df581b737dae747"
    assert residual_rms_linear.program.digest.startswith("d363b70c0f08")


# JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [swiglu_backward, residual_rms, scaled, residual_rms_linear], ids=lambda k: k.name)
def test_json_round_trip(kernel):
    text = kernel.program.to_json()
    again = type(kernel.program).from_json(text)
    assert again == kernel.program
    assert again.digest == kernel.program.digest
    assert again.to_json() == text
    assert from_json(text).program == kernel.program


def test_special_constants_survive_json():
    @coda.pointwise
    def f(x: Tile):
        return {"y": coda.primitives.maximum(x, -float("inf")) + float("nan") * -0.0}

    again = EpilogueProgram.from_json(f.program.to_json())
    assert again.digest == f.program.digest


def _edit(path, value):
    data = json.loads(swiglu_backward.program.to_json())
    at = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"format": "coda.program/2"}',
        _edit(["extra"], 1),
        _edit(["kind"], "matmul"),
        _edit(["kind"], "pointwise"),
        _edit(["nodes", 3, "op"], "system"),
        _edit(["nodes", 3, "v"], 99),
        _edit(["nodes", 2, "args"], [7]),
        _edit(["nodes", 2, "args"], [-1]),
        _edit(["nodes", 2, "args"], [True]),
        _edit(["nodes", 1, "attrs", "width"], "str:3"),
        _edit(["nodes", 1, "attrs", "name"], "str:q"),
        _edit(["operands", 0, "width"], "1/0"),
        _edit(["operands", 0, "name"], "acc"),
        _edit(["outputs", 0, "node"], 999),
        _edit(["outputs", 0, "dtype"], "int8"),
        _edit(["operands", 0, "period"], "2"),
        _edit(["outputs", 0, "saturate"], "yes"),
        _edit(["outputs"], []),
        _edit(["outputs", 0, "name"], "__class__"),
    ],
)
def test_what_is_not_a_program_is_refused(text):
    with pytest.raises(errors.FormatError):
        EpilogueProgram.from_json(text)


def _edit_plan(path, value):
    data = json.loads(residual_rms_linear.program.to_json())
    at = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        _edit_plan(["steps", 6, "args"], [0, 1, 2, 3, 9]),
        _edit_plan(["steps", 6, "op"], "exec"),
        _edit_plan(["steps", 7, "attrs", "name"], "str:nothing"),
        _edit_plan(["steps", 6, "attrs", "program"], "int:7"),
        _edit_plan(["steps", 6, "attrs", "names"], "str:a,b"),
        _edit_plan(["steps", 0, "attrs", "name"], "str:_y"),
        _edit_plan(["steps", 10, "args"], [6, 4, 9]),
        _edit_plan(["steps", 5, "attrs", "extra"], "int:1"),
        _edit_plan(["outputs", 0, "step"], 99),
        _edit_plan(["programs", 0, "format"], "x"),
    ],
)
def test_what_is_not_a_plan_is_refused(text):
    with pytest.raises(errors.FormatError):
        Plan.from_json(text)


# signatures and outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ("x: Tile", "acc"),
        ("acc, x", "annotation"),
        ("acc, *x", "args"),
        ("acc, x: str", "not an operand"),
        ("acc, x: Tile = 3", "defaults"),
        ("acc, out: Tile", "cannot be used"),
        ("acc, _x: Tile", "cannot be used"),
        ("acc, b: Tile", "cannot be used"),
        ("acc, n: int", "needs a default"),
        ("acc, x: Tile(width=3)", "width"),
        ("acc, x: Nothing", "cannot be evaluated"),
    ],
)
def test_signatures_that_cannot_be(parameters, word):
    with pytest.raises((errors.BadSignature, errors.BadArgument, NameError), match=word):
        digest("return {'y': acc}", parameters)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("return acc", "dictionary"),
        ("return {}", "nothing"),
        ("return {'y': 1.0}", "not a value"),
        ("return {'y': c * 0 if False else rows()}", "scalar"),
        ("return {'acc': acc}", "cannot be used"),
        ("return {3: acc}", "not a string"),
        ("return {'y': store(acc, dtype='int32')}", "float"),
        ("return {'class': acc}", "cannot be used"),
    ],
)
def test_outputs_that_cannot_be(body, word):
    with pytest.raises(errors.BadOutputs, match=word):
        digest(body)


def test_stores_know_their_dtypes():
    with pytest.raises(errors.BadArgument, match="bfloat61"):
        digest("return {'y': store(acc, dtype='bfloat61')}")


def test_postponed_annotations_are_resolved():
    source = (
        "from __future__ import annotations\nimport coda\nfrom coda.primitives import Tile, Scalar\n"
        "@coda.epilogue\ndef f(acc, z: Tile(width=2), s: Scalar, eps: float = 1.0):\n    return {'y': z * s * eps}\n"
    )
    space = {}
    exec(compile(source, "kernel.py", "exec"), space)
    assert [str(o.kind) for o in space["f"].program.operands] == ["tile", "scalar", "scalar"]


def test_a_pointwise_needs_a_tile():
    with pytest.raises(errors.BadSignature, match="tile"):
        digest("return {'y': c}", "c: ColVector", "@coda.pointwise")


# explain, cost, problem, schedule -----------------------------------------------------------------------------------


def test_explain_shows_formula_shapes_classes_and_cost():
    text = swiglu_backward.program.explain(Problem.example(swiglu_backward.program))
    for piece in (
        "z (M, 2N) float",
        "zdz = Σ_{j}",
        "dz (M, 2N)",
        "σ(",
        "4: row_sum",
        "137.439 GFLOP",
        "96.016 MiB written",
    ):
        assert piece in text, piece


def test_explain_says_the_dtype_that_each_output_is_stored_in():
    @coda.epilogue
    def f(acc):
        return {"y": acc, "s": row_sum(acc), "q": store(acc, dtype="float8_e4m3fn")}

    @coda.pointwise
    def g(x: Tile):
        return {"y": x * 2, "s": row_sum(x)}

    said = {line.split()[0]: line for line in f.program.explain().splitlines() if line.startswith("  ")}
    assert said["y"].endswith("y (M, N) in the dtype of a")
    assert "s (M,) float32, float64 where a is" in said["s"]
    assert said["q"].endswith("q (M, N) float8_e4m3fn")
    assert "in the dtype of x" in g.program.explain()
    concrete = f.program.explain(Problem.example(f.program, dtype="float16"))
    assert "y (M, N) float16\n" in concrete
    assert "s (M,) float32, finished" in concrete
    assert "s (M,) float64, finished" in f.program.explain(Problem.example(f.program, dtype="float64"))


def test_a_tile_that_is_loaded_counts_as_one():
    text = residual_rms.program.explain()
    assert "3: acc, operand\n" in text + "\n"
    assert "2: operand×2\n" in text, "gamma and eps"


def test_explaining_a_plan_shows_its_steps():
    text = residual_rms_linear.program.explain()
    assert "2 GEMMs" in text
    assert "scaled(a=%8" in text


def test_cost_counts_every_tensor_once():
    m, n, k = 8, 6, 4
    cost = residual_rms.program.cost(Problem.example(residual_rms.program, m=m, n=n, k=k))
    assert cost.gemm_flops == 2 * m * n * k
    assert cost.bytes_read == (m * k + k * n + m * n) * 2 + n * 4
    assert cost.bytes_written == 2 * m * n * 2 + m * 4
    assert cost.floor_seconds(1e12, 1e9) == pytest.approx(max(cost.gemm_flops / 1e12, cost.bytes / 1e9))


def test_the_cost_of_a_plan_follows_its_shapes():
    shapes = {"y": (8, 4), "w_o": (4, 6), "residual": (8, 6), "gamma": (6,), "w_1": (6, 10)}
    cost = residual_rms_linear.program.cost(shapes)
    assert cost.gemm_flops == 2 * 8 * 6 * 4 + 2 * 8 * 10 * 6


def test_problems_are_keys():
    a, b = (Problem.example(swiglu_backward.program, m=3) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != Problem.example(swiglu_backward.program, m=4)
    assert a.spec("out.zdz").dtype == "float32"
    assert a.spec("z").dtype == "bfloat16"
    with pytest.raises(errors.BadArgument):
        Problem.example(swiglu_backward.program, m=-1)
    with pytest.raises(errors.BadArgument, match="bfloat61"):
        Problem.example(swiglu_backward.program, dtypes={"z": "bfloat61"})


def test_schedules_are_strict():
    assert Schedule.from_dict(Schedule(tile_m=64).to_dict()) == Schedule(tile_m=64)
    unlike: tuple[object, ...] = (
        None,
        [],
        3,
        "backend",
        {3: 3},
        {"backend": None},
        {"backend": ["triton"]},
        {"backend": ""},
    )
    for bad in ({"tile_mm": 64}, {"tile_m": "64"}, {"tile_m": 0}, {"warps": 3}, {"tma": 1}, *unlike):
        with pytest.raises(errors.BadSchedule):
            Schedule.from_dict(bad)


def test_every_field_of_a_schedule_is_a_choice_of_some_backend():
    fields = {f.name for f in dataclasses.fields(Schedule)} - {"backend"}
    assert set().union(*CHOICES.values()) == fields
    Schedule("cutedsl", pingpong=True).check_for("cutedsl")
    with pytest.raises(errors.BadSchedule, match="warps is not a choice of cutedsl: got 4, expected 8"):
        Schedule("cutedsl", warps=4).check_for("cutedsl")
    with pytest.raises(errors.BadSchedule, match="another backend: got cutedsl, expected triton"):
        Schedule("cutedsl").check_for("triton")


# plans --------------------------------------------------------------------------------------------------------------


def test_a_plan_computes_only_what_it_uses():
    @coda.plan
    def only_rstd(y, w, residual, gamma):
        return {"rstd": residual_rms(y, w, residual=residual, gamma=gamma).rstd}

    assert [o.name for o in only_rstd.program.programs[0].outputs] == ["rstd"]
    assert only_rstd.gemms == 1


def test_the_results_of_a_call_in_a_plan_are_those_of_a_call_on_tensors():
    @coda.plan
    def spelled(y, w, residual, gamma):
        r = residual_rms(y, w, residual=residual, gamma=gamma)
        return {"h": r.h, "again": r["h"] if r["h"] is r[0] else r["q"]}

    assert [o.step for o in spelled.program.outputs] == [spelled.program.outputs[0].step] * 2


def test_plans_have_views_sizes_and_vector_arithmetic():
    @coda.plan
    def f(x, w, s):
        half = w.columns // 2
        left = coda.matmul(x, w[:, :half])
        right = coda.matmul(x, w[:, half:])
        both = coda.matmul(left.mT, right)
        total = scaled(x, w, rstd=rsqrt(s / x.rows + 1.0) * 2).z
        return {"both": both, "total": total, "flat": total.view(1, total.rows * total.columns)}

    x, w, s = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 4), (4, 6), (3,)))
    s = s.abs()
    out = f(x, w, s)
    assert torch.allclose(out.both, (x @ w[:, :3]).mT @ (x @ w[:, 3:]))
    assert torch.allclose(out.total, (x @ w) * (2 * torch.rsqrt(s / 3 + 1))[:, None])
    assert out.flat.shape == (1, 18)
    assert f.gemms == 4
    assert torch.allclose(f.reference(x, w, s)["total"], out.total)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return {'y': x @ x}", errors.PlanError),
        ("return {'y': x * 2}", errors.AuthoringError),
        ("return {'y': x}", errors.BadOutputs),
        ("return x", errors.BadOutputs),
        ("m = coda.matmul(x, x)\n    return {'y': m if m.rows > 3 else x}", errors.TracedControlFlow),
        ("return {'y': coda.matmul(x, x)[0]}", errors.PlanError),
        ("return {'y': coda.matmul(x, x) + 1}", errors.PlanError),
        ("return {'y': coda.matmul(x, x)[:, ::2]}", errors.PlanError),
        ("return {'y': coda.primitives.row_sum(x)}", errors.PlanError),
        ("r = scaled(x, x, rstd=coda.matmul(x, x))\n    return {'y': r.z}", errors.PlanError),
        ("return {'y': scaled(x, x, rstd=s).w}", errors.UnknownOperand),
        ("return {'y': scaled(x, x, rstd=s)['w']}", errors.UnknownResult),
        ("return {'y': scaled(x, x).z}", errors.MissingOperand),
    ],
)
def test_what_a_plan_may_not(body, error):
    space = {"coda": coda, "scaled": scaled}
    with pytest.raises(error):
        exec(f"@coda.plan\ndef f(x, s):\n    {body}\n", space)


def test_integer_inputs_reach_the_programs_of_a_plan():
    @coda.epilogue
    def pick(acc, t: ColVector):
        return {"y": coda.primitives.select_column(acc, t)}

    @coda.plan
    def f(x, w, t):
        return {"y": pick(x, w, t=t).y}

    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(
        f(x, w, torch.tensor([3, 9])).y, torch.stack([(x @ w)[0, 3], torch.zeros((), dtype=torch.float64)])
    )


# the package --------------------------------------------------------------------------------------------------------


def test_tracing_needs_no_torch():
    """The tracing process stays small: coda, its primitives, programs and plans import no torch and no backend."""
    code = (
        "import sys, coda\nfrom coda.primitives import *\n"
        "@coda.epilogue\ndef f(acc, r: RowVector):\n    return {'y': acc * r, 's': row_sum(acc)}\n"
        "@coda.plan\ndef p(x, w, r):\n    return {'y': f(x, w, r=r).y}\n"
        "p.program.to_json(); p.program.digest; f.program.explain()\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'triton', 'numpy', 'pydantic')]\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_scalars_are_run_time_values():
    @coda.epilogue
    def f(acc, s: Scalar, *, t: float = 2.0):
        return {"y": acc * s + t}

    a = torch.eye(2)
    assert f(a, a, s=3).y[0, 0] == 5
    assert f(a, a, s=torch.tensor(3.0), t=0.5).y[0, 0] == 3.5
    assert f.program.operand("t").default == 2.0


def test_stores_may_differ_in_dtype_for_one_value():
    @coda.epilogue
    def f(acc):
        return {"low": acc, "high": store(acc, dtype="float32")}

    a = torch.eye(2, dtype=torch.bfloat16)
    out = f(a, a)
    assert out.low.dtype is torch.bfloat16
    assert out.high.dtype is torch.float32


def test_a_plan_rounds_when_it_runs_and_never_as_a_reference():
    @coda.plan
    def f(x, s):
        return {"y": scaled(x, x, rstd=coda.primitives.cast(s, "bfloat16")).z}

    x, s = torch.eye(1, dtype=torch.float64), torch.tensor([1.001], dtype=torch.float64)
    assert f.reference(x, s)["y"].item() == 1.001
    assert f(x.float(), s.float()).y.item() == 1.0


def test_arithmetic_on_the_results_of_a_call_says_what_it_is():
    with pytest.raises(errors.PlanError):

        @coda.plan
        def f(x, s):
            return {"y": scaled(x, x, rstd=scaled(x, x, rstd=s) * 2).z}


def test_the_product_can_come_from_elsewhere():
    program = examples_curated.load("rms_scale").program
    tensors = {"a": torch.eye(4).bfloat16(), "b": torch.ones(4, 8).bfloat16(), "rstd": torch.ones(4)}
    tensors = {name: tensors[name] for name in ("a", "b", *(o.name for o in program.operands))}
    given = evaluate(
        program, tensors, m=4, n=8, dtype=torch.float32, stored_as=None, product=lambda a, b: (2 * (a @ b)).bfloat16()
    )
    plain = evaluate(program, tensors, m=4, n=8, dtype=torch.float32, stored_as=None)
    (name,) = plain
    assert given[name].dtype is torch.float32
    assert torch.equal(given[name], 2 * plain[name])
