"""What coda takes of PyTorch that is not public: the one place that knows any of it.

    alike           a function that tells whether tensors are as others were, in one call instead of eight per tensor
    quick_empty     an allocation that does not pass the dispatcher
    listening       whether somebody listens to operations, who would then miss those
    transforming    whether a transform of functions is at work
    dual            whether a tensor may carry a tangent
    saving_hooks    whether somebody gets what is saved for backward
    current_device  the number of the current GPU

Why: nothing public tells whether autograd has hooks (`saving_hooks`); all else is for warm calls. Such a call takes a few µs, and asking
one tensor for dtype, shape, strides, device, layout, … takes half of one. Dynamo asks the same question before every compiled
graph, with `TensorGuards`; Inductor's own output allocates with `_empty_strided_cuda`. Read in PyTorch 2.13. Guards are tried out
before the first use: where they are missing or do not tell apart what must be told apart, there are none, and calls go the way
that asks tensors one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

Alike = Callable[..., bool]
LEVEL = "_current_level"
"""Of forward-mode differentiation, an attribute of `torch.autograd.forward_ad`; negative where there is none."""


def alike(tensors: Sequence[Tensor]) -> Alike | None:
    """A function of as many values: whether each is a tensor as the one here: of the same type, layout, dtype, device, sizes and
    strides, negated, wrapped by a transform or made for inference as that one is, and wanting a gradient only where that one does.
    The modes of the moment count too: autocast or inference mode is another answer. None where there is no such function."""
    return _guard(tensors) if usable() else None


def usable() -> bool:
    """Whether there is such a function now."""
    return not listening() and _trusted()


def _guard(tensors: Sequence[Tensor]) -> Alike | None:
    try:
        guards = torch._C._dynamo.guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(t.shape) for t in tensors],  # type: ignore[misc]
            dynamic_dims_strides=[list(t.stride()) for t in tensors],  # type: ignore[misc]
        )
        check: Alike = guards.check
        return check if check(*tensors) else None
    except (AttributeError, TypeError, ValueError, RuntimeError, SystemError):
        return None


TRIES = 8
_tried: list[bool] = []
"""What was found so far. One yes holds for the process; a no may be that of a moment, inside a compiler, say."""


def _trusted() -> bool:
    """Whether guards have ever been found right."""
    if not any(_tried) and len(_tried) < TRIES:
        _tried.append(_tells_apart())
    return any(_tried)


def _tells_apart() -> bool:
    """Whether guards tell apart what must be told apart."""
    zeros = functools.partial(torch.zeros, device="cpu", dtype=torch.float32)  # whatever the caller's defaults are
    if not hasattr(forward_ad, LEVEL):
        return False
    with torch.inference_mode(False), torch.no_grad():
        x, parts = zeros(4, 6), torch.complex(zeros(4, 12), zeros(4, 12))
        others = [
            zeros(4, 7),
            torch.zeros(4, 6, device="cpu", dtype=torch.int32),
            zeros(6, 4).mT,
            zeros(24),
            torch.zeros(4, 6, device="meta", dtype=torch.float32),
        ]
        others += [x.to_sparse(), torch.nn.Parameter(zeros(4, 6))]
        plain, view, negated = _guard([x]), _guard([parts.imag]), parts.conj().imag
        if plain is None or view is None or not plain(zeros(4, 6)) or any(plain(t) for t in others):
            return False
        if view(negated) or negated.stride() != parts.imag.stride():
            return False
    with torch.inference_mode(False), torch.enable_grad():
        plain = _guard([x])
        return plain is not None and plain(x) and not plain(zeros(4, 6, requires_grad=True))


def listening() -> bool:
    """Whether operations are listened to (a dispatch mode) or mean something else (a transform of functions)."""
    try:
        modes: int = torch._C._len_torch_dispatch_stack()
        return modes > 0 or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return True


def transforming() -> bool:
    """Whether a transform of functions (vmap, grad, …) is at work: new tensors are wrapped then, and have no memory to show."""
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:
        return False


def dual() -> bool:
    """Whether forward-mode differentiation is at work, in which a tensor may carry a tangent. Nothing else tells such a tensor
    from another one."""
    level: int = getattr(forward_ad, LEVEL, 0)
    return level >= 0


def saving_hooks() -> bool:
    """Whether hooks on saved tensors are at work (`torch.autograd.graph.saved_tensors_hooks`, checkpoints), which may keep or share
    what is saved now for backward. Nothing public asks."""
    try:
        return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    except (AttributeError, TypeError):
        return True


@functools.cache
def quick_empty(kind: str) -> Callable[..., Tensor] | None:
    """A function of size, strides and dtype: new memory on a CPU, or on the current GPU. None for devices without one."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None) if kind in ("cpu", "cuda") else None
    found: Callable[..., Tensor] | None = getattr(guards, f"_empty_strided_{kind}", None)
    return found


@functools.cache
def current_device() -> Callable[[], int]:
    """A function: the number of the current GPU, in a process that has used one."""
    return getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
