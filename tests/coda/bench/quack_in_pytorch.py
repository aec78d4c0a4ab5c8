"""quack-kernels' fused epilogues, evaluated in PyTorch: the package's own epilogue functions run on whole matrices.

    installed  replaces the launch of a fused GEMM, and the package's few other kernels, by their meaning

What is real: the epilogue functions, their parameters, pinned operands, outputs and reductions, all read from the installed
package, and its rules for operands (an operand that is not pinned must be a whole tile; `D` must be returned or not asked
for; scratch of a reduction whose finishing is the caller's stays in partials). What is replaced: device activations, the GEMM, and
the tiling. So this proves that an adapter binds, names, lays out and finishes as the package means it, not that it compiles.
"""

from __future__ import annotations

import importlib
import inspect
import math
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from quack.epilogue import frontend, ops
from quack.epilogue.head_rmsnorm import HeadRstd
from quack.epilogue.math import Pair
from quack.epilogue.rotary import RotaryCosSinLoad, RotaryCosSinTMALoad


def gelu_tanh_slope(x: Any) -> Any:
    root = math.sqrt(2 / math.pi)
    t = torch.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)


def gelu_tanh(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


def silu_slope(x: Any) -> Any:
    s = torch.sigmoid(x)
    return s + x * s * (1 - s)


def erf_slope(x: Any) -> Any:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def backward(value: Any, slope: Any) -> Any:
    return lambda x, grad: (grad * slope(x), value(x))


def gate_backward(value: Any, slope: Any) -> Any:
    return lambda x, y, grad: (grad * y * slope(x), grad * value(x), value(x) * y)


def step(x: Any) -> Any:
    return (x > 0).to(x.dtype)


DEVICE = {
    "silu": F.silu,
    "relu_sq": lambda x: F.relu(x).square(),
    "gelu_tanh_approx": gelu_tanh,
    "gelu_erf": F.gelu,
    "dsilu": backward(F.silu, silu_slope),
    "drelu_sq": backward(lambda x: F.relu(x).square(), lambda x: 2 * F.relu(x)),
    "dgelu_tanh_approx": backward(gelu_tanh, gelu_tanh_slope),
    "dgelu_erf": backward(F.gelu, erf_slope),
    "swiglu": lambda x, y: F.silu(x) * y,
    "reglu": lambda x, y: F.relu(x) * y,
    "geglu": lambda x, y: gelu_tanh(x) * y,
    "dswiglu": gate_backward(F.silu, silu_slope),
    "dreglu": gate_backward(F.relu, step),
    "dgeglu": gate_backward(gelu_tanh, gelu_tanh_slope),
    "_angle_turns": lambda pos, freq: (pos.double() * (freq.a.double() + freq.b.double()), 0.0),
    "_sincos_turns": lambda t, lo: (torch.sin(2 * math.pi * t), torch.cos(2 * math.pi * t)),
}
"""By the name of the package's device function."""


def on_matrices(fn: Any) -> Any:
    """The epilogue function with PyTorch for what its device functions mean."""

    def known(value: Any) -> Any:
        return DEVICE.get(getattr(value, "__name__", ""), value)

    names = {name: known(value) for name, value in fn.__globals__.items() if callable(value)}
    cells = tuple(types.CellType(known(c.cell_contents)) for c in fn.__closure__ or ())
    return types.FunctionType(fn.__code__, {**fn.__globals__, **names}, fn.__name__, fn.__defaults__, cells or None)


def lanes(x: Any) -> Pair:
    return Pair(x[..., 0::2], x[..., 1::2])


def joined(x: Any) -> Any:
    return torch.stack([x.a, x.b], -1).flatten(-2) if isinstance(x, Pair) else x


def operand(mod: Any, name: str, value: Any, acc: Any, m: int, n: int) -> Any:
    """What the epilogue function sees of an operand."""
    op = mod.ops.get(name)
    paired = mod.mode == "acc_pair"
    if isinstance(op, HeadRstd):
        width = value if isinstance(value, int) else value.shape[0]
        squares = acc.square().view(m, -1, width).mean(2)
        full = torch.rsqrt(squares + op.eps).repeat_interleave(width, 1)
        return lanes(full) if paired else full
    if isinstance(op, (RotaryCosSinLoad, RotaryCosSinTMALoad)):
        assert value.shape[0] == m
        assert n % value.shape[1] == 0
        full = value.float().repeat(1, n // value.shape[1])
        return lanes(full) if paired else full
    if isinstance(op, ops.RowVecLoad):
        assert value.shape in ((n,), (1, n)), (name, value.shape)
        row = value.float().reshape(1, n)
        return lanes(row) if paired else row
    if isinstance(op, ops.ColVecLoad):
        assert value.shape in ((m,), (1, m)), (name, value.shape)
        return value.float().reshape(m, 1)
    assert op is None, (name, op)
    assert value.shape == (m, n), f"{name} is not pinned: the package takes only a whole tile, not {tuple(value.shape)}"
    return lanes(value.float()) if paired else value.float()


def reduced(op: Any, value: Any, operands: dict[str, Any]) -> Any:
    """What the finished reduction is, or its partials where the package leaves finishing to the caller."""
    if isinstance(op, ops.ColVecSelect):
        target, into = operands[op.idx_op.name], operands[op.name]
        inside = (target >= 0) & (target < value.shape[1])
        rows = inside.nonzero()[:, 0]
        into[rows] = value[rows, target[rows].long()].to(into.dtype)
        return into
    if isinstance(op, ops.OnlineLSEReduce):
        return torch.logsumexp(joined(value), 1)
    if op.scaled:
        value = value[0] * value[1]
    value = joined(value)
    if isinstance(op, ops.RowVecReduce):
        return value.sum(0)
    assert isinstance(op, ops.ColVecReduce)
    if op.host_finalize is None:
        return torch.stack([part.sum(1) for part in value.tensor_split(3, 1)], 1)
    return value.sum(1)


def launch(mod: Any, a: Any, b: Any, c: Any = None, *, config: Any, tuned: bool, store_d: bool, **operands: Any) -> Any:
    """`EpiMod.__call__`, as adapters use it."""
    assert config is not None
    assert not tuned
    m, n = a.shape[0], b.shape[1]
    parameters = list(inspect.signature(mod.fn).parameters)
    needed = {p for p in parameters if p not in ("acc", "c")}
    beyond = {op.name for op in mod.extra_ops} | set(mod.sinks)
    assert needed <= set(operands) <= needed | beyond, f"operands {sorted(operands)}, parameters {parameters}"
    assert (c is not None) == ("c" in parameters)
    product = a.float() @ b.float()
    seen: dict[str, Any] = {"acc": lanes(product) if mod.mode == "acc_pair" else product}
    if c is not None:
        packed = mod.mode == "packed_cd_b16x2"
        assert c.shape == ((m, 2 * n) if packed else (m, n))
        seen["c"] = lanes(c.float()) if packed or mod.mode == "acc_pair" else c.float()
    for name in needed:
        seen[name] = operand(mod, name, operands[name], product, m, n)
    result = on_matrices(mod.fn)(*(seen[p] for p in parameters))
    assert ("D" in result) or not store_d, "without `D` returned, the package stores the raw accumulator there"
    found = {name: joined(result[name]).to(a.dtype) for name in mod.outputs}
    if store_d:
        found["D"] = joined(result["D"]).to(a.dtype)
    for name, op in mod.sinks.items():
        finished = reduced(op, result[name], operands)
        if name not in operands:
            found[name] = finished
    return found


def cross_entropy_fwd(x: Any, target: Any, *, return_lse: bool) -> Any:
    assert return_lse
    assert int(target.max()) < x.shape[1]
    assert {int(t) for t in target if t < 0} <= {-100}
    return F.cross_entropy(x.float(), target, reduction="none"), torch.logsumexp(x.float(), 1)


def cross_entropy_bwd(x: Any, target: Any, dloss: Any, lse: Any, *, inplace_backward: bool) -> Any:
    counts = target >= 0
    hot = F.one_hot(target.clamp_min(0), x.shape[1])
    return ((torch.exp(x - lse[:, None]) - hot) * (dloss * counts)[:, None]).to(x.dtype)


def rms_final_reduce(partials: Any, scale: float, eps: float) -> Any:
    assert partials.ndim == 2
    return torch.rsqrt(partials.sum(1) * scale + eps)


def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace launches by their meaning."""
    losses = importlib.import_module("quack.cross_entropy")  # the package has a function of that name, too
    monkeypatch.setattr(frontend.EpiMod, "__call__", launch)
    monkeypatch.setattr(importlib.import_module("quack.rms_final_reduce"), "rms_final_reduce", rms_final_reduce)
    monkeypatch.setattr(losses, "cross_entropy_fwd", cross_entropy_fwd)
    monkeypatch.setattr(losses, "cross_entropy_bwd", cross_entropy_bwd)
