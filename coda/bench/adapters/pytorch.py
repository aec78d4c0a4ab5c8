"""PyTorch as a peer: the task's baseline eager and compiled, the plain GEMM, and the layout that suits torch.compile best.

    ALWAYS    for every task: eager, compile, max-autotune, cublas
    ADAPTERS  `compile-halves`: the same mathematics with gate and up (or a rotation's two columns) as contiguous halves

A task's baseline works on interleaved columns, because the kernels do. Code written for PyTorch keeps the two halves apart,
and torch.compile is faster on them; without this peer a comparison with torch.compile would flatter us.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coda.bench.adapters.shared import in_halves, interleaved
from coda.bench.candidates import Build, Candidate, Setting, compiled, each_for

HALVES = "torch.compile with gate and up as contiguous halves in weights, saved matrices and results"
ROTATED = "torch.compile with each pair's two columns as contiguous halves in weights, table and result"


def _eager(setting: Setting) -> Candidate:
    return Candidate(lambda inputs: setting.baseline(**inputs))


def _compiled(mode: str | None) -> Callable[[Setting], Candidate]:
    def make(setting: Setting) -> Candidate:
        run = compiled(setting.baseline, fullgraph=True, mode=mode)
        return Candidate(lambda inputs: run(**inputs), config={"mode": mode or "default"})

    return make


def _cublas(setting: Setting) -> Candidate:
    """The GEMMs alone: the task's own matrices where they are known, else random ones of the same sizes."""
    import torch

    if setting.a_b is not None:
        a, b = setting.a_b
        return Candidate(lambda inputs: {"product": inputs[a] @ inputs[b]})
    like = next(x for x in setting.inputs.values() if isinstance(x, torch.Tensor) and x.is_floating_point())
    pairs = [
        (
            torch.randn(m, k, device=like.device).to(like.dtype),
            (torch.randn(k, n, device=like.device) / max(k, 1) ** 0.5).to(like.dtype),
        )
        for m, n, k in setting.gemms
    ]
    return Candidate(lambda inputs: {f"product{i}": a @ b for i, (a, b) in enumerate(pairs)})


ALWAYS: dict[str, Build] = {
    "eager": each_for("eager", _eager),
    "compile": each_for("compile", _compiled(None)),
    "max-autotune": each_for("max-autotune", _compiled("max-autotune-no-cudagraphs")),
    "cublas": each_for("cublas", _cublas),
}


# layouts --------------------------------------------------------------------------------------------------------------


def _halves(
    function: Callable[..., Mapping[str, Any]], *, split: Sequence[str], join: Sequence[str], note: str
) -> Build:
    def make(setting: Setting) -> Candidate:
        run = compiled(function, fullgraph=True)
        return Candidate(
            lambda inputs: run(**inputs),
            prepare=lambda inputs: in_halves(inputs, split),
            finish=lambda outputs: interleaved(outputs, join),
            config={"mode": "default"},
            note=note,
        )

    return each_for("compile-halves", make)


# the tasks in halves --------------------------------------------------------------------------------------------------


def activation(name: str) -> Callable[[Any], Any]:
    """A gate's activation by its name in the task ids."""
    import torch.nn.functional as F  # noqa: N812

    known: dict[str, Callable[[Any], Any]] = {
        "swiglu": F.silu,
        "geglu": F.gelu,
        "geglu_tanh": functools.partial(F.gelu, approximate="tanh"),
        "reglu": F.relu,
    }
    return known[name]


def _forward(gate: str) -> Build:
    def function(x: Any, w: Any) -> dict[str, Any]:
        z = x @ w
        first, up = z.chunk(2, -1)
        return {"z": z, "h": activation(gate)(first) * up}

    return _halves(function, split=("w",), join=("z",), note=HALVES)


def _rms_swiglu(q: Any, w: Any, rstd: Any) -> dict[str, Any]:
    z = ((q @ w) * rstd[:, None]).to(q.dtype)
    gate, up = z.chunk(2, -1)
    return {"z": z, "h": activation("swiglu")(gate) * up}


def slopes(gate: str, value: Any) -> tuple[Any, Any]:
    """Activation and its derivative at fp32 values."""
    import math

    import torch

    if gate == "swiglu":
        sigma = torch.sigmoid(value)
        return value * sigma, sigma + value * sigma * (1 - sigma)
    if gate == "reglu":
        slope = (value > 0).float()
        return value * slope, slope
    if gate == "geglu":
        cdf = 0.5 * (1 + torch.erf(value * math.sqrt(0.5)))
        return value * cdf, cdf + value * torch.exp(-0.5 * value * value) / math.sqrt(2 * math.pi)
    root = math.sqrt(2 / math.pi)
    t = torch.tanh(root * (value + 0.044715 * value**3))
    return (
        0.5 * value * (1 + t),
        0.5 * (1 + t) + 0.5 * value * (1 - t * t) * root * (1 + 3 * 0.044715 * value * value),
    )


def _backward(gate: str) -> Build:
    def function(dy: Any, w2_t: Any, z: Any) -> dict[str, Any]:
        import torch

        dh = (dy @ w2_t).float()
        first, up = (x.float() for x in z.chunk(2, -1))
        value, slope = slopes(gate, first)
        dgate, dup = dh * up * slope, dh * value
        return {
            "dz": torch.cat([dgate, dup], -1).to(dy.dtype),
            "h": (value * up).to(dy.dtype),
            "zdz": (first * dgate + up * dup).sum(1),
        }

    return _halves(function, split=("z",), join=("dz",), note=HALVES)


def _mlp(x: Any, w_1: Any, w_2: Any, residual: Any) -> dict[str, Any]:
    import torch

    gate, up = (x @ w_1).chunk(2, -1)
    return {"stream": torch.addmm(residual, activation("swiglu")(gate) * up, w_2)}


def _mlp_block(y: Any, w_o: Any, residual: Any, gamma: Any, w_1: Any, w_2: Any, eps: float) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    h = torch.addmm(residual, y, w_o)
    gate, up = (F.rms_norm(h, (h.shape[1],), gamma, eps) @ w_1).chunk(2, -1)
    return {"h": h, "stream": torch.addmm(h, activation("swiglu")(gate) * up, w_2)}


def rotated_halves(z: Any, cos_sin: Any) -> Any:
    """Every pair turned by its angle, in halves."""
    import torch

    first, second = z.chunk(2, -1)
    cos, sin = cos_sin.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _rope(x: Any, w: Any, cos_sin: Any) -> dict[str, Any]:
    return {"rotated": rotated_halves(x @ w, cos_sin)}


def _rms_rope(q: Any, w: Any, rstd: Any, cos_sin: Any) -> dict[str, Any]:
    return {"rotated": rotated_halves(((q @ w) * rstd[:, None]).to(q.dtype), cos_sin)}


ADAPTERS: dict[str, Build] = {
    **{f"gemm_{gate}": _forward(gate) for gate in ("swiglu", "geglu", "geglu_tanh", "reglu")},
    **{f"{gate}_backward": _backward(gate) for gate in ("swiglu", "geglu", "geglu_tanh", "reglu")},
    "rms_swiglu": _halves(_rms_swiglu, split=("w",), join=("z",), note=HALVES),
    "mlp_residual": _halves(_mlp, split=("w_1",), join=(), note=HALVES),
    "residual_mlp_block": _halves(_mlp_block, split=("w_1",), join=(), note=HALVES),
    "gemm_rope": _halves(_rope, split=("w", "cos_sin"), join=("rotated",), note=ROTATED),
    "rms_rope": _halves(_rms_rope, split=("w", "cos_sin"), join=("rotated",), note=ROTATED),
}
