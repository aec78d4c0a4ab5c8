"""What people use today, by name: what a kernel is compared with.

    Peer        name, who wrote it, which package
    PEERS       all of them, in the order of tables
    ADAPTERS    (peer, task id) -> candidates, from `adapters/`
    lineup      every peer for a task with "ready", "not installed" or "not applicable" and the reason: never a silent skip
    build       the candidates of a peer

`eager`, `compile` and `max-autotune` run the task's baseline; `cublas` is the plain GEMM alone, the ceiling of what a fused
kernel can reach and not a competitor. A peer may have several candidates (quack-kernels: one per configuration): each is
timed, and the fastest stands for the peer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from coda.bench.adapters import cut_cross_entropy, flashinfer, liger, pytorch, quack
from coda.bench.candidates import Build, Candidate, Outputs, Setting

State = Literal["ready", "not installed", "not applicable"]


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
        Peer("compile-halves", "tool", "torch", "torch", True),
        Peer("max-autotune", "tool", "torch", "torch", True),
        Peer("cublas", "tool", "torch", "torch", False),
        Peer("quack", "human", "quack", "quack-kernels", True),
        Peer("liger", "human", "liger_kernel", "liger-kernel", True),
        Peer("flashinfer", "human", "flashinfer", "flashinfer-python", True),
        Peer("cut-cross-entropy", "human", "cut_cross_entropy", "cut-cross-entropy", True),
    )
}

COMPILED = ("compile", "compile-halves", "max-autotune")
"""torch.compile in its modes and on either layout: the best of them is what it can do."""

ALWAYS = ("eager", "compile", "max-autotune", "cublas")
"""Apply to every task."""

ADAPTERS: dict[tuple[str, str], Build] = {
    (peer, task_id): build
    for peer, adapters in (
        ("compile-halves", pytorch.ADAPTERS),
        ("quack", quack.ADAPTERS),
        ("liger", liger.ADAPTERS),
        ("flashinfer", flashinfer.ADAPTERS),
        ("cut-cross-entropy", cut_cross_entropy.ADAPTERS),
    )
    for task_id, build in adapters.items()
}
"""(peer, task id) -> how to call the package for it."""


def lineup(task_id: str, named: Sequence[str] = (), *, gemms: int = 1) -> list[Entry]:
    """Every peer with its state on a task; names that are no peer are entries too."""
    found = []
    for name in dict.fromkeys((*PEERS, *named)):
        peer = PEERS.get(name) or Peer(name, "human", name, name, True)
        found.append(_entry(peer, task_id, gemms))
    return found


def _entry(peer: Peer, task_id: str, gemms: int) -> Entry:
    if peer.name not in ALWAYS and (peer.name, task_id) not in ADAPTERS:
        return Entry(peer, "not applicable", f"{peer.distribution} has no kernel for the mathematics of {task_id}")
    if importlib.util.find_spec(peer.package) is None:
        return Entry(peer, "not installed", f"pip install {peer.distribution}")
    if peer.name == "cublas" and gemms == 0:
        return Entry(peer, "not applicable", "the task has no GEMM")
    return Entry(peer, "ready")


def build(name: str, setting: Setting) -> Mapping[str, Candidate]:
    """The candidates of a ready peer by the names under which they are timed. Raises what its package raises."""
    make = pytorch.ALWAYS.get(name) or ADAPTERS[name, setting.task_id]
    return make(setting)


__all__ = [
    "ADAPTERS",
    "ALWAYS",
    "PEERS",
    "Candidate",
    "Entry",
    "Outputs",
    "Peer",
    "Setting",
    "State",
    "build",
    "lineup",
]
