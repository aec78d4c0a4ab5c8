"""All kernels of one launch in one function, for launches that are alike: no key, no dictionary, each address read once.

    Line   such a function being written: `kernel` adds a launch, `function` is the whole

`dispatch` launches one kernel on any tensors that its artifact is for. Where the shapes and strides of all of them are known
(`registry.Straight` says of what kind of call), what is left are addresses and numbers, and those checks that values decide:
whether an output is an input, whether an integer fits 32 bits, whether somebody listens to launches. Where one of them, or a
launcher, says no, the launch goes the general way, which is right for everything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coda.backends.finishing.dispatch import REFUSALS, Descriptors, Dispatch
from coda.torch_private import quick_empty
from coda.written import Text

REMEMBERED = 64
"""Descriptors of one matrix that are kept, by address."""


class Line:
    """A function of the values with these names, being written. `tensors`: of a launch that it repeats. `index`: the GPU."""

    def __init__(self, names: Sequence[str], tensors: Mapping[str, Any], index: int) -> None:
        self.text = Text()
        self.index = index
        self._tensors = tensors
        self._names = tuple(names)
        self._places = {name: f"x{i}" for i, name in enumerate(names)}
        self._pointers: dict[str, str] = {}
        self._numbers: list[str] = []
        always = [name for name in tensors if name not in self._places]
        self._places |= {name: self.text.name("always", tensors[name]) for name in always}
        self._all = "{" + ", ".join(f"{n!r}: {x}" for n, x in self._places.items()) + "}"
        self._refused: list[bool] = []

    # what is launched on ------------------------------------------------------------------------------------------------
    def value(self, name: str) -> str:
        """The expression of a tensor or a number."""
        return self._places[name]

    def pointer(self, name: str) -> str:
        """The name of a tensor's address."""
        if name not in self._pointers:
            self._pointers[name] = f"p{len(self._pointers)}"
            self.text.line(f"{self._pointers[name]} = {self.value(name)}.data_ptr()")
        return self._pointers[name]

    def number(self, name: str, kind: type) -> str:
        """The expression of a number: one that is given may not leave 32 bits, or enter them, unnoticed."""
        x = self._tensors[name]
        if name not in self._names:
            return self.text.name("number", kind(x))
        place = self.value(name)
        if isinstance(x, int):
            fits = -(2**31) <= x < 2**31
            self._numbers.append(f"{'not ' if fits else ''}-2147483648 <= {place} < 2147483648")
        return place if type(x) is kind else f"{kind.__name__}({place})"

    def memory(self, size: int | tuple[int, ...], strides: tuple[int, ...] = (1,)) -> str:
        """The name of new memory for fp32 numbers, which lives until the end of the function."""
        import torch

        device = next(x.device for x in self._tensors.values() if isinstance(x, torch.Tensor))
        make = quick_empty(device.type) or functools.partial(_empty, device)
        name, dtype = f"m{len(self.text.known)}", self.text.name("dtype", torch.float32)
        sizes = (size,) if isinstance(size, int) else size
        shape = f"{self.text.name('size', sizes)}, {self.text.name('strides', strides)}"
        self.text.line(f"{name} = {self.text.name('empty', make)}({shape}, {dtype})")
        return name

    def keep(self, expression: str) -> str:
        """The name of what an expression gives, which lives until the end of the function."""
        name = f"k{len(self.text.lines)}"
        self.text.line(f"{name} = {expression}")
        return name

    # launches -----------------------------------------------------------------------------------------------------------
    def unless(self, condition: str) -> None:
        """A line that leaves for the general way, before anything is launched."""
        self.text.line(f"if {condition}: return general({self._all})")

    def aliased(self, outputs: Iterable[str], inputs: Sequence[str], expected: bool) -> None:
        """Leave where an output shares its address with an input though none did, or the other way round."""
        pairs = [f"{self.pointer(o)} == {self.pointer(i)}" for o in outputs for i in inputs]
        if pairs:
            any_of = " or ".join(pairs)
            self.unless(f"not ({any_of})" if expected else any_of)

    def kernel(self, dispatch: Dispatch, programs: int, workspace: str | None, constants: dict[str, Any]) -> bool:
        """Launch so many programs of a kernel that was launched on such tensors before. False where it was not, or goes
        Triton's way."""
        ready = dispatch.ready(self.index, self._tensors, constants)
        if ready is None:
            return False
        launcher, function = ready
        values = self._arguments(dispatch, launcher.encode, workspace)
        values += [self.text.name("constant", x) for x in constants.values()]
        if not launcher.packed:
            given = ", ".join(values)
        else:
            given = f"({''.join(v + ', ' for v in values)})"
        before = "".join(f"{self.text.name('before', x)}, " for x in launcher.before)
        run, handle = self.text.name("run", launcher.run), self.text.name("function", function)
        count = self.text.name("programs", programs)
        self.text.line(f"try: {run}({count}, 1, 1, stream, {handle}, {before}{given})")
        general, same = self.text.name("dispatch", dispatch), self.text.name("constants", constants)
        given = f"{count}, {self.index}, {self._all}, {workspace}, {same}"
        self.text.line(f"except REFUSALS: refused.append(True); {general}({given})")
        return True

    def _arguments(self, dispatch: Dispatch, encode: Any, workspace: str | None) -> list[str]:
        values, descriptors = [], 0
        for a in dispatch.arguments:
            if a.what == "descriptor":
                found: dict[int, tuple[Any, ...]] = {}
                make = _remembering(Descriptors(a, encode and _nth(encode, descriptors)), found)
                at, make_name = self.text.name("found", found), self.text.name("make", make)
                address = self.pointer(a.tensor)
                values.append(f"*({at}.get({address}) or {make_name}({self.value(a.tensor)}))")
                descriptors += 1
            elif a.what == "pointer":
                values.append(self.pointer(a.tensor))
            elif a.what == "workspace":
                values.append("None" if workspace is None else f"{workspace}.data_ptr()")
            elif a.what == "size":
                values.append(self.text.name("size", dispatch.sizes[a.tensor]))
            elif a.what == "stride":
                values.append(self.text.name("stride", self._tensors[a.tensor].stride(a.dim)))
            elif isinstance(self._tensors[a.tensor], (int, float)):
                values.append(self.number(a.tensor, int if a.type == "i64" else float))
            else:  # a number on the device
                values.append(self.pointer(a.tensor))
        return values

    def function(self, general: Callable[[Mapping[str, Any]], None], hooks: Any) -> Callable[..., None]:
        """The function. `general` launches on any tensors by name. `hooks`: what may listen to launches of Triton's kernels,
        `knobs.runtime`; None where there is no such kernel."""
        known = self.text.known
        known |= {"general": general, "refused": self._refused, "REFUSALS": REFUSALS}
        body, self.text.lines = self.text.lines, []
        if hooks is not None:
            from triton.runtime import driver

            known |= {"hooks": hooks, "enter": hooks.launch_enter_hook, "leave": hooks.launch_exit_hook}
            heard = "".join(f" or {n}.calls" for n in ("enter", "leave") if hasattr(known[n], "calls"))
            self.unless(
                f"refused or hooks.launch_enter_hook is not enter or hooks.launch_exit_hook is not leave{heard}"
            )
            self.text.line(f"stream = {self.text.name('current', driver.active.get_current_stream)}({self.index})")
        for condition in dict.fromkeys(self._numbers):
            self.unless(condition)
        self.text.lines += body
        made: Callable[..., None] = self.text.function(f"launch({', '.join(self._places[n] for n in self._names)})")
        return made


def _empty(device: Any, size: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    import torch

    return torch.empty_strided(size, strides, dtype=dtype, device=device)


def _nth(encode: Callable[[int, Any], tuple[Any, ...]], which: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda descriptor: encode(which, descriptor)


def _remembering(describe: Callable[[Any], tuple[Any, ...]], found: dict[int, tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Describe a matrix and keep the result by its address."""

    def make(x: Any) -> tuple[Any, ...]:
        if len(found) >= REMEMBERED:
            found.clear()
        found[x.data_ptr()] = made = describe(x)
        return made

    return make
