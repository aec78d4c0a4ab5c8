"""The warm path of one kind of call, written as one function: compare, allocate, launch, return.

    again       of a kind of call of a program
    again_plan  of a kind of call of a plan
    Written     such functions of one kernel: the latest are tried first, and there are never too many

Such a function takes a call (`args, operands, backend, config, out, constants`) and returns the outputs in order, or None for
a call of another kind, which then goes the way that `coda.call` describes: it only ever repeats what that way has done before.
What makes a kind is in `coda.call.kind_of`; here it is compared in straight lines, the tensors all at once
(`torch_private.alike`). A backend that has a shorter way for launches that are alike is asked for it (`registry.Straight`).
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from coda import env, torch_private
from coda.backends.registry import Artifact, Backend, Straight
from coda.written import Text

Again = Callable[..., "tuple[Any, ...] | None"]


@dataclass(frozen=True)
class Call:
    """One call, as its kernel got it."""

    args: tuple[Any, ...]
    operands: Mapping[str, Any]
    backend: str | None
    config: Any
    out: Mapping[str, Any] | None = None
    constants: tuple[Any, ...] = ()

    @property
    def preferred(self) -> str:
        """The backend by name, also where the call named none."""
        return self.backend or env.backend()

    @property
    def values(self) -> tuple[Any, ...]:
        """Every argument: by position, by name, and what is written into."""
        return (*self.args, *self.operands.values(), *(self.out or {}).values())


@dataclass(frozen=True)
class Launch:
    """One launch of a program inside a call."""

    backend: Backend
    artifact: Artifact
    names: tuple[str, ...]
    """Of what it is given, in order."""
    new: tuple[str, ...]
    """Of the outputs that it allocates."""
    results: tuple[str, ...]
    """Of every output, in order."""
    tensors: Mapping[str, Any]
    """Of a launch of this kind, by name; what is neither given nor new is the same every time."""


LATEST = 8
"""Functions of one kernel that are tried before the kind of a call is looked up. One that does not fit takes 0.3 µs; to look up a
kind takes 7."""
MODES = 4
"""Functions that one kind may have: one for each set of modes (autocast, inference, …) that calls of it are made in."""
MAX_WRITTEN = 512
"""Functions of one kernel that are kept; each takes about ten kilobytes."""


class Written:
    """The functions of one kernel's kinds of call; what looks up kinds is built on it."""

    def __init__(self) -> None:
        self._latest: tuple[Again, ...] = ()
        self._places: collections.deque[list[Again]] = collections.deque()

    def again(
        self,
        args: tuple[Any, ...],
        operands: Mapping[str, Any],
        backend: str | None,
        config: Any,
        out: Mapping[str, Any] | None = None,
        constants: tuple[Any, ...] = (),
    ) -> tuple[Any, ...] | None:
        """The outputs in order where the call is of one of the latest kinds, else None."""
        for attempt in self._latest:
            results = attempt(args, operands, backend, config, out, constants)
            if results is not None:
                return results
        return None

    def _again(self, made: list[Again], call: Call) -> tuple[Any, ...] | None:
        """The outputs by one of the functions of the call's kind, else None."""
        for attempt in made:
            results = attempt(call.args, call.operands, call.backend, call.config, call.out, call.constants)
            if results is not None:
                self._latest = (attempt, *[x for x in self._latest if x is not attempt][: LATEST - 1])
                return results
        return None

    def _keep(self, made: list[Again], new: Again | None) -> None:
        """One more function of a kind; the oldest of any kind goes where there are too many."""
        if new is None:
            return
        made.append(new)
        self._latest = (new, *self._latest[: LATEST - 1])
        self._places.append(made)
        if len(self._places) > MAX_WRITTEN:
            del self._places.popleft()[:1]

    @staticmethod
    def _may_write(made: list[Again]) -> bool:
        """Whether a kind that has these functions may have one more."""
        return len(made) < MODES and torch_private.usable()


def again(
    call: Call, launch: Launch, current: list[int], apart: Sequence[tuple[int, int, int, int, bool]]
) -> Again | None:
    """A function for calls like this one, or None where PyTorch offers nothing for it. `current` holds the generation of choices
    that this one belongs to. `apart`: pairs of values that must not overlap, as positions and lengths, the one written first,
    and whether they may be the same."""
    text = Text()
    places = _compare(text, call, current)
    if places is None:
        return None
    for written, length, other, reach, same in apart:
        (p, end), (q, past) = (
            (f"p{at}", f"p{at} + {text.name('bytes', x)}") for at, x in ((written, length), (other, reach))
        )
        text.line(f"if {p} < {past} and {q} < {end}{f' and {p} != {q}' if same else ''}: return None")
    if call.out:
        targets = ", ".join(places[len(places) - len(call.out) :])
        text.line(f"{text.name('increment', increment_version)}(({targets},))")
    results = _launch(text, launch, dict(zip(launch.names, places, strict=True)))
    text.line(f"return ({''.join(x + ', ' for x in results)})")
    return text.function(HEAD)  # type: ignore[no-any-return]


HEAD = "again(args, operands, backend, config, out, constants)"


def _compare(text: Text, call: Call, current: list[int], fixed: Sequence[int] = ()) -> list[str] | None:
    """Lines that return None for a call of another kind; the names of its values. `fixed`: positions of numbers that count."""
    count = len(call.args)
    text.line(f"if {text.name('current', current)}[0] != {text.name('generation', current[0])}: return None")
    if call.backend:
        named = text.name("backend", call.backend)
        text.line(f"if backend is not {named} and (type(backend) is not str or backend != {named}): return None")
    else:
        text.line(
            f"if backend is not None or {text.name('preferred', env.backend)}() != {call.preferred!r}: return None"
        )
    text.line(f"if len(args) != {count} or len(operands) != {len(call.operands)}: return None")
    if call.config is None:
        text.line("if config is not None: return None")
    else:
        given, kind = text.name("config", call.config), text.name("type", type(call.config))
        text.line(f"if config is not {given} and (type(config) is not {kind} or config != {given}): return None")
    text.line(f"if constants != {text.name('constants', call.constants)}: return None")
    given_out = f"type(out) is not dict or len(out) != {len(call.out)}" if call.out else "out is not None"
    text.line(f"if {given_out}: return None")
    values = call.values
    places = [f"x{i}" for i in range(len(values))]
    if count:
        text.line(f"{''.join(x + ', ' for x in places[:count])}= args")
    parts = [f"operands[{n!r}]" for n in call.operands] + [f"out[{n!r}]" for n in call.out or ()]
    if parts:
        text.line("try: " + "; ".join(f"{x} = {y}" for x, y in zip(places[count:], parts, strict=True)))
        text.line("except KeyError: return None")
    return places if _compare_values(text, values, places, fixed) else None


def _compare_values(text: Text, values: Sequence[Any], places: Sequence[str], fixed: Sequence[int]) -> bool:
    tensors = {x: t for x, t in zip(places, values, strict=True) if isinstance(t, Tensor)}
    check = torch_private.alike(list(tensors.values())) if tensors else None
    if check is None:
        return False
    if any(t.requires_grad for t in tensors.values()):  # which is fine while gradients are off
        text.line(f"if {text.name('gradients', torch.is_grad_enabled)}(): return None")
    text.line(
        f"if {text.name('forward', forward_ad)}.{torch_private.LEVEL} >= 0: return None"
    )  # a tangent would be dropped
    device = next(iter(tensors.values())).device
    if device.type == "cuda":
        text.line(f"if {text.name('device', torch_private.current_device())}() != {device.index}: return None")
    text.line(f"if not {text.name('alike', check)}({', '.join(tensors)}): return None")
    for i, (x, value) in enumerate(zip(places, values, strict=True)):
        if x in tensors:
            text.line(f"p{i} = {x}.data_ptr()")
            continue
        text.line(f"if type({x}) is not {text.name('type', type(value))}: return None")
        if i in fixed:
            text.line(f"if {x} != {text.name('value', value)}: return None")
    aligned = [i for i, x in enumerate(places) if x in tensors and tensors[x].data_ptr() & 15 == 0]
    for i, x in enumerate(places):
        if x in tensors and i not in aligned:
            text.line(f"if p{i} & 15 != {tensors[x].data_ptr() & 15}: return None")
    if aligned:
        text.line(f"if ({' | '.join(f'p{i}' for i in aligned)}) & 15: return None")
    return True


def _launch(text: Text, launch: Launch, places: Mapping[str, str]) -> list[str]:
    """Lines that allocate and launch; the names of the outputs. `places`: those of what is given, by name."""
    places = dict(places)
    for name in launch.new:
        like = launch.tensors[name]
        places[name] = f"y{len(text.known)}"
        text.line(f"{places[name]} = {_new(text, like)}")
    names = (*places,)
    way = None
    if isinstance(launch.backend, Straight):
        way = launch.backend.straight(launch.artifact, launch.tensors, names)
    if way is not None:
        text.line(f"{text.name('launch', way)}({', '.join(places[n] for n in names)})")
    else:
        always = {n: text.name("always", x) for n, x in launch.tensors.items() if n not in places}
        backend, artifact = text.name("backend", launch.backend), text.name("artifact", launch.artifact)
        tensors = ", ".join(f"{n!r}: {x}" for n, x in {**places, **always}.items())
        text.line(f"{backend}.launch({artifact}, {{{tensors}}})")
    return [places[name] for name in launch.results]


def _new(text: Text, like: Tensor) -> str:
    """The expression of another such tensor, with memory of its own."""
    sizes = f"{text.name('size', tuple(like.shape))}, {text.name('strides', like.stride())}"
    quick = torch_private.quick_empty(like.device.type)
    if quick is not None:
        return f"{text.name('empty', quick)}({sizes}, {text.name('dtype', like.dtype)})"
    make = functools.partial(torch.empty_strided, dtype=like.dtype, device=like.device)
    return f"{text.name('empty', make)}({sizes})"


@dataclass(frozen=True)
class Piece:
    """One thing that a plan does: a launch, or a function of a list of values."""

    do: Launch | Callable[[list[Any]], Any]
    args: tuple[int, ...]
    """Steps whose values it takes."""
    targets: tuple[tuple[int, int], ...]
    """Which of a launch's results, or 0, becomes the value of which step."""


def again_plan(
    call: Call,
    current: list[int],
    fixed: Sequence[int],
    values: Mapping[int, Any],
    inputs: Iterable[tuple[int, int]],
    pieces: Iterable[Piece],
    outputs: Iterable[int],
) -> Again | None:
    """As `again` for a plan. `fixed`: positions of arguments whose value decides a size. `values`: of steps that are constant.
    `inputs`: steps, and the positions of the arguments that they are."""
    text = Text()
    places = _compare(text, call, current, fixed)
    if places is None:
        return None
    steps = {step: text.name("constant", x) for step, x in values.items()} | {step: places[at] for step, at in inputs}
    for piece in pieces:
        args = [steps[i] for i in piece.args]
        if isinstance(piece.do, Launch):
            results = _launch(text, piece.do, dict(zip(piece.do.names, args, strict=True)))
        else:
            results = [f"y{len(text.known)}"]
            text.line(f"{results[0]} = {text.name('do', piece.do)}([{', '.join(args)}])")
        steps |= {step: results[which] for which, step in piece.targets}
    text.line(f"return ({''.join(steps[step] + ', ' for step in outputs)})")
    return text.function(HEAD)  # type: ignore[no-any-return]
