"""One kernel's launches: the first of a kind goes Triton's way, the others straight to what Triton compiled.

    Dispatch    a kernel with its arguments and options, called with the tensors of a launch
    binder      a function that takes a launch's tensors apart, written once per kernel

Triton looks at every argument of every launch to find the kernel compiled for it; with some twenty arguments that takes
longer than a small GEMM. What can differ between two launches of one artifact is little (strides, the kind of a scalar,
whether an output shares memory with an input: the rest is fixed by its `Problem`), so a short key finds the kernel again.
Where somebody listens to launches (a profiler's hooks), and in the interpreter, every launch goes Triton's way.

Measured on an H200 (2026-11-29, Triton 3.6): 21 to 23 µs for a launch of one kernel, 41 to 46 µs for two. Of the 41, the
tile kernel's arguments take 3.5 µs here, the workspace and the check for aliases 6 µs, and Triton's launcher, which
encodes the descriptors of A and B anew each time, 16.6 µs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from coda import env
from coda.backends.triton import lowering
from coda.backends.triton.template import Argument
from coda.problem import Problem

Binder = Callable[[Mapping[str, Any], Any], tuple[tuple[Any, ...], tuple[Any, ...]]]


class Dispatch:
    """One kernel made ready for the launches of one artifact."""

    def __init__(
        self,
        function: Any,
        arguments: tuple[Argument, ...],
        problem: Problem,
        sizes: Mapping[str, int],
        options: Mapping[str, Any],
    ) -> None:
        from triton import knobs

        self._function, self._options, self._hooks = function, dict(options), knobs.runtime
        self._bind = binder(arguments, problem, sizes)
        self._direct = not env.interpreting()
        self._known: dict[Any, Callable[..., None]] = {}

    def __call__(
        self, programs: int, device: int, tensors: Mapping[str, Any], workspace: Any, constants: dict[str, Any]
    ) -> None:
        """Launch so many programs on the current stream of the current device."""
        variant, args = self._bind(tensors, workspace)
        key = (device, variant, *constants.values())
        launch = self._known.get(key)
        if launch is not None and not self._watched():
            launch(programs, *args)
            return
        compiled = self._function[(programs,)](*args, **constants, **self._options)
        if self._direct:
            self._known[key] = _straight(compiled, device, tuple(constants.values()))

    def build(self, programs: int, tensors: Mapping[str, Any], workspace: Any, constants: dict[str, Any]) -> None:
        """Have Triton compile what such a launch needs, into its cache on disk, and launch nothing."""
        _, args = self._bind(tensors, workspace)
        self._function.warmup(*args, grid=(programs,), **constants, **self._options)

    def _watched(self) -> bool:
        """Whether somebody wants to hear of launches."""
        enter, leave = self._hooks.launch_enter_hook, self._hooks.launch_exit_hook
        return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _straight(compiled: Any, device: int, constants: tuple[Any, ...]) -> Callable[..., None]:
    """A launch of a compiled kernel without a look at its arguments."""
    from triton.runtime import driver

    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    stream = driver.active.get_current_stream

    def launch(programs: int, *args: Any) -> None:
        run(programs, 1, 1, stream(device), function, metadata, None, None, None, *args, *constants)

    return launch


# arguments --------------------------------------------------------------------------------------------------------


def binder(arguments: tuple[Argument, ...], problem: Problem, sizes: Mapping[str, int]) -> Binder:
    """A function of a launch's tensors and workspace: what tells variants of the kernel apart, and its arguments.

    It is compiled from text: one expression per argument is several times faster than one call per argument.
    """
    known: dict[str, Any] = {"kind": _kind}
    setup: dict[str, str] = {}
    values, variant = [], []
    for i, a in enumerate(arguments):
        tensor = f"t_{a.tensor.replace('.', '_dot_')}"
        if a.what not in ("size", "workspace"):
            setup[tensor] = f"tensors[{a.tensor!r}]"
        value = tensor
        if a.what == "size":
            value = str(sizes[a.tensor])
        elif a.what == "workspace":
            value = "workspace"
        elif a.what == "stride":
            value = f"v_{i}"
            setup[value] = f"{tensor}.stride({a.dim})"
            variant.append(value)
        elif a.what == "scalar":
            value, known[f"scalar_{i}"] = f"v_{i}", _interpreted_scalar if env.interpreting() else _scalar
            setup[value] = f"scalar_{i}({tensor}, {'int' if a.type == 'i64' else 'float'})"
            variant.append(f"kind({value})")
        elif a.what == "descriptor":
            known[f"descriptor_{i}"] = _Descriptors(a)
            value = f"descriptor_{i}({tensor})"
        elif a.type == "*u8" and problem.spec(a.tensor).dtype in lowering.FP8:
            import torch

            known["bytes_of"] = torch.uint8
            value = f"{tensor}.view(bytes_of)"
        values.append(value)
    lines = [f"    {name} = {text}" for name, text in setup.items()]
    lines.append(f"    return ({''.join(v + ', ' for v in variant)}), ({''.join(v + ', ' for v in values)})")
    exec("\n".join(["def bind(tensors, workspace):", *lines]), known)  # noqa: S102  names of the program's own operands, checked when it was traced
    return known["bind"]  # type: ignore[no-any-return]


def _kind(x: Any) -> Any:
    """What Triton compiles a scalar for: numbers by their type and range, 0-d tensors by dtype and alignment."""
    if isinstance(x, float):
        return float
    if isinstance(x, int):
        return -(2**31) <= x < 2**31
    return x.dtype, x.data_ptr() % 16


def _scalar(x: Any, number: type) -> Any:
    """A number, or a 0-d tensor that is read on the device."""
    return number(x) if isinstance(x, (int, float)) else x


def _interpreted_scalar(x: Any, number: type) -> Any:
    """The interpreter takes tensors alone."""
    import torch

    if isinstance(x, torch.Tensor):
        return x
    return torch.tensor(number(x), dtype=torch.float64 if number is float else torch.int64)


class _Address:
    """An address in place of a tensor: a remembered descriptor keeps no memory alive."""

    def __init__(self, tensor: Any) -> None:
        self.dtype, self._pointer = tensor.dtype, tensor.data_ptr()

    def data_ptr(self) -> int:
        return int(self._pointer)


class _Descriptors:
    """The descriptor of a matrix; the last ones are remembered, by address and strides (the sizes are the artifact's)."""

    REMEMBERED = 64

    def __init__(self, a: Argument) -> None:
        self._a, self._lasting = a, not env.interpreting()
        self._found: dict[Any, Any] = {}

    def __call__(self, x: Any) -> Any:
        key = (x.data_ptr(), x.stride())
        found = self._found.get(key)
        if found is None:
            found = _descriptor(self._a, x)
            if self._lasting:
                found = copy.copy(found)
                found.base = _Address(x)
                if len(self._found) >= self.REMEMBERED:
                    self._found.clear()
                self._found[key] = found
        return found


def _descriptor(a: Argument, x: Any) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    if a.swapped:
        x = x.mT
    strides = list(x.stride())
    strides[1] = 1  # of a matrix with one column PyTorch may say anything
    if x.shape[0] == 1:
        strides[0] = max(16, -(-x.shape[1] // 16) * 16)
    return TensorDescriptor(x, list(x.shape), strides, list(a.block))
