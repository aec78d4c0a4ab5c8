"""Apple's cut-cross-entropy as a peer: the loss of a language-model head whose logits are never written.

Its two forward kernels, log-sum-exp and the target's logit, are called as its autograd function calls them. Only tasks that do
not return logits apply. Near misses, left out: the softcapped loss of the bank returns its logits, the smoothed one needs the
rows' sums, the backward needs the gradient of the logits, which the package never forms.
API read in cut-cross-entropy 25.1.1.
"""

from __future__ import annotations

from typing import Any

from coda.bench.adapters.shared import ignored_as_marker
from coda.bench.candidates import Build, Candidate, Inputs, Outputs, Setting, each_for, rest


def _lse_and_loss(x: Any, classifier: Any, target: Any, finish: Any, *numbers: float) -> tuple[Any, Any]:
    from cut_cross_entropy.cce_lse_forward import cce_lse_forward_kernel
    from cut_cross_entropy.indexed_dot import indexed_neg_dot_forward_kernel

    lse = cce_lse_forward_kernel(x, classifier, None, softcap=None, return_logit_avg=False)
    safe = target.clamp_min(0)
    minus = indexed_neg_dot_forward_kernel(x, classifier, safe, False, None, None, lse.dtype)
    return lse, finish(lse, minus, target, *numbers)


def _loss(lse: Any, minus: Any, target: Any) -> Any:
    return (lse + minus).masked_fill(target < 0, 0.0)


def _z_loss(lse: Any, minus: Any, target: Any, weight: float) -> Any:
    return (lse + minus + weight * lse * lse).masked_fill(target < 0, 0.0)


def _classifier(name: str) -> Any:
    def prepare(inputs: Inputs) -> Inputs:
        return {**ignored_as_marker(inputs), "classifier": inputs[name].mT.contiguous()}

    return prepare


def _cross_entropy_z(setting: Setting) -> Candidate:
    finish = rest(_z_loss)

    def run(i: Inputs) -> Outputs:
        lse, loss = _lse_and_loss(i["x"], i["classifier"], i["target"], finish, i["z_weight"])
        return {"loss": loss, "lse": lse}

    return Candidate(run, prepare=_classifier("w"), note="weights as (vocabulary, columns), as the package takes them")


def _lm_head_loss(setting: Setting) -> Candidate:
    import torch
    import torch.nn.functional as F  # noqa: N812

    finish = rest(_loss)
    norm = rest(lambda h, gamma, eps: F.rms_norm(h, (h.shape[1],), gamma, eps))

    def run(i: Inputs) -> Outputs:
        normed = norm(torch.addmm(i["residual"], i["y"], i["w_2"]), i["gamma"], i["eps"])
        lse, loss = _lse_and_loss(normed, i["classifier"], i["target"], finish)
        return {"loss": loss, "lse": lse}

    return Candidate(
        run,
        prepare=_classifier("w_head"),
        note="weights as (vocabulary, columns), as the package takes them; the first GEMM and the norm are PyTorch",
    )


ADAPTERS: dict[str, Build] = {
    "cross_entropy_z_loss": each_for("cut-cross-entropy", _cross_entropy_z),
    "lm_head_loss": each_for("cut-cross-entropy", _lm_head_loss),
}
