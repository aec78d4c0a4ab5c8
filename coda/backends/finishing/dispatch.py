"""One kernel's launches: the first of a kind goes Triton's way, the others straight to what Triton compiled.

    Dispatch      a kernel with its arguments and options, called with the tensors of a launch
    binder        a function that takes a launch's tensors apart for Triton, written once per kernel
    straight      a function that launches a compiled kernel on tensors, written once per variant (`private` has the launcher)
    Descriptors   the descriptors of a matrix, remembered
    function_of   a function from its text, which is how all of these are written

Triton looks at every argument of every launch to find the kernel compiled for it; with some twenty arguments that takes
longer than a small GEMM. What can differ between two launches of one artifact is little (strides, the kind of a scalar,
whether an output shares memory with an input, whether the base of a tensor that its `Problem` calls unaligned is aligned all
the same, because only its stride is not: the rest is fixed by the `Problem`), so a short key finds the kernel again.
Where somebody listens to launches (a profiler's hooks), and in the interpreter, every launch goes Triton's way.

Measured on an H200 (2026-11-29, Triton 3.6) before descriptors were kept encoded and pointers passed as numbers: 21 to
23 µs for a launch of one kernel, 41 to 46 µs for two. Of the 41, the tile kernel's arguments took 3.5 µs, the workspace
and the check for aliases 6 µs, and Triton's launcher, which encodes the descriptors of A and B anew each time, 16.6 µs.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coda import env
from coda.backends.finishing import lowering, private
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.refusals import raise_as_compile_error
from coda.problem import Problem

Binder = Callable[[Mapping[str, Any], Any], tuple[Any, ...]]
Launch = Callable[[int, int, Mapping[str, Any], Any], None]
REFUSALS = (TypeError, SystemError, AttributeError, OverflowError)
"""What a launcher raises that does not understand its arguments; nothing has been launched then."""


class Dispatch:
    """One kernel made ready for the launches of one artifact."""

    def __init__(
        self,
        function: Any,
        arguments: tuple[Argument, ...],
        problem: Problem,
        sizes: Mapping[str, int],
        options: Mapping[str, Any],
        name: str,
    ) -> None:
        """`name`: the program's, for people."""
        from triton import knobs

        self._name = name
        self._function, self._options, self._hooks = function, dict(options), knobs.runtime
        self.arguments, self.sizes = arguments, dict(sizes)
        self._variant, self._bind = variant(arguments, problem), binder(arguments, problem, sizes)
        self._direct = not env.interpreting()
        self._known: dict[Any, Launch] = {}
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, programs: int, device: int, tensors: Mapping[str, Any], workspace: Any, constants: dict[str, Any]
    ) -> None:
        """Launch so many programs on the current stream of the current device. Raises `CompileError` where Triton refuses."""
        key = (device, self._variant(tensors), *constants.values())
        launch = self._known.get(key)
        if launch is not None and not self._watched():
            try:
                launch(programs, device, tensors, workspace)
            except REFUSALS:
                if key not in self._compiled:
                    raise
                compiled = self._compiled.pop(key)  # the direct launcher is not what it was: Triton's own from now on
                self._known[key] = launch = self._straight(private.public(compiled), compiled, constants)
                launch(programs, device, tensors, workspace)
            return
        try:
            compiled = self._function[(programs,)](*self._bind(tensors, workspace), **constants, **self._options)
        except Exception as error:
            raise_as_compile_error(error, self._name)
            raise
        if self._direct:
            self._compiled[key] = compiled
            self._known[key] = self._straight(private.launcher(compiled), compiled, constants)

    def build(self, programs: int, tensors: Mapping[str, Any], workspace: Any, constants: dict[str, Any]) -> None:
        """Have Triton compile what such a launch needs, into its cache on disk, and launch nothing. Raises
        `CompileError` where it refuses."""
        args = self._bind(tensors, workspace)
        try:
            self._function.warmup(*args, grid=(programs,), **constants, **self._options)
        except Exception as error:
            raise_as_compile_error(error, self._name)
            raise

    def ready(
        self, device: int, tensors: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> tuple[private.Launcher, Any] | None:
        """The launcher and the handle of what Triton compiled for such a launch; None where there was none, or where each
        launch goes Triton's way."""
        compiled = self._compiled.get((device, self._variant(tensors), *constants.values()))
        if compiled is None or self._watched():
            return None
        return private.launcher(compiled), compiled.function

    @property
    def hooks(self) -> Any:
        """What listens to launches: Triton's `knobs.runtime`."""
        return self._hooks

    def _straight(self, launcher: private.Launcher, compiled: Any, constants: Mapping[str, Any]) -> Launch:
        return straight(launcher, self.arguments, self.sizes, tuple(constants.values()), compiled.function)

    def _watched(self) -> bool:
        """Whether somebody wants to hear of launches."""
        enter, leave = self._hooks.launch_enter_hook, self._hooks.launch_exit_hook
        return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


# arguments --------------------------------------------------------------------------------------------------------


def function_of(head: str, lines: Iterable[str], known: dict[str, Any]) -> Any:
    """A function from text: one expression per argument is several times faster than one call per argument."""
    exec("\n".join([f"def {head}:", *lines]), known)  # noqa: S102  names of the program's own operands, checked when it was traced
    return known[head[: head.index("(")]]


def variant(arguments: tuple[Argument, ...], problem: Problem) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function of a launch's tensors: what tells variants of the kernel apart."""
    parts = []
    specs = dict(problem.tensors)
    for a in arguments:
        if a.what == "stride":
            parts.append(f"tensors[{a.tensor!r}].stride({a.dim}), ")
        elif a.what == "scalar":
            parts.append(f"kind(tensors[{a.tensor!r}]), ")
        elif a.what == "pointer" and not specs[a.tensor].aligned:
            parts.append(f"tensors[{a.tensor!r}].data_ptr() & 15 == 0, ")
    return function_of("variant(tensors)", [f"    return ({''.join(parts)})"], {"kind": _kind})  # type: ignore[no-any-return]


def binder(arguments: tuple[Argument, ...], problem: Problem, sizes: Mapping[str, int]) -> Binder:
    """A function of a launch's tensors and workspace: the arguments that Triton takes."""
    known: dict[str, Any] = {}
    values = []
    for i, a in enumerate(arguments):
        value = f"tensors[{a.tensor!r}]"
        if a.what == "descriptor":
            known[f"descriptor_{i}"] = functools.partial(_descriptor, a)
            value = f"descriptor_{i}({value})"
        elif a.what == "pointer":
            if a.type == "*u8" and problem.spec(a.tensor).dtype in lowering.FP8:
                import torch

                known["bytes_of"] = torch.uint8
                value = f"{value}.view(bytes_of)"
        else:
            value = _plain(i, a, sizes, known)
        values.append(value)
    return function_of("bind(tensors, workspace)", [f"    return ({''.join(v + ', ' for v in values)})"], known)  # type: ignore[no-any-return]


def _plain(i: int, a: Argument, sizes: Mapping[str, int], known: dict[str, Any]) -> str:
    """The expression of an argument that is neither a pointer nor a descriptor."""
    if a.what == "size":
        return str(sizes[a.tensor])
    if a.what == "workspace":
        return "workspace"
    if a.what == "stride":
        return f"tensors[{a.tensor!r}].stride({a.dim})"
    known[f"scalar_{i}"] = _interpreted_scalar if env.interpreting() else _scalar
    return f"scalar_{i}(tensors[{a.tensor!r}], {'int' if a.type == 'i64' else 'float'})"


def straight(
    launcher: private.Launcher,
    arguments: tuple[Argument, ...],
    sizes: Mapping[str, int],
    constants: tuple[Any, ...],
    function: Any,
) -> Launch:
    """A launch of a compiled kernel without a look at its arguments. Pointers are numbers: a launcher asks the driver about
    anything else."""
    from triton.runtime import driver

    known: dict[str, Any] = {"run": launcher.run, "stream": driver.active.get_current_stream, "function": function}
    known |= {f"before_{i}": x for i, x in enumerate(launcher.before)}
    values, descriptors = [], 0
    for i, a in enumerate(arguments):
        value = f"tensors[{a.tensor!r}]"
        if a.what == "descriptor":
            encode = functools.partial(launcher.encode, descriptors) if launcher.encode else None
            known[f"descriptor_{i}"] = Descriptors(a, encode)
            value = f"*descriptor_{i}({value})"
            descriptors += 1
        elif a.what == "pointer":
            value = f"{value}.data_ptr()"
        elif a.what == "workspace":
            value = "None if workspace is None else workspace.data_ptr()"
        else:
            value = _plain(i, a, sizes, known)
        values.append(value)
    known |= {f"constant_{i}": x for i, x in enumerate(constants)}
    values += [f"constant_{i}" for i in range(len(constants))]
    own = ", ".join(values)
    given = f"({own},)" if launcher.packed else own
    before = "".join(f"before_{i}, " for i in range(len(launcher.before)))
    text = f"    run(programs, 1, 1, stream(device), function, {before}{given})"
    return function_of("launch(programs, device, tensors, workspace)", [text], known)  # type: ignore[no-any-return]


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


class Descriptors:
    """The descriptor of a matrix, as a launcher takes it; the last ones are remembered, by address and strides (the sizes
    are the artifact's)."""

    REMEMBERED = 64

    def __init__(self, a: Argument, encode: Callable[[Any], tuple[Any, ...]] | None) -> None:
        self._a, self._encode = a, encode
        self._found: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, x: Any) -> tuple[Any, ...]:
        key = (x.data_ptr(), x.stride())
        found = self._found.get(key)
        if found is None:
            descriptor = copy.copy(_descriptor(self._a, x))
            descriptor.base = _Address(x)
            found = (descriptor,) if self._encode is None else self._encode(descriptor)
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
