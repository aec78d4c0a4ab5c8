"""The task bank: cards and look-up, and that every task's reference, baseline and gradient mean what they say."""

from __future__ import annotations

import ast
import collections
import inspect
import pathlib
import subprocess
import sys

import pytest

from agent import task as bank
from agent.errors import InvalidTask, UnknownTask

IDS = tuple(sorted(bank.cards()))
FAMILIES = {
    "activation": 4,
    "activation-backward": 4,
    "cross-entropy": 5,
    "cross-entropy-backward": 2,
    "fp8": 2,
    "gate": 1,
    "gated": 3,
    "gated-backward": 3,
    "layer-norm": 2,
    "layer-norm-backward": 1,
    "plan": 4,
    "residual": 1,
    "rms-norm": 2,
    "rms-norm-backward": 1,
    "rope": 5,
    "rope-backward": 1,
    "router": 1,
    "swiglu": 2,
    "swiglu-backward": 1,
}
"""How many tasks of a family there are at least."""
PAPER = {
    "k0": "residual_rms",
    "k1": "rms_scale",
    "k2": "rms_swiglu",
    "k3": "gemm_rope",
    "k4": "rms_rope",
    "k5": "rms_cross_entropy",
    "k6": "rms_backward",
    "k7": "swiglu_backward",
    "k8": "gemm_swiglu",
    "k9": "gemm_cross_entropy",
}
ROOT = pathlib.Path(bank.__file__).parent.parent


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


# ---- cards and look-up -------------------------------------------------------------------------------------------------


@pytest.mark.null
def test_the_bank_covers_its_families_at_every_difficulty() -> None:
    found = collections.Counter(card.family for card in bank.cards().values())
    assert all(found[family] >= count for family, count in FAMILIES.items()), found
    assert len(IDS) >= 31
    assert {card.difficulty for card in bank.cards().values()} == {1, 2, 3}


@pytest.mark.null
def test_cards_and_look_up_import_no_torch() -> None:
    code = "import sys; from agent import task; task.cards(); task.find('k7'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.null
def test_a_name_belongs_to_one_task_and_says_something_new() -> None:
    owner: dict[str, str] = {}
    for card in bank.cards().values():
        names = [_plain(n) for n in (card.id, card.title, *card.aliases)]
        assert len(set(names)) == len(names), f"{card.id} repeats a name"
        assert len(card.aliases) >= 4
        for name in names:
            assert owner.setdefault(name, card.id) == card.id, f"{name!r} is ambiguous"


@pytest.mark.null
def test_find_resolves_every_name_whatever_its_case_and_punctuation() -> None:
    for card in bank.cards().values():
        for name in (card.id, card.title, *card.aliases):
            assert bank.find(name).id == card.id
            assert bank.find(f"  {name.upper().replace(' ', '-')}! ").id == card.id
    assert {k: bank.find(k).id for k in PAPER} == PAPER


@pytest.mark.null
@pytest.mark.parametrize("text", ["foo bar", "", "k10", "swiglu backward please"])
def test_find_never_guesses(text: str) -> None:
    with pytest.raises(UnknownTask, match="no task is called"):
        bank.find(text)


@pytest.mark.null
@pytest.mark.parametrize(
    ("text", "wanted"),
    [("swiglu bakward", "swiglu_backward"), ("rmsnorm rotary", "rms_rope"), ("cross entropi", "gemm_cross_entropy")],
)
def test_a_refusal_lists_near_tasks(text: str, wanted: str) -> None:
    with pytest.raises(UnknownTask) as caught:
        bank.find(text)
    assert wanted in caught.value.near
    assert wanted in caught.value.hint


@pytest.mark.null
@pytest.mark.parametrize("task_id", IDS)
def test_a_task_file_reads_in_order_and_states_every_shape(task_id: str) -> None:
    text = (bank.FOLDER / f"{task_id}.py").read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    assert ast.get_docstring(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert list(functions)[-2:] == ["reference", "baseline"]
    assert ast.dump(functions["reference"]) != ast.dump(functions["baseline"])
    for node in functions.values():
        assert ast.get_docstring(node)
        for arg in node.args.args:
            if arg.annotation is not None and ast.unparse(arg.annotation) == "Tensor":
                assert "  # (" in lines[arg.lineno - 1], f"{node.name}: {arg.arg} has no shape"


# ---- definitions -------------------------------------------------------------------------------------------------------


def _inputs(task: bank.Task, dims: bank.Dims, dtype: str, seed: int = 0) -> bank.Tensors:
    """Simple random inputs of a task; numbers with a default are left out."""
    import torch

    gen = torch.Generator().manual_seed(seed)
    out = {}
    for i in task.inputs:
        shape = bank.lengths(i.shape, dims)
        x = torch.randn(shape, generator=gen, dtype=torch.float64)
        if i.default is not None:
            continue
        if i.dtype == "int64":
            x = torch.randint(-1, dims.get("V", dims["N"]) + 1, shape, generator=gen)
            x[::5] = -100
            x = torch.arange(shape[0]) % 8 if i.draw == "positions" else x
        elif i.draw == "weight":
            x = x / shape[0] ** 0.5
        elif i.draw in ("rstd", "positive"):
            x = 0.5 + x.abs()
        elif i.draw == "gain":
            x = 1 + 0.1 * x
        elif i.draw == "angles":
            x = torch.stack([x[:, 0::2].cos(), x[:, 0::2].sin()], -1).flatten(1)
        out[i.name] = x if i.dtype == "int64" else x.to(_dtype(i.dtype, dtype))
    return out


def _dtype(rule: str, data: str) -> object:
    import torch

    return getattr(torch, data if rule == "data" or data == "float64" else rule)


def _small(task: bank.Task) -> list[bank.Shape]:
    return [*task.shapes_of("smoke"), *task.shapes_of("ragged")]


@pytest.mark.interp
@pytest.mark.parametrize("task_id", IDS)
def test_a_task_is_complete(task_id: str) -> None:
    from agent.verify.inputs import DRAWS
    from agent.verify.sizes import Rules

    task = bank.load(task_id)
    names = [i.name for i in task.inputs]
    assert list(inspect.signature(task.reference).parameters) == names
    assert list(inspect.signature(task.baseline).parameters) == names
    assert task.source_path == bank.FOLDER / f"{task_id}.py"
    assert {i.draw for i in task.inputs} <= set(DRAWS)
    roles = [i.role for i in task.inputs]
    if task.kind == "epilogue":
        assert roles[:2] == ["a", "b"]
        assert set(roles[2:]) <= {"operand"}
    else:
        assert set(roles) == {"input"}
    assert task.gemms == {"epilogue": 1, "pointwise": 0}.get(task.kind, task.gemms)
    assert len(task.distributions) >= 2
    for name in (*names, *(o.name for o in task.outputs)):
        assert name in task.description
    sizes = [tuple(s.dims.items()) for s in task.shapes]
    assert len(set(sizes)) == len(sizes)
    assert len(task.shapes_of("smoke")) >= 2
    assert len(task.shapes_of("ragged")) >= 3
    assert len(task.shapes_of("benchmark")) >= 3
    ragged, step = [s.dims for s in task.shapes_of("ragged")], Rules.of(task).step
    assert any(all(v <= max(2, step[name]) for name, v in dims.items()) for dims in ragged), "no tiny shape"
    assert any(dims["M"] % 2 and dims.get("K", 1) % 2 and dims["M"] > 8 for dims in ragged), "no odd shape"
    for shape in task.shapes:
        assert shape.reason
        for i in task.inputs:
            assert all(n > 0 for n in bank.lengths(i.shape, shape.dims))


@pytest.mark.interp
@pytest.mark.parametrize("task_id", IDS)
def test_the_reference_gives_the_declared_outputs_unrounded(task_id: str) -> None:
    import torch

    task = bank.load(task_id)
    for shape in _small(task):
        for data, wide in (("float64", torch.float64), ("float32", torch.float32), ("bfloat16", torch.float32)):
            got = task.reference(**_inputs(task, shape.dims, data))
            assert list(got) == [o.name for o in task.outputs]
            for o in task.outputs:
                assert got[o.name].dtype is wide
                assert tuple(got[o.name].shape) == bank.lengths(o.shape, shape.dims)
                assert bool(got[o.name].isfinite().all())


@pytest.mark.interp
@pytest.mark.parametrize("task_id", IDS)
@pytest.mark.parametrize("data", ["float32", "bfloat16"])
def test_the_baseline_agrees_in_the_declared_dtypes_and_leaves_its_inputs_alone(task_id: str, data: str) -> None:
    import torch

    task = bank.load(task_id)
    tolerance = {"float32": 2e-6, "bfloat16": 3e-2}[data]
    for shape in _small(task):
        inputs = _inputs(task, shape.dims, data)
        before = {name: x.clone() for name, x in inputs.items()}
        got = task.baseline(**inputs)
        want = task.reference(**{n: x.double() if x.is_floating_point() else x for n, x in inputs.items()})
        assert list(got) == [o.name for o in task.outputs]
        for o in task.outputs:
            assert got[o.name].dtype is _dtype(o.dtype, data)
            assert got[o.name].shape == want[o.name].shape
            scale = want[o.name].abs().max().clamp_min(1.0)
            allowed = max(tolerance, 2**-4) if o.dtype.startswith("float8") else tolerance
            assert float((got[o.name].double() - want[o.name]).abs().max() / scale) < allowed, (shape, o.name)
        assert all(torch.equal(inputs[n], before[n]) for n in inputs)


@pytest.mark.interp
@pytest.mark.parametrize("task_id", IDS)
def test_the_baseline_is_one_graph(task_id: str) -> None:
    import torch

    task = bank.load(task_id)
    inputs = _inputs(task, task.shapes_of("smoke")[0].dims, "float32")
    compiled = torch.compile(task.baseline, fullgraph=True, backend="eager")(**inputs)
    plain = task.baseline(**inputs)
    assert all(torch.equal(compiled[name], plain[name]) for name in plain)


# ---- gradients ---------------------------------------------------------------------------------------------------------

GRADIENTS = tuple(i for i in IDS if i.endswith("_backward"))


@pytest.mark.interp
def test_backward_tasks_are_the_ones_with_gradients() -> None:
    assert tuple(i for i in IDS if bank.load(i).gradient is not None) == GRADIENTS


@pytest.mark.interp
@pytest.mark.parametrize("task_id", GRADIENTS)
def test_autograd_of_the_forward_gives_the_reference(task_id: str) -> None:
    import torch

    task = bank.load(task_id)
    gradient = task.gradient
    assert gradient is not None
    for shape in _small(task):
        inputs = gradient.consistent(_inputs(task, shape.dims, "float64"))
        leaves = {name: inputs[name].clone().requires_grad_() for name in gradient.wrt.values()}
        result = gradient.forward(**{**inputs, **leaves})
        assert result.shape == inputs[gradient.upstream].shape
        if not leaves:  # what it is the gradient of is no input: cross_entropy_backward has a test of its own
            continue
        wanted = torch.autograd.grad(result, list(leaves.values()), inputs[gradient.upstream])
        got = task.reference(**inputs)
        for output, want in zip(gradient.wrt, wanted, strict=True):
            assert float((got[output] - want).abs().max()) <= 1e-10 * float(want.abs().max() + 1), (shape, output)


@pytest.mark.interp
@pytest.mark.parametrize("task_id", GRADIENTS)
def test_linear_outputs_are_linear_in_the_upstream_gradient(task_id: str) -> None:
    import torch

    task = bank.load(task_id)
    gradient = task.gradient
    assert gradient is not None
    x = _inputs(task, task.shapes_of("smoke")[0].dims, "float64", seed=1)
    other = torch.randn(x[gradient.upstream].shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def at(upstream: torch.Tensor) -> bank.Tensors:
        assert gradient is not None
        return task.reference(**gradient.consistent({**x, gradient.upstream: upstream}))

    one, two, both = at(x[gradient.upstream]), at(other), at(3 * x[gradient.upstream] - 2 * other)
    for name in gradient.linear:
        torch.testing.assert_close(both[name], 3 * one[name] - 2 * two[name], rtol=1e-10, atol=1e-10)
    assert set(gradient.wrt) <= set(gradient.linear)


@pytest.mark.interp
def test_the_row_statistic_of_the_norm_is_known_one_gemm_earlier() -> None:
    import torch

    task = bank.load("rms_backward")
    gradient = task.gradient
    assert gradient is not None
    dims = {"M": 37, "N": 131, "K": 65}
    x = gradient.consistent(_inputs(task, dims, "float64"))
    z = gradient.forward(**x)
    torch.testing.assert_close(x["s"], (x["dz"] * z).sum(1) / dims["N"], rtol=1e-10, atol=1e-12)


@pytest.mark.interp
@pytest.mark.parametrize("task_id", ["cross_entropy_backward", "cross_entropy_loss_and_gradient"])
def test_the_gradient_of_the_logits_is_autograds(task_id: str) -> None:
    import torch

    task = bank.load(task_id)
    for shape in _small(task):
        x = _inputs(task, shape.dims, "float64")
        logits = (x["x"] @ x["w"]).requires_grad_()
        if task.gradient is not None:
            x = task.gradient.consistent(x)
        kept = torch.where((x["target"] >= 0) & (x["target"] < shape.dims["N"]), x["target"], -100)
        loss = torch.nn.functional.cross_entropy(logits, kept, reduction="none")
        (want,) = torch.autograd.grad(loss, logits, x["dloss"])
        got = task.reference(**x)
        torch.testing.assert_close(got["dlogits"], want, rtol=1e-10, atol=1e-12)
        if "loss" in got:
            torch.testing.assert_close(got["loss"], loss.detach(), rtol=1e-10, atol=1e-12)
        else:
            torch.testing.assert_close(got["zdz"], (logits * want).sum(1).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.interp
def test_the_row_statistics_of_layernorm_are_known_one_gemm_earlier() -> None:
    import torch

    task = bank.load("layernorm_backward")
    gradient = task.gradient
    assert gradient is not None
    dims = {"M": 37, "N": 131, "K": 65}
    x = gradient.consistent(_inputs(task, dims, "float64"))
    z, folded, offset = gradient.forward(**x), x["w1_t"] @ x["gamma"], x["w1_t"] @ x["beta"]
    torch.testing.assert_close(x["s1"], (x["dz"] * folded).sum(1) / dims["N"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(x["s2"], (x["dz"] * (z - offset)).sum(1) / dims["N"], rtol=1e-10, atol=1e-12)


@pytest.mark.interp
def test_a_folded_layernorm_is_a_layernorm_and_a_linear_layer() -> None:
    import torch
    from torch.nn.functional import layer_norm

    dims = {"M": 37, "N": 131, "K": 65}
    x = _inputs(bank.load("residual_layernorm"), dims, "float64")
    p = bank.load("residual_layernorm").reference(**x)
    gen = torch.Generator().manual_seed(3)
    w = torch.randn(dims["N"], 33, generator=gen, dtype=torch.float64)
    beta, bias = torch.randn(dims["N"], generator=gen, dtype=torch.float64), torch.ones(33, dtype=torch.float64)
    z = bank.load("layernorm_linear").reference(
        p["q"], w, p["rstd"], p["shift"], gamma_w=x["gamma"] @ w, offset=beta @ w + bias
    )["z"]
    want = layer_norm(p["h"], (dims["N"],), x["gamma"], beta, 1e-5) @ w + bias
    torch.testing.assert_close(z, want, rtol=1e-10, atol=1e-10)


@pytest.mark.interp
def test_the_row_statistic_of_a_rotation_is_the_same_on_both_sides() -> None:
    import torch

    task = bank.load("rope_backward")
    gradient = task.gradient
    assert gradient is not None
    x = _inputs(task, {"M": 37, "N": 130}, "float64")
    before = torch.randn(37, 130, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    got = task.reference(**{**x, "rotated": gradient.forward(**{**x, "rotated": before})})
    torch.testing.assert_close(got["zdz"], (before * got["dz"]).sum(1), rtol=1e-10, atol=1e-12)


@pytest.mark.interp
def test_the_residual_gradient_is_added_once() -> None:
    import torch

    task = bank.load("rms_backward")
    x = _inputs(task, {"M": 5, "N": 6, "K": 4}, "float64")
    without = task.reference(**{**x, "dres": torch.zeros_like(x["dres"])})
    torch.testing.assert_close(task.reference(**x)["dh"] - without["dh"], x["dres"], rtol=1e-10, atol=1e-10)


def test_a_task_file_that_raises_is_its_authors_mistake(tmp_path: pathlib.Path) -> None:
    text = (bank.FOLDER / "rms_scale.py").read_text(encoding="utf-8").replace("from ..", "from agent.")
    (tmp_path / "rms_scale.py").write_text(text.replace("    reference=reference,\n", "", 1), encoding="utf-8")
    with pytest.raises(InvalidTask, match=r"rms_scale\.py cannot be used: TypeError: .*'reference'"):
        bank.load("rms_scale", tmp_path)
