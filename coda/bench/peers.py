"""What people use today, by name: what a kernel is compared with.

    Setting     what a peer is built for: the task's baseline, inputs, GEMM sizes
    Peer        name, who wrote it, whether it is installed and applies, and how to build the call
    PEERS       all of them, in the order of tables
    lineup      every peer for a task with "ready", "not installed" or "not applicable" and the reason: never a silent skip

`eager`, `compile` and `max-autotune` run the task's baseline; `cublas` is the plain GEMM alone, the ceiling of what a fused
kernel can reach and not a competitor. Packages come through adapters, one per (package, task), in `ADAPTERS`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

Outputs = Mapping[str, Any]
Build = Callable[["Setting"], Callable[[Mapping[str, Any]], Outputs]]
State = Literal["ready", "not installed", "not applicable"]


@dataclass(frozen=True)
class Setting:
    """What a peer is built for."""

    task_id: str
    baseline: Callable[..., Any]
    """Takes every input by name, returns the outputs by name."""
    inputs: Mapping[str, Any]
    """One set, for sizes and dtypes; calls get sets of their own."""
    gemms: tuple[tuple[int, int, int], ...] = ()
    """(M, N, K) of every GEMM."""
    a_b: tuple[str, str] | None = None
    """Names of the inputs that are the one GEMM's."""


@dataclass(frozen=True)
class Peer:
    """One way to compute a task that is not ours."""

    name: str
    author: Literal["tool", "human"]
    """`tool`: PyTorch's compiler or library; `human`: kernels that people wrote in a named package."""
    package: str
    """Import name."""
    distribution: str
    competes: bool
    """False for a ceiling: it does less than the task."""

    def version(self) -> str | None:
        """Of the installed distribution."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None


@dataclass(frozen=True)
class Entry:
    """A peer on a task."""

    peer: Peer
    state: State
    reason: str = ""


PEERS: dict[str, Peer] = {
    p.name: p
    for p in (
        Peer("eager", "tool", "torch", "torch", True),
        Peer("compile", "tool", "torch", "torch", True),
        Peer("max-autotune", "tool", "torch", "torch", True),
        Peer("cublas", "tool", "torch", "torch", False),
        Peer("quack", "human", "quack", "quack-kernels", True),
        Peer("liger", "human", "liger_kernel", "liger-kernel", True),
        Peer("flashinfer", "human", "flashinfer", "flashinfer-python", True),
        Peer("cut-cross-entropy", "human", "cut_cross_entropy", "cut-cross-entropy", True),
    )
}

ALWAYS = ("eager", "compile", "max-autotune", "cublas")
"""Apply to every task."""

ADAPTERS: dict[tuple[str, str], Build] = {}
"""(peer, task id) -> how to call the package for it."""


def lineup(task_id: str, named: Sequence[str] = (), *, gemms: int = 1) -> list[Entry]:
    """Every peer that applies always or that the task names, with its state; unknown names are entries too."""
    found = []
    for name in dict.fromkeys((*ALWAYS, *named)):
        peer = PEERS.get(name) or Peer(name, "human", name, name, True)
        found.append(_entry(peer, task_id, gemms))
    return found


def _entry(peer: Peer, task_id: str, gemms: int) -> Entry:
    if importlib.util.find_spec(peer.package) is None:
        return Entry(peer, "not installed", f"pip install {peer.distribution}")
    if peer.name == "cublas" and gemms == 0:
        return Entry(peer, "not applicable", "the task has no GEMM")
    if peer.name not in ALWAYS and (peer.name, task_id) not in ADAPTERS:
        return Entry(peer, "not applicable", f"there is no adapter of {peer.distribution} for {task_id}")
    return Entry(peer, "ready")


def build(name: str, setting: Setting) -> Callable[[Mapping[str, Any]], Outputs]:
    """The call of a ready peer: inputs by name in, outputs by name out (`cublas`: the products)."""
    if name in ADAPTERS_ALWAYS:
        return ADAPTERS_ALWAYS[name](setting)
    return ADAPTERS[name, setting.task_id](setting)


def _eager(setting: Setting) -> Callable[[Mapping[str, Any]], Outputs]:
    return lambda inputs: setting.baseline(**inputs)


def _compiled(mode: str | None) -> Build:
    def make(setting: Setting) -> Callable[[Mapping[str, Any]], Outputs]:
        import torch

        compiled = torch.compile(setting.baseline, dynamic=False, fullgraph=True, mode=mode)
        return lambda inputs: compiled(**inputs)

    return make


def _cublas(setting: Setting) -> Callable[[Mapping[str, Any]], Outputs]:
    """The GEMMs alone: the task's own matrices where they are known, else random ones of the same sizes."""
    import torch

    if setting.a_b is not None:
        a, b = setting.a_b
        return lambda inputs: {"product": inputs[a] @ inputs[b]}
    like = next(x for x in setting.inputs.values() if isinstance(x, torch.Tensor) and x.is_floating_point())
    pairs = [
        (
            torch.randn(m, k, device=like.device).to(like.dtype),
            (torch.randn(k, n, device=like.device) / max(k, 1) ** 0.5).to(like.dtype),
        )
        for m, n, k in setting.gemms
    ]
    return lambda inputs: {f"product{i}": a @ b for i, (a, b) in enumerate(pairs)}


ADAPTERS_ALWAYS: dict[str, Build] = {
    "eager": _eager,
    "compile": _compiled(None),
    "max-autotune": _compiled("max-autotune-no-cudagraphs"),
    "cublas": _cublas,
}
