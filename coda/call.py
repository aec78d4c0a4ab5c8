"""One call of a program: every check the first time, almost nothing from then on.

    run     bind → choose (backend, schedule) → compile (once) → launch
    warm    the same for arguments like those of an earlier call: no check, no choice, no key but the arguments' own

Two calls are alike when each tensor has the same dtype, shape, strides, device and 16-byte alignment, and no gradient
would be dropped: everything that a check, a choice or a compiled kernel depends on. Values never matter.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coda import env
from coda.backends.registry import Artifact, Backend
from coda.binding import Bound, bind
from coda.problem import Schedule
from coda.program import EpilogueProgram
from coda.tune import choose

MAX_KEPT = 4096
"""Compiled artifacts, and kinds of call, that are remembered."""

_artifacts: collections.OrderedDict[Any, Artifact] = collections.OrderedDict()


def run(
    program: EpilogueProgram,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None = None,
    config: Schedule | None = None,
    out: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Run one program; its outputs by name. Raises a `CallError` or a `BackendError`."""
    return _first(program, args, operands, backend, config, out)[2]


def _first(
    program: EpilogueProgram,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None,
    config: Schedule | None,
    out: Mapping[str, Any] | None,
) -> tuple[Backend, Artifact, dict[str, torch.Tensor]]:
    """The long way: what ran, and its outputs."""
    bound = bind(program, args, operands, out)
    chosen, artifact = _compiled(program, bound, backend, config)
    chosen.launch(artifact, bound.tensors)
    return chosen, artifact, {name: bound.tensors[f"out.{name}"] for name in bound.outputs}


def _compiled(
    program: EpilogueProgram, bound: Bound, backend: str | None, config: Schedule | None
) -> tuple[Backend, Artifact]:
    chosen, schedule = choose(program, bound.problem, backend, config)
    key = (chosen.name, program.digest, bound.problem, schedule)
    artifact = _artifacts.get(key)
    if artifact is None:
        artifact = _artifacts[key] = chosen.compile(program, bound.problem, schedule, None)
        _trim(_artifacts)
    return chosen, artifact


def _trim(kept: collections.OrderedDict[Any, Any]) -> None:
    if len(kept) > MAX_KEPT:
        kept.popitem(last=False)


@dataclass(frozen=True)
class _Ready:
    """What a kind of call needs once everything has been checked and compiled."""

    backend: Backend
    artifact: Artifact
    places: tuple[str, ...]
    """Names of the positional arguments."""
    defaults: Mapping[str, Any]
    outputs: tuple[tuple[str, tuple[int, ...], torch.dtype, torch.device], ...]

    def launch(self, args: Sequence[Any], operands: Mapping[str, Any]) -> list[torch.Tensor]:
        tensors = {**self.defaults, **operands}
        tensors.update(zip(self.places, args, strict=False))
        results = []
        for name, shape, dtype, device in self.outputs:
            result = tensors[name] = torch.empty(shape, dtype=dtype, device=device)
            results.append(result)
        self.backend.launch(self.artifact, tensors)
        return results


class Calls:
    """The kinds of call that one kernel has seen."""

    def __init__(self) -> None:
        self._ready: collections.OrderedDict[Any, _Ready] = collections.OrderedDict()

    def key(self, args: Sequence[Any], operands: Mapping[str, Any], backend: str | None, config: Any) -> Any:
        """What decides everything about a call but its values; None where only the long way will do."""
        parts: list[Any] = [backend or env.backend(), config, torch.is_grad_enabled()]
        for name, x in (*enumerate(args), *operands.items()):
            if isinstance(x, torch.Tensor):
                parts.append(
                    (name, x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15, x.requires_grad)
                    if type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
                    else None
                )
            else:
                parts.append((name, type(x)))
            if parts[-1] is None:
                return None
        return tuple(parts)

    def warm(self, key: Any, args: Sequence[Any], operands: Mapping[str, Any]) -> list[torch.Tensor] | None:
        """The outputs in order where a call like this one has been made, else None."""
        ready = self._ready.get(key)
        return None if ready is None else ready.launch(args, operands)

    def cold(
        self,
        key: Any,
        program: EpilogueProgram,
        args: Sequence[Any],
        operands: Mapping[str, Any],
        backend: str | None,
        config: Schedule | None,
    ) -> list[torch.Tensor]:
        """The first call of its kind: as `run`, and remembered under the key."""
        chosen, artifact, results = _first(program, args, operands, backend, config, None)
        if key is not None:
            places = tuple(program.argument_names)
            defaults = {o.name: o.default for o in program.operands if o.default is not None}
            outputs = tuple((f"out.{name}", tuple(t.shape), t.dtype, t.device) for name, t in results.items())
            self._ready[key] = _Ready(chosen, artifact, places, defaults, outputs)
            _trim(self._ready)
        return list(results.values())
