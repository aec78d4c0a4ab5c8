"""The launcher below Triton's launcher: the one place that knows Triton from the inside.

    Launcher    what launches a compiled kernel, and what it takes before the kernel's own arguments
    launcher    the direct one for the versions whose source was read, else Triton's public `compiled.run`

Why: `compiled.run` encodes the descriptors of A and B anew at every launch (two calls of the driver and some Python, most
of the 16.6 µs measured on an H200 with Triton 3.6), and there is no public way to hand it an encoded one. The extension
function under it takes encoded descriptors; they are a function of address, shape, strides and block, and can be kept.

What is used: attributes of `triton.backends.nvidia.driver.CudaLauncher`, the function that its wrapper closes over
(3.6) or `driver.active.utils.launch` (3.9), and `make_tensordesc_arg`. A launcher that needs scratch memory, or anything
that looks different from what was read, goes the public way; so does a direct launch that refuses its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Encode = Callable[[int, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Launcher:
    """`run(x, y, z, stream, function, *before, …)`, then the kernel's arguments: one by one, or `packed` in one tuple."""

    run: Callable[..., Any]
    before: tuple[Any, ...]
    packed: bool = False
    encode: Encode | None = None
    """Of the n-th descriptor: what takes its place among the arguments. None: the descriptor itself."""


def public(compiled: Any) -> Launcher:
    """Triton's own: `compiled.run`."""
    return Launcher(compiled.run, (compiled.packed_metadata, None, None, None))


def launcher(compiled: Any) -> Launcher:
    """The direct launcher of a compiled kernel, or the public one."""
    import triton

    read = {"3.6": _of_3_6, "3.9": _of_3_9}.get(".".join(triton.__version__.split(".")[:2]))
    try:
        return (read(compiled, compiled.run) if read else None) or public(compiled)
    except (AttributeError, TypeError, ValueError, ImportError):
        return public(compiled)


def _of_3_6(compiled: Any, run: Any) -> Launcher | None:
    if run.global_scratch_size or run.profile_scratch_size:
        return None
    inner = run.launch
    if getattr(inner, "__closure__", None):  # the wrapper that encodes; without descriptors there is none
        inner = inner.__closure__[inner.__code__.co_freevars.index("launcher")].cell_contents
    before = (run.launch_cooperative_grid, run.launch_pdl, None, None, compiled.packed_metadata, None, None, None)
    return Launcher(inner, before, encode=_encoder(compiled))


def _of_3_9(compiled: Any, run: Any) -> Launcher | None:
    from triton.runtime import driver

    if run.global_scratch_size or run.profile_scratch_size or run.gsan_enabled:
        return None
    before = (
        *(run.launch_cooperative_grid, run.launch_pdl, compiled.packed_metadata),
        *(None, None, None, None, None),
        *(run.arg_annotations, run.kernel_signature),
    )
    return Launcher(driver.active.utils.launch, before, packed=True, encode=_encoder(compiled, None))


def _encoder(compiled: Any, *more: Any) -> Encode:
    from triton.backends.nvidia.driver import make_tensordesc_arg

    metadata = getattr(compiled.metadata, "tensordesc_meta", None)

    def encode(which: int, descriptor: Any) -> tuple[Any, ...]:
        return tuple(make_tensordesc_arg(descriptor, metadata[which] if metadata else None, *more))

    return encode
