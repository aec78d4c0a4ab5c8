"""FlashInfer as a peer: its CUDA kernels for inference behind a cuBLAS GEMM.

The package compiles its kernels on first use, with nvcc: without one the peer fails and says so. Gate and up are halves, as
its kernels read them; rotations are of adjacent pairs natively. Only forward tasks: the package has no backward. Its fused
addition and norm works in place on the residual, which must stay as it is here, so the addition rides on the GEMM (`addmm`).
API read in flashinfer-python 0.7.4 (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coda.bench.adapters.shared import head_of, in_halves, interleaved
from coda.bench.candidates import Build, Candidate, Inputs, Outputs, Setting, each_for, rest

HALVES = "gate and up as contiguous halves in weights and results, as the package's kernels read them"


def _gated(function: str) -> Callable[[Setting], Candidate]:
    def make(setting: Setting) -> Candidate:
        from flashinfer import activation

        kernel = getattr(activation, function)

        def run(i: Inputs) -> Outputs:
            z = i["x"] @ i["w"]
            return {"z": z, "h": kernel(z)}

        return Candidate(
            run,
            prepare=lambda inputs: in_halves(inputs, ("w",)),
            finish=lambda outputs: interleaved(outputs, ("z",)),
            note=HALVES,
        )

    return make


def _rms_swiglu(setting: Setting) -> Candidate:
    from flashinfer.activation import silu_and_mul

    scale = rest(lambda z, rstd: (z * rstd[:, None]).to(z.dtype))

    def run(i: Inputs) -> Outputs:
        z = scale(i["q"] @ i["w"], i["rstd"])
        return {"z": z, "h": silu_and_mul(z)}

    return Candidate(
        run,
        prepare=lambda inputs: in_halves(inputs, ("w",)),
        finish=lambda outputs: interleaved(outputs, ("z",)),
        note=f"{HALVES}; the row scale is PyTorch",
    )


def _stream(i: Inputs, residual: str = "residual") -> tuple[Any, Any]:
    """The sum with the residual, from the GEMM, and its normalised rows."""
    import torch
    from flashinfer.norm import rmsnorm

    h = torch.addmm(i[residual], i["y"], i["w_o"])
    return h, rmsnorm(h, i["gamma"], i["eps"])


def _residual_rms_linear(setting: Setting) -> Candidate:
    def run(i: Inputs) -> Outputs:
        h, normed = _stream(i)
        return {"h": h, "z": normed @ i["w_1"]}

    return Candidate(run)


def _mlp(setting: Setting) -> Candidate:
    import torch
    from flashinfer.activation import silu_and_mul

    def run(i: Inputs) -> Outputs:
        return {"stream": torch.addmm(i["residual"], silu_and_mul(i["x"] @ i["w_1"]), i["w_2"])}

    return Candidate(run, prepare=lambda inputs: in_halves(inputs, ("w_1",)), note=HALVES)


def _mlp_block(setting: Setting) -> Candidate:
    import torch
    from flashinfer.activation import silu_and_mul

    def run(i: Inputs) -> Outputs:
        h, normed = _stream(i)
        return {"h": h, "stream": torch.addmm(h, silu_and_mul(normed @ i["w_1"]), i["w_2"])}

    return Candidate(run, prepare=lambda inputs: in_halves(inputs, ("w_1",)), note=HALVES)


def _rotate(z: Any, i: Inputs, head: int) -> tuple[Any, Any]:
    """Queries and keys, each half of the heads, turned by the rows' positions."""
    from flashinfer.rope import apply_rope_with_cos_sin_cache

    query, key = z.chunk(2, 1)
    result: tuple[Any, Any] = apply_rope_with_cos_sin_cache(i["position"], query, key, head, i["cache"], is_neox=False)
    return result


def _with_cache(inputs: Inputs) -> Inputs:
    """The package's table of cos and sin by position, which a model builds once."""
    import torch

    last = int(inputs["position"].max())
    angle = torch.arange(last + 1, device=inputs["position"].device)[:, None] * inputs["frequency"].float()
    return {**inputs, "cache": torch.cat([angle.cos(), angle.sin()], -1).contiguous()}


def _head_norm_rope(setting: Setting) -> Candidate:
    import torch
    from flashinfer.norm import rmsnorm

    def run(i: Inputs) -> Any:
        rows, head = i["x"].shape[0], head_of(i)
        z = (i["x"] @ i["w"]).view(rows, -1, head)
        return _rotate(rmsnorm(z, i["gamma"], i["eps"]).view(rows, -1), i, head)

    return Candidate(
        run,
        prepare=_with_cache,
        finish=lambda both: {"rotated": torch.cat(both, 1)},
        note="cos and sin come from a table made beforehand; half of the heads as queries, half as keys",
    )


ADAPTERS: dict[str, Build] = {
    task: each_for("flashinfer", make)
    for task, make in {
        "gemm_swiglu": _gated("silu_and_mul"),
        "gemm_geglu": _gated("gelu_and_mul"),
        "gemm_geglu_tanh": _gated("gelu_tanh_and_mul"),
        "rms_swiglu": _rms_swiglu,
        "residual_rms_linear": _residual_rms_linear,
        "mlp_residual": _mlp,
        "residual_mlp_block": _mlp_block,
        "head_norm_rope": _head_norm_rope,
    }.items()
}
