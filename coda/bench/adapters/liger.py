"""Liger as a peer: its Triton kernels behind a cuBLAS GEMM, called below autograd, as its autograd functions call them.

The package fuses no GEMM: each candidate is the product in PyTorch and one kernel of the package for what follows. Gate and up
are halves, as its models have them. Near misses, left out: losses that must return their log-sum-exp, logits or smoothing
terms (its kernel returns the loss alone), the norms' backward (it recomputes the row statistics that the tasks give), exact
GEGLU (its kernel is the tanh form), rotations by a table of every column. API read in liger-kernel 0.8.5 (BSD-2-Clause).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coda.bench.adapters.shared import head_of, ignored_as_marker, in_halves, interleaved, joined
from coda.bench.candidates import Build, Candidate, Inputs, Outputs, Setting, each_for, rest, same

HALVES = "gate and up as contiguous halves in weights, saved matrices and results, as the package's models have them"


def _candidate(
    run: Callable[[Inputs], Any],
    *,
    split: tuple[str, ...] = (),
    join: tuple[str, ...] = (),
    prepare: Callable[[Inputs], Inputs] = same,
    note: str = "",
) -> Candidate:
    return Candidate(
        run,
        prepare=(lambda inputs: in_halves(inputs, split)) if split else prepare,
        finish=(lambda outputs: interleaved(outputs, join)) if join else same,
        note=note,
    )


def _swiglu(setting: Setting) -> Candidate:
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward

    def run(i: Inputs) -> Outputs:
        z, h = swiglu_fused_gate_up_forward(i["x"] @ i["w"])
        return {"z": z, "h": h}

    return _candidate(run, split=("w",), join=("z",), note=HALVES)


def _rms_swiglu(setting: Setting) -> Candidate:
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward

    scale = rest(lambda z, rstd: (z * rstd[:, None]).to(z.dtype))

    def run(i: Inputs) -> Outputs:
        z, h = swiglu_fused_gate_up_forward(scale(i["q"] @ i["w"], i["rstd"]))
        return {"z": z, "h": h}

    return _candidate(run, split=("w",), join=("z",), note=f"{HALVES}; the row scale is PyTorch")


def _geglu(setting: Setting) -> Candidate:
    from liger_kernel.ops.geglu import geglu_forward

    def run(i: Inputs) -> Outputs:
        gate, up = i["x"] @ i["w_gate"], i["x"] @ i["w_up"]
        return {"gate": gate, "up": up, "h": geglu_forward(gate, up)[2]}

    def prepare(inputs: Inputs) -> Inputs:
        gate, up = in_halves(inputs, ("w",))["w"].chunk(2, 1)
        return {**inputs, "w_gate": gate.contiguous(), "w_up": up.contiguous()}

    def finish(outputs: Outputs) -> Outputs:
        return {"z": joined(outputs["gate"], outputs["up"]), "h": outputs["h"]}

    return Candidate(run, prepare=prepare, finish=finish, note="two GEMMs, as the package's MLP has them")


def _bias_squared_relu(setting: Setting) -> Candidate:
    import torch
    from liger_kernel.ops.relu_squared import relu_squared_forward

    def run(i: Inputs) -> Outputs:
        z = torch.addmm(i["bias"], i["x"], i["w"])
        return {"z": z, "h": relu_squared_forward(z)}

    return _candidate(run)


# backward -------------------------------------------------------------------------------------------------------------


def _row_products(z: Any, dz: Any) -> Any:
    return (z.float() * dz.float()).sum(1)


def _swiglu_backward(setting: Setting) -> Candidate:
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward, swiglu_fused_gate_up_forward

    products = rest(_row_products)

    def run(i: Inputs) -> Outputs:
        z = i["z"]
        dz = swiglu_fused_gate_up_backward(z, i["dy"] @ i["w2_t"])
        return {"dz": dz, "h": swiglu_fused_gate_up_forward(z)[1], "zdz": products(z, dz)}

    return _candidate(run, split=("z",), join=("dz",), note=f"{HALVES}; the row statistic is PyTorch, of the stored dz")


def _squared_relu_backward(setting: Setting) -> Candidate:
    from liger_kernel.ops.relu_squared import relu_squared_backward, relu_squared_forward

    total = rest(lambda dz: dz.float().sum(0))

    def run(i: Inputs) -> Outputs:
        dz = relu_squared_backward(i["z"], i["dy"] @ i["w2_t"])
        return {"dz": dz, "h": relu_squared_forward(i["z"]), "dbias": total(dz)}

    return _candidate(run, note="the bias gradient is a column sum in PyTorch, of the stored dz")


def _loss_and_gradient(setting: Setting) -> Candidate:
    from liger_kernel.ops.cross_entropy import cross_entropy_backward, cross_entropy_forward

    def run(i: Inputs) -> Outputs:
        logits = (i["x"] @ i["w"]).requires_grad_()  # the kernel writes gradients only for logits that want them
        loss, *_, gradient = cross_entropy_forward(
            logits, i["target"], None, -100, 0.0, 0.0, "none", None, return_z_loss=False
        )
        return {"loss": loss.float(), "dlogits": cross_entropy_backward(gradient.detach(), i["dloss"].to(logits.dtype))}

    return _candidate(
        run, prepare=ignored_as_marker, note="loss and gradient in one kernel over the logits, which it overwrites"
    )


# norms and plans ------------------------------------------------------------------------------------------------------


def _norm(h: Any, gamma: Any, eps: float) -> tuple[Any, Any]:
    """The normalised rows and their 1 / RMS."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    normed, _, rstd, *_ = rms_norm_forward(h, gamma, eps, 0.0, "llama", None)
    return normed, rstd


def _added_norm(i: Inputs, product: Any) -> tuple[Any, Any]:
    """The normalised sum with the residual, and the sum: one kernel."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    normed, h, *_ = fused_add_rms_norm_forward(product, i["residual"], i["gamma"], i["eps"], 0.0, "llama")
    return normed, h


def _residual_rms_linear(setting: Setting) -> Candidate:
    def run(i: Inputs) -> Outputs:
        normed, h = _added_norm(i, i["y"] @ i["w_o"])
        return {"h": h, "z": normed @ i["w_1"]}

    return _candidate(run)


def _mlp(setting: Setting) -> Candidate:
    import torch
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward

    def run(i: Inputs) -> Outputs:
        h = swiglu_fused_gate_up_forward(i["x"] @ i["w_1"])[1]
        return {"stream": torch.addmm(i["residual"], h, i["w_2"])}

    return _candidate(run, split=("w_1",), note=HALVES)


def _mlp_block(setting: Setting) -> Candidate:
    import torch
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_forward

    def run(i: Inputs) -> Outputs:
        normed, h = _added_norm(i, i["y"] @ i["w_o"])
        a = swiglu_fused_gate_up_forward(normed @ i["w_1"])[1]
        return {"h": h, "stream": torch.addmm(h, a, i["w_2"])}

    return _candidate(run, split=("w_1",), note=HALVES)


def _head_norm_rope(setting: Setting) -> Candidate:
    import torch
    from liger_kernel.ops.rope import rope_forward

    def angles(position: Any, frequency: Any, like: Any) -> tuple[Any, Any]:
        angle = position[:, None] * frequency
        double = torch.cat([angle, angle], -1)[None]
        return double.cos().to(like.dtype), double.sin().to(like.dtype)

    tables = rest(angles)

    def run(i: Inputs) -> Any:
        head = head_of(i)
        z = (i["x"] @ i["w"]).view(-1, head)
        normed, _ = _norm(z, i["gamma"], i["eps"])
        heads = normed.view(1, i["x"].shape[0], -1, head).transpose(1, 2)
        query, key = heads.chunk(2, 1)
        cos, sin = tables(i["position"], i["frequency"], i["x"])
        return rope_forward(query, key, cos, sin)[:2]

    def prepare(inputs: Inputs) -> Inputs:
        from coda.layout import rope_halves

        head = head_of(inputs)
        order = rope_halves(torch.arange(head, device=inputs["gamma"].device), head)
        return {
            **inputs,
            "w": rope_halves(inputs["w"], head, 1).contiguous(),
            "gamma": inputs["gamma"][order].contiguous(),
        }

    def finish(both: Any) -> Mapping[str, Any]:
        from coda.layout import rope_pairs

        heads = torch.cat(both, 1).transpose(1, 2)
        return {"rotated": rope_pairs(heads.flatten(2)[0], heads.shape[-1], 1)}

    return Candidate(
        run,
        prepare=prepare,
        finish=finish,
        note="rotate-half order in weights and result; half of the heads as queries, half as keys",
    )


ADAPTERS: dict[str, Build] = {
    task: each_for("liger", make)
    for task, make in {
        "gemm_swiglu": _swiglu,
        "rms_swiglu": _rms_swiglu,
        "gemm_geglu_tanh": _geglu,
        "bias_squared_relu": _bias_squared_relu,
        "swiglu_backward": _swiglu_backward,
        "squared_relu_backward": _squared_relu_backward,
        "cross_entropy_loss_and_gradient": _loss_and_gradient,
        "residual_rms_linear": _residual_rms_linear,
        "mlp_residual": _mlp,
        "residual_mlp_block": _mlp_block,
        "head_norm_rope": _head_norm_rope,
    }.items()
}
