"""quack-kernels as a peer: its library of fused GEMM epilogues, each timed in five configurations.

    CONFIGURATIONS  tile, cluster and ping-pong; each is a candidate of its own, and the fastest is the peer
    Fused           calls an epilogue of `quack.epilogue.library` in one configuration, untuned, as its own functions do
    ADAPTERS        task id -> candidates

Finishing (sums of partials, log-sum-exp over tiles, `rms_final_reduce`) is the package's own and timed. Only functions that
the package ships count: an epilogue that we would write for its front end is no human peer. Near misses, left out: exact GEGLU
(its `geglu` is the tanh form), the softcapped and smoothed losses, sigmoid gate, layer scale, router, LayerNorm backward
(another convention of the statistics), fp8 stores (Blackwell only), a rotation per table column with a norm per head.
API read in quack-kernels 0.6.5 (Apache-2.0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from coda.bench.adapters.shared import gathered, head_of, ignored_as_marker, inside, loss_of
from coda.bench.candidates import Build, Candidate, Inputs, Outputs, Setting, rest, same

CONFIGURATIONS: tuple[tuple[int, int, int, int, bool], ...] = (
    (128, 256, 2, 1, False),
    (256, 128, 2, 1, False),
    (128, 192, 2, 1, True),
    (128, 192, 1, 2, True),
    (128, 128, 2, 1, True),
)
"""(tile_m, tile_n, cluster_m, cluster_n, ping-pong): one of them was the best of quack's own for every kernel of the suite
on an H200 at 512, 4096 and 8192 rows."""


def label(tile_m: int, tile_n: int, cluster_m: int, cluster_n: int, pingpong: bool) -> str:
    """Name of a configuration's candidate."""
    return f"quack[{tile_m}x{tile_n}{'pp' if pingpong else ''} c{cluster_m}{cluster_n}]"


@functools.lru_cache(maxsize=1)
def _configurations() -> tuple[tuple[str, dict[str, Any], Any], ...]:
    """Made once: the package keys its launch recipes by the identity of a configuration."""
    from quack.gemm_config import GemmConfig

    found = []
    for tile_m, tile_n, cluster_m, cluster_n, pingpong in CONFIGURATIONS:
        options = {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "cluster_m": cluster_m,
            "cluster_n": cluster_n,
            "pingpong": pingpong,
            "is_dynamic_persistent": False,  # the package's own choice on Hopper; saves a launch that clears a counter
        }
        found.append((label(tile_m, tile_n, cluster_m, cluster_n, pingpong), options, GemmConfig(**options)))
    return tuple(found)


class Fused:
    """The library's epilogues in one configuration."""

    def __init__(self, config: Any) -> None:
        from quack.epilogue import library

        self.library, self.config = library, config

    def __call__(self, epilogue: Any, a: Any, b: Any, c: Any = None, *, store_d: bool = True, **operands: Any) -> Any:
        """One fused GEMM; results by the epilogue's names, `D` the main one."""
        return epilogue(a, b, c, config=self.config, tuned=False, store_d=store_d, **operands)

    def activated(self, name: str, a: Any, b: Any, *, gated: bool, bias: Any = None, scale: Any = None) -> Any:
        """`D` = x and `mAuxOut` = activation(x) for x = (a @ b)·scale[i] or a @ b + bias[j]. `name` None: both are x."""
        flags = {"gated": gated, "has_c": False}
        if scale is not None:
            epilogue = self.library.norm_act_mod(name, has_rowvec=False, has_colvec=True, **flags)
            return self(epilogue, a, b, mColVecBroadcast=scale)
        if bias is not None:
            return self(
                self.library.linear_act_mod(name, has_rowvec=True, has_colvec=False, **flags),
                a,
                b,
                mRowVecBroadcast=bias,
            )
        return self(self.library.linear_act_mod(name, has_rowvec=False, has_colvec=False, **flags), a, b)

    def scaled(self, a: Any, b: Any, scale: Any) -> Any:
        """(a @ b)·scale[i], stored once."""
        epilogue = self.library.norm_act_mod(None, gated=False, has_c=False, has_rowvec=False, has_colvec=True)
        return self(epilogue, a, b, store_d=False, mColVecBroadcast=scale)["mAuxOut"]

    def residual_rms(self, a: Any, b: Any, residual: Any, gamma: Any, eps: float) -> tuple[Any, Any, Any]:
        """h, h·gamma, rstd: the epilogue of the package's `gemm_rms` and its one finishing kernel."""
        from quack.rms_final_reduce import rms_final_reduce

        epilogue = self.library.sq_reduce_mod(has_c=True, has_rowvec=True, has_aux=True)
        r = self(epilogue, a, b, residual, mRowVecBroadcast=gamma)
        return r["mAuxOut"], r["D"], rms_final_reduce(r["mColVecReduce"], 1.0 / b.shape[-1], eps)


Kernel = Callable[..., Outputs]
"""From `Fused`, inputs and, where there is one, what PyTorch does around the kernel."""


def _each(
    kernel: Kernel,
    *,
    around: Callable[..., Any] | None = None,
    prepare: Callable[[Inputs], Inputs] = same,
    note: str = "",
) -> Build:
    """A candidate per configuration. `around` is compiled once for all of them, and anew for each setting."""

    def make(setting: Setting) -> Mapping[str, Candidate]:
        more = () if around is None else (rest(around),)
        return {
            name: Candidate(_called(kernel, Fused(config), more), prepare=prepare, config=options, note=note)
            for name, options, config in _configurations()
        }

    return make


def _called(kernel: Kernel, fused: Fused, more: tuple[Callable[..., Any], ...]) -> Callable[[Inputs], Outputs]:
    return lambda inputs: kernel(fused, inputs, *more)


# forward: activations and norms ---------------------------------------------------------------------------------------


def _biased(name: str) -> Build:
    def kernel(q: Fused, i: Inputs) -> Outputs:
        r = q.activated(name, i["x"], i["w"], gated=False, bias=i["bias"])
        return {"z": r["D"], "h": r["mAuxOut"]}

    return _each(kernel)


def _gated(name: str) -> Build:
    def kernel(q: Fused, i: Inputs) -> Outputs:
        r = q.activated(name, i["x"], i["w"], gated=True)
        return {"z": r["D"], "h": r["mAuxOut"]}

    return _each(kernel)


def _rms_swiglu(q: Fused, i: Inputs) -> Outputs:
    r = q.activated("swiglu", i["q"], i["w"], gated=True, scale=i["rstd"])
    return {"z": r["D"], "h": r["mAuxOut"]}


def _rms_scale(q: Fused, i: Inputs) -> Outputs:
    return {"z": q.scaled(i["q"], i["w"], i["rstd"])}


def _layernorm_linear(q: Fused, i: Inputs) -> Outputs:
    r = q(q.library.ln_affine_epi, i["q"], i["w"], s=i["rstd"], t=i["shift"], wg=i["gamma_w"], wb=i["offset"])
    return {"z": r["D"]}


def _residual_rms(q: Fused, i: Inputs) -> Outputs:
    h, gained, rstd = q.residual_rms(i["y"], i["w_o"], i["residual"], i["gamma"], i["eps"])
    return {"h": h, "q": gained, "rstd": rstd}


def _moments(total: Any, squares: Any, columns: int, eps: float) -> tuple[Any, Any]:
    import torch

    mean = total / columns
    rstd = torch.rsqrt(squares / columns - mean * mean + eps)
    return rstd, rstd * mean


def _residual_layernorm(q: Fused, i: Inputs, finish: Callable[..., Any]) -> Outputs:
    r = q(q.library.ln_partial_epi, i["y"], i["w_o"], i["residual"], bias=i["no_bias"], weight=i["gamma"])
    rstd, shift = finish(r["hsum"], r["sqsum"], i["w_o"].shape[-1], i["eps"])
    return {"h": r["resid_out"], "q": r["D"], "rstd": rstd, "shift": shift}


def _zero_bias(inputs: Inputs) -> Inputs:
    return {**inputs, "no_bias": inputs["gamma"].new_zeros(inputs["gamma"].shape)}


# forward: rotations ---------------------------------------------------------------------------------------------------


def _rope(q: Fused, i: Inputs) -> Outputs:
    return {"rotated": q(q.library.rope_epi, i["x"], i["w"], table=i["cos_sin"])["D"]}


def _scale_rows(z: Any, rstd: Any) -> Any:
    return (z * rstd[:, None]).to(z.dtype)


def _rms_rope(q: Fused, i: Inputs, scale: Callable[..., Any]) -> Outputs:
    return {"rotated": scale(q(q.library.rope_epi, i["q"], i["w"], table=i["cos_sin"])["D"], i["rstd"])}


def _positions(inputs: Inputs) -> Inputs:
    from quack.epilogue.rotary import make_interleaved_inv_freq

    table = make_interleaved_inv_freq(inputs["frequency"], inputs["w"].shape[-1])
    return {**inputs, "position": inputs["position"].float(), "table": table.contiguous()}


def _rope_positions(q: Fused, i: Inputs) -> Outputs:
    from quack.epilogue.rotary import rope_posfreq_epi

    return {"rotated": q(rope_posfreq_epi, i["x"], i["w"], pos=i["position"], freq=i["table"])["D"]}


def _head_table(position: Any, frequency: Any, like: Any) -> Any:
    import torch

    angle = position[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1).to(like.dtype)


def _repeated_gain(inputs: Inputs) -> Inputs:
    return {**inputs, "gain": inputs["gamma"].repeat(inputs["w"].shape[-1] // head_of(inputs))}


def _head_norm_rope(q: Fused, i: Inputs, table: Callable[..., Any]) -> Outputs:
    cs = table(i["position"], i["frequency"], i["x"])
    return {"rotated": q(q.library.qk_rope_epi, i["x"], i["w"], cs=cs, qk=head_of(i), w=i["gain"])["D"]}


# forward: losses ------------------------------------------------------------------------------------------------------


def _short_targets(inputs: Inputs) -> Inputs:
    import torch

    return {**inputs, "target": inputs["target"].to(torch.int32)}


def _lse_target(q: Fused, x: Any, w: Any, target: Any, *, logits: bool) -> tuple[Any, Any, Any]:
    """Logits or None, log-sum-exp, and the target's logit, 0 for targets outside: those the kernel does not write."""
    import torch

    picked = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    r = q(q.library.lse_target_epi, x, w, store_d=logits, target=target, target_logit=picked)
    return r.get("D"), r["lse"], picked


def _cross_entropy(q: Fused, i: Inputs) -> Outputs:
    logits, lse, picked = _lse_target(q, i["x"], i["w"], i["target"], logits=True)
    return {"logits": logits, "lse": lse, "target_logit": picked}


def _rms_cross_entropy(q: Fused, i: Inputs, gather: Callable[..., Any]) -> Outputs:
    r = q(q.library.rstd_lse_epi, i["q"], i["w"], rstd=i["rstd"])
    return {"logits": r["D"], "lse": r["lse"], "target_logit": gather(r["D"], i["target"])}


def _z_loss(lse: Any, picked: Any, target: Any, columns: int, weight: float) -> Any:
    return (lse - picked + weight * lse * lse).masked_fill(~inside(target, columns), 0.0)


def _cross_entropy_z(q: Fused, i: Inputs, finish: Callable[..., Any]) -> Outputs:
    _, lse, picked = _lse_target(q, i["x"], i["w"], i["target"], logits=False)
    return {"loss": finish(lse, picked, i["target"], i["w"].shape[-1], i["z_weight"]), "lse": lse}


def _loss_and_gradient(q: Fused, i: Inputs) -> Outputs:
    from quack.cross_entropy import cross_entropy_bwd, cross_entropy_fwd

    logits = i["x"] @ i["w"]
    loss, lse = cross_entropy_fwd(logits, i["target"], return_lse=True)
    return {
        "loss": loss,
        "dlogits": cross_entropy_bwd(logits, i["target"], i["dloss"], lse, inplace_backward=True),
    }


def _once(kernel: Kernel, *, prepare: Callable[[Inputs], Inputs], note: str) -> Build:
    """Kernels of the package that are no fused GEMM: there is nothing to configure."""

    def make(setting: Setting) -> Mapping[str, Candidate]:
        return {"quack": Candidate(functools.partial(kernel, Fused(None)), prepare=prepare, note=note)}

    return make


# backward -------------------------------------------------------------------------------------------------------------


def _column_sum(dz: Any) -> Any:
    return dz.float().sum(0)


def _activation_backward(name: str) -> Build:
    def kernel(q: Fused, i: Inputs, column_sum: Callable[..., Any]) -> Outputs:
        r = q(q.library.dact_mod(name), i["dy"], i["w2_t"], i["z"])
        return {"dz": r["D"], "h": r["mAuxOut"], "dbias": column_sum(r["D"])}

    return _each(kernel, around=_column_sum, note="the bias gradient is a column sum in PyTorch, of the stored dz")


def _gelu_tanh_backward(q: Fused, i: Inputs) -> Outputs:
    r = q(q.library.dgelu_dbias_mod, i["dy"], i["w2_t"], i["z"])
    return {"dz": r["D"], "h": r["postact"], "dbias": r["dbias"]}


def _swiglu_backward(q: Fused, i: Inputs) -> Outputs:
    r = q(q.library.dswiglu_dpreact_mod, i["dy"], i["w2_t"], i["z"])
    return {"dz": r["D"], "h": r["postact"], "zdz": r["dsum"]}


def _gated_backward(name: str) -> Build:
    def kernel(q: Fused, i: Inputs) -> Outputs:
        r = q(q.library.dgated_rstd_preact_mod(name), i["dy"], i["w2_t"], i["z"], rstd=i["one"])
        return {"dz": r["D"], "h": r["postact"], "zdz": r["dsum"]}

    def prepare(inputs: Inputs) -> Inputs:
        import torch

        rows = inputs["dy"].shape[0]
        return {**inputs, "one": torch.ones(rows, dtype=torch.float32, device=inputs["dy"].device)}

    return _each(kernel, prepare=prepare, note="the epilogue with a deferred row scale, which is 1 here")


def _scaled_upstream(inputs: Inputs) -> Inputs:
    return {**inputs, "dz": (inputs["dz"].float() * inputs["rstd"][:, None]).to(inputs["dz"].dtype)}


def _operand_and_correction(h: Any, gamma: Any, rstd: Any, s: Any) -> tuple[Any, Any]:
    return (h.float() * rstd[:, None] * gamma.float()).to(h.dtype), -s * rstd * rstd


def _rms_backward(q: Fused, i: Inputs, around: Callable[..., Any]) -> Outputs:
    hn, corr = around(i["h"], i["gamma"], i["rstd"], i["s"])
    r = q(q.library.rms_bwd_apply_epi, i["dz"], i["w1_t"], i["dres"], y=i["h"], w=i["gamma"], corr=corr)
    return {"dh": r["D"], "hn": hn, "dgamma": r["dw"]}


# plans ----------------------------------------------------------------------------------------------------------------


def _residual_rms_linear(q: Fused, i: Inputs) -> Outputs:
    h, gained, rstd = q.residual_rms(i["y"], i["w_o"], i["residual"], i["gamma"], i["eps"])
    return {"h": h, "z": q.scaled(gained, i["w_1"], rstd)}


def _mlp(q: Fused, i: Inputs) -> Outputs:
    h = q(q.library.swiglu_mod, i["x"], i["w_1"], store_d=False)["postact"]
    return {"stream": q(q.library.residual_epi, h, i["w_2"], res=i["residual"])["D"]}


def _mlp_block(q: Fused, i: Inputs) -> Outputs:
    h, gained, rstd = q.residual_rms(i["y"], i["w_o"], i["residual"], i["gamma"], i["eps"])
    a = q(q.library.rstd_gated_mod("swiglu"), gained, i["w_1"], store_d=False, rstd=rstd)["postact"]
    return {"h": h, "stream": q(q.library.residual_epi, a, i["w_2"], res=h)["D"]}


def _attention_out_qkv(q: Fused, i: Inputs, scale: Callable[..., Any]) -> Outputs:
    h, gained, rstd = q.residual_rms(i["y"], i["w_o"], i["residual"], i["gamma"], i["eps"])
    return {"h": h, "qkv": scale(q(q.library.rope_epi, gained, i["w_qkv"], table=i["cos_sin"])["D"], rstd)}


def _lm_head_loss(q: Fused, i: Inputs, finish: Callable[..., Any]) -> Outputs:
    _, gained, rstd = q.residual_rms(i["y"], i["w_2"], i["residual"], i["gamma"], i["eps"])
    r = q(q.library.rstd_lse_epi, gained, i["w_head"], rstd=rstd)
    return {"loss": finish(r["D"], r["lse"], i["target"]), "lse": r["lse"]}


INT32 = "targets as int32, which the kernel reads directly"
ONE_FOR_ALL = "one configuration for all GEMMs of the plan"
ROTATION = "the library has no rotation by a table with a row scale: PyTorch scales the rotated matrix"

ADAPTERS: dict[str, Build] = {
    "bias_gelu": _biased("gelu_erf"),
    "bias_gelu_tanh": _biased("gelu_tanh_approx"),
    "bias_silu": _biased("silu"),
    "bias_squared_relu": _biased("relu_sq"),
    "gemm_swiglu": _gated("swiglu"),
    "gemm_geglu_tanh": _gated("geglu"),
    "gemm_reglu": _gated("reglu"),
    "rms_swiglu": _each(_rms_swiglu),
    "rms_scale": _each(_rms_scale),
    "layernorm_linear": _each(_layernorm_linear),
    "residual_rms": _each(_residual_rms),
    "residual_layernorm": _each(_residual_layernorm, around=_moments, prepare=_zero_bias, note="with a bias of zeros"),
    "gemm_rope": _each(_rope),
    "rms_rope": _each(_rms_rope, around=_scale_rows, note=ROTATION),
    "gemm_rope_positions": _each(_rope_positions, prepare=_positions, note="its frequency table is made beforehand"),
    "head_norm_rope": _each(
        _head_norm_rope,
        around=_head_table,
        prepare=_repeated_gain,
        note="PyTorch makes the table of the rows' angles, timed",
    ),
    "gemm_cross_entropy": _each(_cross_entropy, prepare=_short_targets, note=INT32),
    "rms_cross_entropy": _each(
        _rms_cross_entropy, around=gathered, note="the target's logit is gathered in PyTorch, as the library says"
    ),
    "cross_entropy_z_loss": _each(_cross_entropy_z, around=_z_loss, prepare=_short_targets, note=INT32),
    "cross_entropy_loss_and_gradient": _once(
        _loss_and_gradient, prepare=ignored_as_marker, note="a cuBLAS GEMM and the package's cross-entropy kernels"
    ),
    "gelu_backward": _activation_backward("gelu_erf"),
    "silu_backward": _activation_backward("silu"),
    "squared_relu_backward": _activation_backward("relu_sq"),
    "gelu_tanh_backward": _each(_gelu_tanh_backward),
    "swiglu_backward": _each(_swiglu_backward),
    "geglu_tanh_backward": _gated_backward("geglu"),
    "reglu_backward": _gated_backward("reglu"),
    "rms_backward": _each(
        _rms_backward,
        around=_operand_and_correction,
        prepare=_scaled_upstream,
        note="dz arrives with the row scale folded in, as the package's own backward epilogues leave it; hn is PyTorch",
    ),
    "residual_rms_linear": _each(_residual_rms_linear, note=ONE_FOR_ALL),
    "mlp_residual": _each(_mlp, note=ONE_FOR_ALL),
    "residual_mlp_block": _each(_mlp_block, note=ONE_FOR_ALL),
    "attention_out_qkv": _each(_attention_out_qkv, around=_scale_rows, note=f"{ONE_FOR_ALL}; {ROTATION}"),
    "lm_head_loss": _each(_lm_head_loss, around=loss_of, note=f"{ONE_FOR_ALL}; its log-sum-exp epilogue stores logits"),
}
