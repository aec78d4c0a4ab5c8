"""Adapters compute their tasks: on a CPU, with each package's kernels replaced by what they mean.

quack-kernels' epilogue functions are the installed package's own (`quack_in_pytorch.py`). Liger, FlashInfer and cut-cross-entropy
are stand-ins with the packages' names, layouts and rules; where a package is installed, the calls are bound to its real signatures.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pathlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from agent import task as tasks
from agent.verify import inputs as draws
from coda.bench import peers
from coda.bench.adapters import cut_cross_entropy, flashinfer, liger, pytorch, quack

pytestmark = [pytest.mark.interp, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # quack's own imports

SIZES = {"M": 37, "N": 128, "K": 48, "P": 96, "V": 160}


def support(name: str) -> Any:
    """A helper beside this file, imported only where what it imports is installed."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dims_of(task: tasks.Task) -> dict[str, int]:
    return {name: SIZES[name] for name in task.shapes[0].dims}


def setting_of(task_id: str) -> tuple[tasks.Task, peers.Setting]:
    task = tasks.load(task_id)
    inputs = draws.draw(task, dims_of(task), seed=5, dtype="float32")
    roles = {i.role: i.name for i in task.inputs}
    a_b = (roles["a"], roles["b"]) if {"a", "b"} <= roles.keys() else None
    return task, peers.Setting(task_id, task.baseline, inputs, ((37, 128, 48),) * task.gemms, a_b)


def check(task: tasks.Task, setting: peers.Setting, candidate: peers.Candidate) -> None:
    """The candidate's outputs are the reference's, and its inputs are as they were."""
    before = {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in setting.inputs.items()}
    with torch.no_grad():
        found = candidate(setting.inputs)
    right = task.reference(**draws.upcast(before))
    for o in task.outputs:
        torch.testing.assert_close(
            found[o.name].double(), right[o.name], rtol=2e-4, atol=2e-4, msg=f"output {o.name!r}: ".__add__
        )
    for name, x in before.items():
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, setting.inputs[name]), f"{name} was written"


@pytest.fixture(autouse=True)
def eager_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled around a kernel is the same function without the compiler."""
    for module in (quack, liger, flashinfer, cut_cross_entropy):
        monkeypatch.setattr(module, "rest", lambda function: function, raising=False)
    monkeypatch.setattr(torch, "compile", lambda function=None, **_: function or (lambda decorated: decorated))


# PyTorch --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", sorted(pytorch.ADAPTERS))
def test_compile_in_halves(task_id: str) -> None:
    task, setting = setting_of(task_id)
    (candidate,) = pytorch.ADAPTERS[task_id](setting).values()
    assert "halves" in candidate.note
    check(task, setting, candidate)


@pytest.mark.parametrize("name", ["eager", "compile", "max-autotune"])
def test_the_baseline_as_a_peer(name: str) -> None:
    task, setting = setting_of("rms_swiglu")
    check(task, setting, peers.build(name, setting)[name])


def test_the_ceiling_is_the_tasks_own_product() -> None:
    _, setting = setting_of("rms_swiglu")
    found = peers.build("cublas", setting)["cublas"](setting.inputs)
    torch.testing.assert_close(found["product"], setting.inputs["q"] @ setting.inputs["w"])
    _, plan = setting_of("residual_rms_linear")
    assert [tuple(x.shape) for x in peers.build("cublas", plan)["cublas"](plan.inputs).values()] == [(37, 128)] * 2


# quack-kernels --------------------------------------------------------------------------------------------------------

HAVE_QUACK = importlib.util.find_spec("quack") is not None


@pytest.mark.skipif(not HAVE_QUACK, reason="quack-kernels is not installed")
@pytest.mark.parametrize("task_id", sorted(quack.ADAPTERS))
def test_quack(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quack_in_pytorch = support("quack_in_pytorch")
    quack_in_pytorch.installed(monkeypatch)
    task, setting = setting_of(task_id)
    candidates = quack.ADAPTERS[task_id](setting)
    one_per_configuration = {quack.label(*c) for c in quack.CONFIGURATIONS}
    assert set(candidates) in (one_per_configuration, {"quack"})
    first, *others = candidates.values()
    check(task, setting, first)
    assert len({str(c.config) for c in candidates.values()}) == len(candidates)
    assert all(c.prepare is first.prepare for c in others)  # so that they share their input sets


@pytest.mark.skipif(not HAVE_QUACK, reason="quack-kernels is not installed")
def test_quack_configurations_are_made_once() -> None:
    """The package keys its launch recipes by the identity of a configuration."""
    first, again = quack._configurations(), quack._configurations()
    assert [a[2] is b[2] for a, b in zip(first, again, strict=True)] == [True] * 5


# stand-ins for the other packages -------------------------------------------------------------------------------------


def module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules or not hasattr(sys.modules[parent], "stand_in"):
            package = types.ModuleType(parent)
            package.__dict__.update(stand_in=True, __path__=[])
            monkeypatch.setitem(sys.modules, parent, package)
    made = types.ModuleType(name)
    made.__dict__.update(stand_in=True, **functions)
    monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], made, raising=False)


def gate_up(y: Any) -> tuple[Any, Any]:
    assert y.is_contiguous()
    gate, up = y.chunk(2, -1)
    return y, F.silu(gate) * up


def gate_up_backward(y: Any, dc: Any, in_place: bool = False) -> Any:
    assert not in_place
    gate, up = y.chunk(2, -1)
    value, slope = pytorch.slopes("swiglu", gate)
    return torch.cat([dc * up * slope, dc * value], -1)


def rms(h: Any, gamma: Any, eps: float) -> Any:
    return F.rms_norm(h, (h.shape[-1],), gamma, eps)


def liger_cross_entropy(x: Any, target: Any, weight: Any, ignore: int, *numbers: Any, return_z_loss: bool) -> Any:
    assert x.requires_grad
    assert weight is None
    assert numbers == (0.0, 0.0, "none", None)
    assert int((target * (target != ignore)).max()) < x.shape[1]
    counts = target != ignore
    probabilities = torch.softmax(x.float(), 1) - F.one_hot(target.clamp_min(0), x.shape[1])
    loss = F.cross_entropy(x.float(), target, reduction="none", ignore_index=ignore)
    return loss, None, None, None, probabilities * counts[:, None]


def liger_rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    def turn(x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    return turn(q), turn(k), cos, sin


def stand_in_liger(monkeypatch: pytest.MonkeyPatch) -> None:
    base = "liger_kernel.ops"
    module(
        monkeypatch,
        f"{base}.swiglu",
        swiglu_fused_gate_up_forward=gate_up,
        swiglu_fused_gate_up_backward=gate_up_backward,
    )
    module(monkeypatch, f"{base}.geglu", geglu_forward=lambda a, b: (a, b, F.gelu(a, approximate="tanh") * b))
    module(
        monkeypatch,
        f"{base}.relu_squared",
        relu_squared_forward=lambda x: F.relu(x).square(),
        relu_squared_backward=lambda x, dy: 2 * dy * F.relu(x),
    )
    module(
        monkeypatch,
        f"{base}.cross_entropy",
        cross_entropy_forward=liger_cross_entropy,
        cross_entropy_backward=lambda x, g: x * g[:, None],
    )
    module(
        monkeypatch,
        f"{base}.rms_norm",
        rms_norm_forward=lambda x, w, eps, offset, mode, row: (rms(x, w, eps), x, None, 0, 0, mode),
    )
    module(
        monkeypatch,
        f"{base}.fused_add_rms_norm",
        fused_add_rms_norm_forward=lambda x, r, w, eps, offset, mode: (rms(x + r, w, eps), x + r, None, 0, 0, mode),
    )
    module(monkeypatch, f"{base}.rope", rope_forward=liger_rope)


@pytest.mark.parametrize("task_id", sorted(liger.ADAPTERS))
def test_liger(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_liger(monkeypatch)
    task, setting = setting_of(task_id)
    check(task, setting, liger.ADAPTERS[task_id](setting)["liger"])


def flashinfer_rope(positions: Any, query: Any, key: Any, head_size: int, cache: Any, is_neox: bool = True) -> Any:
    assert cache.dtype == torch.float32
    assert not is_neox
    cos, sin = cache[positions].chunk(2, -1)

    def turn(x: Any) -> Any:
        heads = x.reshape(x.shape[0], -1, head_size)
        even, odd, c, s = heads[..., 0::2], heads[..., 1::2], cos[:, None], sin[:, None]
        return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(2).flatten(1)

    return turn(query), turn(key)


def and_mul(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(z: Any) -> Any:
        first, second = z.chunk(2, -1)
        return function(first) * second

    return call


def stand_in_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "flashinfer.activation",
        silu_and_mul=and_mul(F.silu),
        gelu_and_mul=and_mul(F.gelu),
        gelu_tanh_and_mul=and_mul(lambda x: F.gelu(x, approximate="tanh")),
    )
    module(monkeypatch, "flashinfer.norm", rmsnorm=rms)
    module(monkeypatch, "flashinfer.rope", apply_rope_with_cos_sin_cache=flashinfer_rope)


@pytest.mark.parametrize("task_id", sorted(flashinfer.ADAPTERS))
def test_flashinfer(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_flashinfer(monkeypatch)
    task, setting = setting_of(task_id)
    check(task, setting, flashinfer.ADAPTERS[task_id](setting)["flashinfer"])


def stand_in_cut_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    def lse(e: Any, c: Any, valids: Any, *, softcap: Any, return_logit_avg: bool) -> Any:
        assert e.shape[1] == c.shape[1]
        assert not return_logit_avg
        return torch.logsumexp((e @ c.T).float(), 1)

    def dot(e: Any, c: Any, inds: Any, shift: bool, valids: Any, softcap: Any, dtype: Any) -> Any:
        assert int(inds.min()) >= 0
        assert int(inds.max()) < c.shape[0]
        return -(e * c[inds]).sum(1).to(dtype)

    module(monkeypatch, "cut_cross_entropy.cce_lse_forward", cce_lse_forward_kernel=lse)
    module(monkeypatch, "cut_cross_entropy.indexed_dot", indexed_neg_dot_forward_kernel=dot)


@pytest.mark.parametrize("task_id", sorted(cut_cross_entropy.ADAPTERS))
def test_cut_cross_entropy(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_cut_cross_entropy(monkeypatch)
    task, setting = setting_of(task_id)
    check(task, setting, cut_cross_entropy.ADAPTERS[task_id](setting)["cut-cross-entropy"])


# the real packages, where they are installed --------------------------------------------------------------------------

CALLS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "liger_kernel.ops.swiglu:swiglu_fused_gate_up_forward": (1, {}),
    "liger_kernel.ops.swiglu:swiglu_fused_gate_up_backward": (2, {}),
    "liger_kernel.ops.geglu:geglu_forward": (2, {}),
    "liger_kernel.ops.relu_squared:relu_squared_forward": (1, {}),
    "liger_kernel.ops.relu_squared:relu_squared_backward": (2, {}),
    "liger_kernel.ops.cross_entropy:cross_entropy_forward": (8, {"return_z_loss": False}),
    "liger_kernel.ops.cross_entropy:cross_entropy_backward": (2, {}),
    "liger_kernel.ops.rms_norm:rms_norm_forward": (6, {}),
    "liger_kernel.ops.fused_add_rms_norm:fused_add_rms_norm_forward": (6, {}),
    "liger_kernel.ops.rope:rope_forward": (4, {}),
    "flashinfer.activation:silu_and_mul": (1, {}),
    "flashinfer.activation:gelu_and_mul": (1, {}),
    "flashinfer.activation:gelu_tanh_and_mul": (1, {}),
    "flashinfer.norm:rmsnorm": (3, {}),
    "flashinfer.rope:apply_rope_with_cos_sin_cache": (5, {"is_neox": False}),
    "cut_cross_entropy.cce_lse_forward:cce_lse_forward_kernel": (3, {"softcap": None, "return_logit_avg": False}),
    "cut_cross_entropy.indexed_dot:indexed_neg_dot_forward_kernel": (7, {}),
}
"""Function -> positional arguments and keywords, as the adapters call it."""


@pytest.mark.parametrize("function", CALLS)
def test_calls_fit_the_installed_packages(function: str) -> None:
    where, _, name = function.partition(":")
    package = where.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    try:
        found = getattr(importlib.import_module(where), name)
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"{package} cannot be imported here: {error}")
    count, keywords = CALLS[function]
    inspect.signature(found).bind(*range(count), **keywords)


def test_adapters_share_one_module_and_nothing_else() -> None:
    folder = pathlib.Path(pytorch.__file__).parent
    names = {p.stem for p in folder.glob("*.py")} - {"__init__", "shared"}
    assert names == {"pytorch", "quack", "liger", "flashinfer", "cut_cross_entropy"}
    for name in names:
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not {f"coda.bench.adapters.{other}" for other in names} & modules, name


def test_heads_are_as_wide_as_their_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_liger(monkeypatch)
    stand_in_flashinfer(monkeypatch)
    task, setting = setting_of("head_norm_rope")
    narrow = {**setting.inputs, "gamma": setting.inputs["gamma"][:32], "frequency": setting.inputs["frequency"][:16]}
    found = [
        adapters.ADAPTERS[task.id](setting)[name](narrow)["rotated"]
        for name, adapters in (("liger", liger), ("flashinfer", flashinfer))
    ]
    torch.testing.assert_close(*found, rtol=2e-4, atol=2e-4)


def test_every_adapter_is_of_a_task_and_a_peer() -> None:
    known = tasks.cards()
    assert {task_id for _, task_id in peers.ADAPTERS} <= set(known)
    assert {peer for peer, _ in peers.ADAPTERS} <= set(peers.PEERS)
    assert {peer for peer, _ in peers.ADAPTERS} | set(peers.ALWAYS) == set(peers.PEERS)
    assert sys.modules.get("flashinfer") is None or not hasattr(sys.modules["flashinfer"], "stand_in")
