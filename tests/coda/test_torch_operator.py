"""torch.compile: whole graphs with one operator in them, the same results, the same errors."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import coda
from coda import errors, torch_operator
from coda.kernel import from_json
from coda.primitives import ColVector, RowVector, Scalar, Tile, pair, row_sum, select_column, store, unpair

pytestmark = pytest.mark.interp


@coda.epilogue
def gated(acc, z: Tile(width=2), gamma: RowVector, *, eps: float = 0.5, n: int = 1):
    """Outputs of every kind: a tile of each width, a row and a column vector, and one that is stored in its own dtype."""
    g, u = unpair(z)
    h = acc * g
    for _ in range(n):
        h = h + u * gamma + eps
    return {"h": h, "dz": pair(h, g), "s": row_sum(h), "gate": store(g, dtype="bfloat16")}


@coda.pointwise
def shifted(x: Tile, s: Scalar, v: ColVector):
    return {"y": x + s, "t": row_sum(x * v)}


@coda.pointwise
def chosen(x: Tile, at: ColVector):
    return {"y": x * 2, "c": select_column(x, at)}


@coda.plan
def chain(x, w, z, gamma, v, *, eps: float = 0.5):
    first = gated(x, w, z=z, gamma=gamma, eps=eps)
    second = coda.matmul(first.h.mT, first.h)
    return {"s": first.s, "y": second, "z": shifted(first.h, 1.0, first.s * v).t}


@coda.plan
def cut(x, w, n: int):
    return {"y": coda.matmul(x[:, :n], w)}


def inputs(m: int = 6, n: int = 8, k: int = 4, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(m)
    return [torch.randn(shape, generator=g).to(dtype) for shape in ((m, k), (k, n), (m, 2 * n), (n,), (m,))]


class Graphs:
    """A compiler that keeps the graphs it is given and runs them as they are, after AOTAutograd."""

    def __init__(self) -> None:
        self.operators: list[list[str]] = []

    def __call__(self, module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        from torch._dynamo.backends.debugging import aot_eager

        self.operators.append([str(n.target) for n in module.graph.nodes if str(n.target).startswith("coda.")])
        return aot_eager(module, examples)  # type: ignore[no-any-return]


@pytest.fixture
def graphs() -> Any:
    torch._dynamo.reset()
    yield Graphs()
    torch._dynamo.reset()


def same(got: Any, expected: Any, **tolerance: float) -> None:
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))
        assert x.stride() == y.stride()


CALLS: dict[str, Callable[..., Any]] = {
    "epilogue": lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=gamma),
    "transposed weight": lambda a, b, z, gamma, v: gated(a, b.mT.contiguous().mT, z=z, gamma=gamma),
    "keyword scalar": lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=gamma, eps=3.0),
    "constant": lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=gamma, n=3),
    "a and b by name": lambda a, b, z, gamma, v: gated(gamma=gamma, z=z, b=b, a=a),
    "backend": lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=gamma, backend="reference"),
    "config": lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=gamma, config=coda.Schedule(backend="reference")),
    "matmul": lambda a, b, z, gamma, v: (coda.matmul(a, b),),
    "pointwise": lambda a, b, z, gamma, v: shifted(z, 2.0, v),
    "0-d tensor": lambda a, b, z, gamma, v: shifted(z, v[0], v),
    "integers": lambda a, b, z, gamma, v: chosen(z, (v * 0 + 1).long()),
    "plan": lambda a, b, z, gamma, v: chain(a, b, z, gamma, v),
    "plan with options": lambda a, b, z, gamma, v: chain(x=a, w=b, z=z, gamma=gamma, v=v, eps=2.0, backend="reference"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_operator_of_a_whole_graph(graphs: Graphs, name: str) -> None:
    call, args = CALLS[name], inputs()
    compiled = torch.compile(lambda *args: call(args[0] * 2, *args[1:]), fullgraph=True, backend=graphs)
    got, expected = compiled(*args), call(args[0] * 2, *args[1:])
    same(got, expected)
    assert type(got) is type(expected)
    assert graphs.operators == [["coda.run"]]


def test_results_are_found_by_their_names_inside_a_graph(graphs: Graphs) -> None:
    a, b, z, gamma, _ = inputs()

    def use(a: Any, b: Any) -> Any:
        result = gated(a, b, z=z, gamma=gamma)
        return result["s"] * 2, result[0], result.h, result

    compiled = torch.compile(use, fullgraph=True, backend=graphs)
    got, expected = compiled(a, b), use(a, b)
    same(got[:3], expected[:3])
    assert type(got[3]) is type(expected[3])


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler for inductor")
def test_inductor() -> None:
    torch._dynamo.reset()
    args = inputs(dtype=torch.bfloat16)

    def block(a: Any, b: Any, z: Any, gamma: Any, v: Any) -> Any:
        first = gated(a.relu(), b, z=z, gamma=gamma)
        target = torch.zeros_like(first.h)
        again = gated(a, b, z=z + 1, gamma=gamma, out={"h": target})
        return first.s * 2, again.h + 1, target, chain(a, b, z, gamma, v).y

    same(torch.compile(block, fullgraph=True)(*args), block(*args), rtol=2e-2, atol=2e-2)


# writing into given tensors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [("h",), ("h", "s"), ("dz", "h", "s", "gate"), ("s",)], ids="+".join)
def test_writing_into_given_tensors(graphs: Graphs, given: tuple[str, ...]) -> None:
    a, b, z, gamma, _ = inputs()
    expected = gated(a, b, z=z, gamma=gamma)

    def call(a: Any, out: Any) -> Any:
        result = gated(a, b, z=z, gamma=gamma, out=out)
        return tuple(result), [out[name] + 0 for name in given]

    out = {name: torch.full_like(getattr(expected, name), 7) for name in given}
    results, seen = torch.compile(call, fullgraph=True, backend=graphs)(a, out)
    same(results, expected)
    same(seen, [getattr(expected, name) for name in given])
    same(list(out.values()), [getattr(expected, name) for name in given])
    assert graphs.operators == [["coda.run_out"]]


def test_in_place_of_a_tile(graphs: Graphs) -> None:
    z, v = inputs()[2], inputs()[4]
    expected = shifted(z, 2.0, v)
    compiled = torch.compile(lambda z, v: shifted(z, 2.0, v, out={"y": z}), fullgraph=True, backend=graphs)
    changed = z.clone()
    same(compiled(changed, v), expected)
    same([changed], [expected.y])


def test_pointwise_columns_follow_the_width(graphs: Graphs) -> None:
    @coda.pointwise
    def halves(z: Tile(width=2)):
        g, u = unpair(z)
        return {"y": g * u, "s": row_sum(z), "z2": z * 2}

    z = inputs()[2]
    compiled = torch.compile(lambda z: halves(z, out={"z2": torch.empty_like(z)}), fullgraph=True, backend=graphs)
    same(compiled(z), halves(z))


def test_a_plan_writes_into_out(graphs: Graphs) -> None:
    args = inputs()
    y = torch.zeros(8, 8)
    compiled = torch.compile(lambda y, *args: chain(*args, out={"y": y}), fullgraph=True, backend=graphs)
    same(compiled(y, *args), chain(*args))
    same([y], [chain(*args).y])


def test_an_output_of_a_plan_that_is_a_view_is_a_copy(graphs: Graphs) -> None:
    @coda.plan
    def views(x, w):
        y = coda.matmul(x, w)
        return {"y": y, "t": y.mT, "part": y[:, 1:3]}

    a, b = inputs()[:2]
    expected = views(a, b)
    got = torch.compile(lambda a, b: views(a, b), fullgraph=True, backend=graphs)(a, b)
    for x, y in zip(got, expected, strict=True):
        assert torch.equal(x, y)
    assert len({x.untyped_storage().data_ptr() for x in got}) == 3


# other sizes and other numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["epilogue", "pointwise", "plan", "out"])
def test_a_dynamic_number_of_rows(graphs: Graphs, kernel: str) -> None:
    def out(a: Any, b: Any, z: Any, gamma: Any, v: Any) -> Any:
        return gated(a, b, z=z, gamma=gamma, out={"s": torch.zeros_like(v)})

    call = out if kernel == "out" else CALLS[kernel]
    compiled = torch.compile(call, fullgraph=True, backend=graphs)
    for m in (6, 10, 34):
        args = inputs(m)
        for at in (0, 2, 4):
            torch._dynamo.mark_dynamic(args[at], 0)
        same(compiled(*args), call(*args))
    assert len(graphs.operators) == 1


def test_another_number_of_columns_is_another_graph(graphs: Graphs) -> None:
    compiled = torch.compile(lambda x, v: shifted(x, 2.0, v), fullgraph=True, backend=graphs)
    for n in (8, 12, 20):
        x, v = torch.randn(4, n), torch.randn(4)
        same(compiled(x, v), shifted(x, 2.0, v))


def test_another_number_is_seen(graphs: Graphs) -> None:
    z, v = inputs()[2], inputs()[4]
    compiled = torch.compile(lambda z, v, s: shifted(z, s, v), fullgraph=True, backend=graphs)
    for s in (0.5, 1.5, 2.5):
        same(compiled(z, v, s), shifted(z, s, v))


def test_another_number_in_a_tensor_is_no_other_graph(graphs: Graphs) -> None:
    a, b, z, gamma, _ = inputs()
    compiled = torch.compile(lambda eps: gated(a, b, z=z, gamma=gamma, eps=eps), fullgraph=True, backend=graphs)
    for eps in (0.5, 1.5, 2.5):
        same(compiled(torch.tensor(eps)), gated(a, b, z=z, gamma=gamma, eps=eps))
    assert len(graphs.operators) == 1


def test_eager_calls_in_between_compile_nothing_again(graphs: Graphs) -> None:
    z, v = inputs()[2], inputs()[4]

    @coda.pointwise
    def fresh(x: Tile, v: ColVector):
        return {"y": x * v}

    compiled = torch.compile(lambda z, v: fresh(z, v), fullgraph=True, backend=graphs)
    for _ in range(3):
        same(compiled(z, v), fresh(z, v))
    assert len(graphs.operators) == 1


# errors -------------------------------------------------------------------------------------------------------------


def test_a_gradient_is_never_dropped(graphs: Graphs) -> None:
    a, b, z, gamma, v = inputs()
    wanting = a.clone().requires_grad_()
    for call in (CALLS["epilogue"], CALLS["plan"]):
        with pytest.raises(errors.NotDifferentiable, match=r"kernel of its own"):
            torch.compile(call, backend=graphs)(wanting, b, z, gamma, v)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"NotDifferentiable.*kernel of its own"):
            torch.compile(call, backend=graphs, fullgraph=True)(wanting, b, z, gamma, v)
        compiled = torch.compile(call, backend=graphs, fullgraph=True)
        with torch.no_grad():
            assert not any(t.requires_grad for t in compiled(torch.nn.Parameter(a), b, z, gamma, v))


@pytest.mark.parametrize("kernel", ["epilogue", "plan"])
def test_what_is_written_never_wants_a_gradient(graphs: Graphs, kernel: str) -> None:
    def call(target: Any, a: Any, b: Any, z: Any, gamma: Any, v: Any) -> Any:
        if kernel == "plan":
            return chain(a, b, z, gamma, v, out={"s": target})
        return gated(a, b, z=z, gamma=gamma, out={"s": target})

    target = torch.zeros(6, requires_grad=True)
    with pytest.raises(errors.NotDifferentiable, match="out='s'"):
        torch.compile(call, backend=graphs)(target, *inputs())
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"NotDifferentiable.*out='s'.*kernel of its own"):
        torch.compile(call, backend=graphs, fullgraph=True)(target, *inputs())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, b, z, gamma, v: gated(a, b, z=z), "MissingOperand", "gamma"),
        (lambda a, b, z, gamma, v: gated(a, b, z=z, gamma=v), "ShapeMismatch", "ColVector"),
        (lambda a, b, z, gamma, v: gated(a, b, z=z, gamm=gamma), "UnknownOperand", "did you mean"),
        (lambda a, b, z, gamma, v: gated(a, b, z, gamma), "UnknownOperand", "positional"),
        (lambda a, b, z, gamma, v: gated(a, b, z=z.half(), gamma=gamma.double()), "DTypeUnsupported", "float64"),
        (lambda a, b, z, gamma, v: gated(a, b, a=a, z=z, gamma=gamma), "UnknownOperand", "twice"),
        (lambda a, b, z, gamma, v: gated(a, z=z, gamma=gamma), "MissingOperand", "b not given"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, x=z), "UnknownOperand", "twice"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, out={"q": z}), "UnknownOperand", "no output 'q'"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, out={"y": v}), "ShapeMismatch", "out='y'"),
        (lambda a, b, z, gamma, v: shifted(s=1.0, v=v, out={"t": v * 1}), "MissingOperand", "x"),
        (lambda a, b, z, gamma, v: gated(a, b, gamma=gamma, out={"s": v * 1}), "MissingOperand", "z"),
        (lambda a, b, z, gamma, v: gated(a, v, z=z, gamma=gamma, out={"s": v * 1}), "ShapeMismatch", "b"),
        (lambda a, b, z, gamma, v: gated(v, b, z=z, gamma=gamma, out={"s": v * 1}), "ShapeMismatch", "a"),
        (lambda a, b, z, gamma, v: gated(a, 2.0, z=z, gamma=gamma, out={"s": v * 1}), "DTypeUnsupported", "b"),
        (lambda a, b, z, gamma, v: shifted(a=a, s=1.0, v=v, out={"t": v * 1}), "UnknownOperand", "a"),
        (lambda a, b, z, gamma, v: shifted(2.0, 1.0, v, out={"t": v * 1}), "DTypeUnsupported", "x"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, out=v), "UnknownOperand", "by output name"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, out=[v]), "UnknownOperand", "by output name"),
        (lambda a, b, z, gamma, v: shifted(z, 1.0, v, backend=3), "UnknownBackend", "takes a name"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma, v, out=v), "UnknownOperand", "by output name"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma, v, backend=3), "UnknownBackend", "takes a name"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma, v, out={"s": v[:2] * 1}), "ShapeMismatch", "out='s'"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma, v, out={"s": v.half()}), "ShapeMismatch", "torch.float16"),
        (lambda a, b, z, gamma, v: cut(z, b, n="4"), "DTypeUnsupported", "cut: n"),
        (lambda a, b, z, gamma, v: cut(z, b, n=4.0), "DTypeUnsupported", "cut: n"),
        (lambda a, b, z, gamma, v: cut(z, b, n=v), "ShapeMismatch", "cut: n"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma), "MissingOperand", "v"),
        (lambda a, b, z, gamma, v: chain(a, b, z, gamma, v, out={"q": z}), "UnknownOperand", "no output 'q'"),
    ],
)
def test_a_bad_call_says_what_is_wrong_while_it_is_traced(graphs: Graphs, call: Any, error: str, words: str) -> None:
    with pytest.raises(Exception) as caught:
        torch.compile(call, fullgraph=True, backend=graphs)(*inputs())
    assert error in f"{type(caught.value).__name__} {caught.value}"
    assert words in str(caught.value)
    with pytest.raises((errors.CodaError, TypeError)) as eager:
        call(*inputs())
    assert type(eager.value).__name__ == error


def test_a_length_in_a_graph_is_a_python_int(graphs: Graphs) -> None:
    _, w, z, _, _ = inputs()
    call = lambda z, w, n: cut(z, w, n).y  # noqa: E731
    expected, length = call(z, w, 4), torch.tensor(4)
    same([torch.compile(call, fullgraph=True, backend=graphs)(z, w, 4)], [expected])
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"cut: n decides .* a length is a Python int"):
        torch.compile(call, fullgraph=True, backend=graphs)(z, w, length)
    torch._dynamo.reset()
    same([torch.compile(call, backend=graphs)(z, w, length)], [expected])


def test_a_bad_call_without_memory_says_what_is_wrong() -> None:
    with torch._subclasses.FakeTensorMode():
        v, z = torch.ones(6), torch.ones(6, 16)
        for call, error in (
            (lambda: shifted(s=1.0, v=v, out={"t": v}), errors.MissingOperand),
            (lambda: shifted(2.0, 1.0, v, out={"t": v}), errors.DTypeUnsupported),
            (lambda: gated(v, z, z=z, gamma=v, out={"s": v}), errors.ShapeMismatch),
            (lambda: gated(z, v, z=z, gamma=v, out={"s": v}), errors.ShapeMismatch),
        ):
            with pytest.raises(error):
                call()


def test_an_unknown_digest_says_what_to_do() -> None:
    with pytest.raises(errors.UnknownProgram, match=r"register\(kernel\.program\)"):
        torch.ops.coda.run("0" * 64, [torch.ones(2, 2)], [], "x", "", "")
    with pytest.raises(errors.UnknownProgram):
        torch.ops.coda.run_out("0" * 64, [torch.ones(2, 2)], [], [torch.ones(2, 2)], "x", "", "")


def test_a_digest_lives_longer_than_its_kernel(graphs: Graphs) -> None:
    def make() -> Callable[..., Any]:
        @coda.pointwise
        def tripled(x: Tile):
            return {"y": x * 3}

        return torch.compile(lambda x: tripled(x), fullgraph=True, backend=graphs)

    compiled = make()
    compiled(torch.ones(2, 3))
    gc.collect()
    assert torch.equal(compiled(torch.ones(2, 3)).y, torch.full((2, 3), 3.0))


def test_an_exported_graph_runs_in_another_process(tmp_path: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, z: torch.Tensor, v: torch.Tensor) -> Any:
            return tuple(shifted(z, 2.0, v))

    z, v = inputs()[2], inputs()[4]
    for strict in (True, False):
        program = torch.export.export(Module(), (z, v), strict=strict)
        assert "coda.run" in program.graph_module.code
        same(program.module()(z, v), shifted(z, 2.0, v))
    torch.export.save(program, tmp_path / "exported.pt2")
    (tmp_path / "program.json").write_text(shifted.program.to_json(), encoding="utf-8")
    code = f"""
import json, pathlib, torch, coda.torch_operator
from coda.errors import UnknownProgram
from coda.kernel import from_json
folder = pathlib.Path({str(tmp_path)!r})
run = torch.export.load(folder / "exported.pt2").module()
z, v = torch.ones(6, 16), torch.ones(6)
try:
    run(z, v)
except UnknownProgram as error:
    unknown = error.hint
coda.torch_operator.register(from_json((folder / "program.json").read_text()).program)
print(json.dumps([unknown, [x.tolist() for x in run(z, v)]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    hint, (y, t) = json.loads(done.stdout.splitlines()[-1])
    assert "register" in hint
    assert torch.equal(torch.tensor(y), torch.full((6, 16), 3.0))
    assert torch.equal(torch.tensor(t), torch.full((6,), 16.0))


# tensors that are no plain memory -----------------------------------------------------------------------------------


def test_tensors_without_memory_get_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b, z, gamma, v = (torch.empty(t.shape, dtype=torch.bfloat16) for t in inputs())
        result = gated(a, b, z=z, gamma=gamma)
        whole = chain(a, b, z, gamma, v)
    assert [(tuple(t.shape), t.dtype) for t in result] == [
        ((6, 8), torch.bfloat16),
        ((6, 16), torch.bfloat16),
        ((6,), torch.float32),
        ((6, 8), torch.bfloat16),
    ]
    assert tuple(whole.y.shape) == (8, 8)


def test_a_transform_is_refused_in_words() -> None:
    z, v = torch.randn(3, 4, 8), torch.randn(4)
    with pytest.raises((RuntimeError, errors.CodaError), match=r"coda|vmap"):
        torch.vmap(lambda x: shifted(x, 1.0, v))(z)


# what PyTorch asks of an operator -----------------------------------------------------------------------------------

CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("program", [gated, chain], ids=["epilogue", "plan"])
def test_opcheck(program: Any) -> None:
    digest = torch_operator.register(program.program)
    tensors = inputs() if program is chain else inputs()[:4]
    names = "x,w,z,gamma,v,eps" if program is chain else "a,b,z,gamma,eps"
    torch.library.opcheck(torch.ops.coda.run.default, (digest, tensors, [0.25], names, "", ""), test_utils=CHECKS)


def test_opcheck_of_the_twin() -> None:
    digest = torch_operator.register(gated.program)
    tensors = inputs()[:4]
    out = [torch.zeros_like(t) for t in gated(*tensors[:2], z=tensors[2], gamma=tensors[3])]
    args = (digest, tensors, [0.25], out, "a,b,z,gamma,eps", "", "")
    torch.library.opcheck(torch.ops.coda.run_out.default, args, test_utils=CHECKS)


def test_kept_kernels_are_traced_too(graphs: Graphs) -> None:
    z, v = inputs()[2], inputs()[4]
    kept = from_json(shifted.program.to_json())
    compiled = torch.compile(lambda z, v: kept(z, 2.0, v), fullgraph=True, backend=graphs)
    same(compiled(z, v), shifted(z, 2.0, v))
