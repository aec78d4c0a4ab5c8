"""What a peer is made of: the setting it is built for, and the ways in which it can compute a task.

    Setting    the task's baseline, inputs, GEMM sizes
    Candidate  one way: `prepare` once per input set, `run` in the timed region, `finish` before its outputs are checked
    Build      from a setting to the candidates of a peer, by the names under which they are timed
    each_for   the one candidate of a peer that has no choices
    compiled   torch.compile that no other setting slows down
    rest       what a package's kernel leaves over, compiled: an unfused peer must not lose by our laziness

What may happen outside the timed region is narrow. `prepare` brings weights, tables and constants into the package's own
layout, and data only where the package's neighbouring kernels produce that layout themselves (gate and up in halves); then
`note` says so. `finish` renames and re-orders what was written, so that it can be compared; it computes nothing.
Neighbours: `peers.py` knows which peers there are, `adapters/` has their candidates.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Inputs = Mapping[str, Any]
Outputs = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """What a peer is built for."""

    task_id: str
    baseline: Callable[..., Any]
    """Takes every input by name, returns the outputs by name."""
    inputs: Inputs
    """One set, for sizes and dtypes; calls get sets of their own."""
    gemms: tuple[tuple[int, int, int], ...] = ()
    """(M, N, K) of every GEMM."""
    a_b: tuple[str, str] | None = None
    """Names of the inputs that are the one GEMM's."""


def same(inputs: Any) -> Any:
    """Nothing to do."""
    return inputs


@dataclass(frozen=True)
class Candidate:
    """One way of a peer to compute the task."""

    run: Callable[[Inputs], Any]
    """Timed: prepared inputs in, whatever the package writes out."""
    prepare: Callable[[Inputs], Inputs] = same
    """Not timed, once per input set."""
    finish: Callable[[Any], Outputs] = same
    """Not timed: what `run` gave as the task's outputs."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What was chosen of the package's options."""
    note: str = ""
    """What a reader must know: layouts, what PyTorch does around the package's kernel."""

    def __call__(self, inputs: Inputs) -> Outputs:
        """The task's outputs from the task's inputs, untimed."""
        return self.finish(self.run(self.prepare(inputs)))


Build = Callable[[Setting], Mapping[str, Candidate]]
"""Raises whatever the package raises; importing it happens here, not before."""


def each_for(name: str, make: Callable[[Setting], Candidate]) -> Build:
    """A peer with one candidate, named after it."""
    return lambda setting: {name: make(setting)}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """torch.compile for the shapes that it meets, of a copy: Dynamo counts compilations by code object, and after the eighth
    size of a process would run the function as it is, or raise."""
    import torch

    return torch.compile(_copied(function), dynamic=False, **options)


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace()
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def rest(function: Callable[..., Any]) -> Callable[..., Any]:
    """Plain PyTorch around a package's kernel, compiled."""
    return compiled(function)
