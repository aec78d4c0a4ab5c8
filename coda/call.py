"""One call of a program: every check the first time, almost nothing from then on.

    Calls     the kinds of call that one kernel has seen; `again` repeats one of the latest, calling it runs the program
    Ready     what a kind of call needs once everything has been checked and compiled
    prepare   the long way: bind → choose (backend, schedule) → compile (once) → launch
    kind_of   what decides everything about a call but its values
    forget    everything again, after a choice has changed

Two calls are alike when each tensor has the same dtype, shape, strides, device and 16-byte alignment, and no gradient
would be dropped: everything that a check, a choice or a compiled kernel depends on. Values never matter. Where tensors
lie to each other is checked at every call with `out=`. The first call of a kind goes the long way; the second finds what
that made ready by its kind, and writes the warm path as one function (`coda.warm`), which the calls after it try first.
`coda.replay` does the same for plans, `coda.torch_operator` is the way of a call inside a graph of torch.compile.

Measured with a backend that does nothing on one busy core of a CPU box (2026-11-29, Python 3.11, torch 2.13, least of many), as
multiples of one `torch.empty_strided` there: 4 tensors in, 3 out: 8.6 by kind, 3.1 by function; a plan of two such calls 12 and
3.5.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from coda import torch_private
from coda.backends.registry import Artifact, Backend
from coda.binding import Bound, bind, span
from coda.primitives.types import Kind
from coda.problem import Schedule
from coda.program import EpilogueProgram
from coda.tune import choose
from coda.warm import Again, Call, Launch, Written, again

MAX_KEPT = 4096
"""Compiled artifacts, and kinds of call of one kernel, that are remembered."""

_artifacts: collections.OrderedDict[Any, Artifact] = collections.OrderedDict()
GENERATION = [0]
"""Part of every kind of call: changes when choices may have changed."""


def forget() -> None:
    """Choose and check anew at the next call of every kind. Compiled kernels stay."""
    GENERATION[0] += 1


# the long way -----------------------------------------------------------------------------------------------------


def run(
    program: EpilogueProgram,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None = None,
    config: Schedule | None = None,
    out: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Run one program, with every check; its outputs by name. Raises a `CallError` or a `BackendError`."""
    _, results = prepare(program, args, operands, backend, config, out)
    return dict(zip((o.name for o in program.outputs), results, strict=True))


def prepare(
    program: EpilogueProgram,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None = None,
    config: Schedule | None = None,
    out: Mapping[str, Any] | None = None,
) -> tuple[Ready, list[Tensor]]:
    """Run one program, with every check: what the next call of its kind needs, and the outputs in order."""
    bound = bind(program, args, operands, out)
    chosen, artifact = _compiled(program, bound, backend, config)
    if out:  # autograd is told, or it would take the old values for what it has saved; not of a call that was refused
        increment_version(out.values())
    chosen.launch(artifact, bound.tensors)
    results = [bound.tensors[f"out.{name}"] for name in bound.outputs]
    places = program.argument_names[: len(args)]
    return _ready(program, bound, chosen, artifact, (*places, *operands), tuple(out or ())), results


def _compiled(
    program: EpilogueProgram, bound: Bound, backend: str | None, config: Schedule | None
) -> tuple[Backend, Artifact]:
    where = bound.tensors[f"out.{bound.outputs[0]}"].device.index
    chosen, schedule = choose(program, bound.problem, backend, config, where)
    key = (chosen.name, program.digest, bound.problem, schedule)
    artifact = _artifacts.get(key)
    if artifact is None:
        artifact = _artifacts[key] = chosen.compile(program, bound.problem, schedule, None)
        trim(_artifacts)
    return chosen, artifact


def trim(kept: collections.OrderedDict[Any, Any]) -> None:
    """Drop the oldest entry of a full cache."""
    if len(kept) > MAX_KEPT:
        kept.popitem(last=False)


# the short way ----------------------------------------------------------------------------------------------------


ELSEWHERE = "elsewhere"
"""The kind of a call that belongs to PyTorch's dispatcher."""


def kind_of(values: Iterable[Any], parts: list[Any]) -> tuple[Any, ...] | str | None:
    """The parts and what a call depends on of each value. None where only the long way will do, and `ELSEWHERE` for tensors
    that are no plain memory: subclasses, among them those of a graph under construction, and whatever a transform may wrap."""
    if torch_private.transforming():
        return ELSEWHERE
    for x in values:
        what = type(x)
        if what is Tensor or what is Parameter:
            if x.layout is not torch.strided or x.is_neg():
                return None
            try:
                parts += (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() & 15, x.requires_grad)
            except RuntimeError:
                return ELSEWHERE
        elif issubclass(what, Tensor):
            return ELSEWHERE
        else:
            parts.append(what)
    return None if torch_private.dual() else tuple(parts)


@dataclass(frozen=True)
class Ready:
    """What a kind of call needs once everything has been checked and compiled."""

    backend: Backend
    artifact: Artifact
    names: tuple[str, ...]
    """Of the values of a call: arguments in their order, then `out.NAME` for each tensor given to write into."""
    results: tuple[str, ...]
    defaults: tuple[tuple[str, Any], ...]
    allocations: tuple[tuple[str, Callable[[], Tensor]], ...]
    lengths: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Position and bytes of every tensor that matters to a call with `out=`."""
    neighbours: tuple[tuple[int, int, bool], ...] = field(default=(), repr=False)
    """Every pair of them that may not overlap, the one written first, and whether the other may be exactly the same."""
    made: list[Again] = field(default_factory=list, repr=False, compare=False)
    """The warm path as functions."""

    def launch(self, values: Iterable[Any]) -> dict[str, Any]:
        """Allocate the outputs that were not given, and run; all tensors of the launch by name."""
        tensors = dict(zip(self.names, values, strict=True))
        for name, value in self.defaults:
            tensors[name] = value
        for name, allocate in self.allocations:
            tensors[name] = allocate()
        self.backend.launch(self.artifact, tensors)
        return tensors

    def of(self, tensors: Mapping[str, Any]) -> list[Tensor]:
        """The outputs in order."""
        return [tensors[name] for name in self.results]

    def as_launch(self, tensors: Mapping[str, Any]) -> Launch:
        """For a function that repeats a launch on such tensors."""
        new = tuple(name for name, _ in self.allocations)
        return Launch(self.backend, self.artifact, self.names, new, self.results, tensors)

    def apartness(self) -> list[tuple[int, int, int, int, bool]]:
        """`neighbours` with positions and lengths in place of numbers."""
        return [(*self.lengths[i], *self.lengths[j], same) for i, j, same in self.neighbours]

    def apart(self, values: Sequence[Any]) -> bool:
        """Whether what is written overlaps nothing that it may not."""
        first = [values[at].data_ptr() for at, _ in self.lengths]
        last = [address + length for address, (_, length) in zip(first, self.lengths, strict=True)]
        for written, other, same in self.neighbours:
            low, at = first[written], first[other]
            if at < last[written] and low < last[other] and not (same and at == low):
                return False
        return True


def _ready(
    program: EpilogueProgram,
    bound: Bound,
    backend: Backend,
    artifact: Artifact,
    arguments: tuple[str, ...],
    given: tuple[str, ...],
) -> Ready:
    names = (*arguments, *(f"out.{name}" for name in given))
    results = tuple(f"out.{name}" for name in bound.outputs)
    defaults = tuple((o.name, o.default) for o in program.operands if o.default is not None and o.name not in arguments)
    new = tuple((name, _allocation(bound.tensors[name])) for name in results if name not in names)
    return Ready(backend, artifact, names, results, defaults, new, *_neighbours(program, bound.tensors, names))


def _allocation(t: Tensor) -> Callable[[], Tensor]:
    """What makes another such output; `empty_strided` takes two thirds of the time of `empty`."""
    return functools.partial(torch.empty_strided, tuple(t.shape), t.stride(), dtype=t.dtype, device=t.device)


def _neighbours(
    program: EpilogueProgram, tensors: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int, bool], ...]]:
    """`Ready.lengths` and `Ready.neighbours`."""
    if not any(name.startswith("out.") for name in names):
        return (), ()
    tiles = {o.name for o in program.operands if o.kind is Kind.TILE}
    present = [(at, name) for at, name in enumerate(names) if isinstance(tensors[name], Tensor) and span(tensors[name])]
    pairs = []
    for i, (_, name) in enumerate(present):
        t = tensors[name]
        for j, (_, other) in enumerate(present if name.startswith("out.") else ()):
            if i == j or (other.startswith("out.") and j < i):
                continue
            x = tensors[other]
            same = other in tiles and x.shape == t.shape and x.stride() == t.stride() and x.dtype == t.dtype
            pairs.append((i, j, same))
    return tuple((at, span(tensors[name])) for at, name in present), tuple(pairs)


class Calls(Written):
    """The kinds of call that one kernel has seen."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: collections.OrderedDict[Any, Ready] = collections.OrderedDict()

    def __call__(
        self,
        program: Callable[[], EpilogueProgram],
        args: tuple[Any, ...],
        operands: Mapping[str, Any],
        backend: str | None = None,
        config: Schedule | None = None,
        out: Mapping[str, Any] | None = None,
        constants: tuple[Any, ...] = (),
    ) -> Sequence[Tensor] | None:
        """The outputs in order, or None for tensors that belong to the dispatcher; `program` is asked for at the first call of
        a kind. Raises as `run`."""
        call = Call(args, operands, backend, config, out, constants)
        values = call.values
        parts = [
            GENERATION[0],
            call.preferred,
            config,
            torch.is_grad_enabled(),
            len(args),
            tuple(operands),
            tuple(out) if out else None,
            constants,
        ]
        kind = kind_of(values, parts)
        ready = self._ready.get(kind)
        if ready is not None and (not out or ready.apart(values)):
            return self._repeated(ready, call, values)
        if kind is ELSEWHERE:
            return None
        ready, results = prepare(program(), args, operands, backend, config, out)
        if kind is not None:
            self._ready[kind] = ready
            trim(self._ready)
        return results

    def _repeated(self, ready: Ready, call: Call, values: tuple[Any, ...]) -> Sequence[Tensor]:
        """A call of a known kind, by a function of its own where PyTorch allows that."""
        results = self._again(ready.made, call)
        if results is not None:
            return results
        if call.out:
            increment_version(call.out.values())
        tensors = ready.launch(values)
        if self._may_write(ready.made):
            self._keep(ready.made, again(call, ready.as_launch(tensors), GENERATION, ready.apartness()))
        return ready.of(tensors)
