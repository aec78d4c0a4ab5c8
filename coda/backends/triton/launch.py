"""From a generated module to running kernels: cross-compilation, and launches that do little Python work.

    Runner       everything a launch needs, worked out once per artifact
    aliasing     a function that says whether an output shares memory with an input
    cross        compile for a GPU that is not here; machine code, registers, local memory, shared memory

The module itself is written and imported by `finishing.modules`, each kernel launched by `finishing.dispatch`.
"""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from coda import env
from coda.backends.finishing.anatomy import Anatomy
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.dispatch import Dispatch, function_of
from coda.backends.finishing.finisher import options, sections
from coda.backends.finishing.refusals import raise_as_compile_error
from coda.backends.finishing.straight import Line
from coda.backends.triton import configs
from coda.backends.triton.template import Generated
from coda.errors import BackendUnavailable, CompileError
from coda.problem import ITEM_BYTES, Problem, Schedule
from coda.program import EpilogueProgram

# launches ---------------------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """A program made ready for one problem."""

    program: EpilogueProgram
    problem: Problem
    schedule: Schedule
    generated: Generated
    module: ModuleType
    sizes: dict[str, int] = field(init=False)
    _product: Dispatch | None = field(init=False)
    """Before the kernel of the tiles, where K is cut into slices."""
    _kernel: Dispatch | None = field(init=False)
    _finisher: Dispatch | None = field(init=False)
    _first: str = field(init=False)
    _grid: dict[int, int] = field(init=False, default_factory=dict)
    _aliased: Callable[[Mapping[str, Any]], bool] = field(init=False)

    def __post_init__(self) -> None:
        p, s, form = self.problem, self.schedule, self.generated.form
        anatomy = Anatomy(self.program)
        tiles_m = -(-p.m // form.tile_m) if p.n else 0
        tiles_n = -(-p.n // (form.step * s.split)) if p.m else 0
        partials = anatomy.workspace(p.m, p.n, tiles_n, tiles_m) if anatomy.statistics else 0
        at = -(-partials // 32) * 32  # aligned, so that slabs move in the widest pieces
        self.sizes = {"m": p.m, "n": p.n, "k": p.k, "tiles_m": tiles_m, "tiles_n": tiles_n, "slabs_at": at}
        self.tiles = tiles_m * tiles_n if self.generated.kernel is not None else 0
        self.vector_blocks = sections(anatomy, p.m, p.n)
        sliced = self.generated.product is not None
        self.slices = s.split_k * -(-p.m // s.tile_m) * -(-p.n // s.tile_n) if sliced and self.tiles else 0
        self.workspace = at + configs.slabs(p, s) if self.slices else max(1, partials) if anatomy.statistics else 0
        self._first = "a" if self.program.kind == "epilogue" else self.program.first_tile.name  # type: ignore[union-attr]
        self.outputs = tuple(f"out.{o.name}" for o in anatomy.tile_outputs)
        self.inputs = tuple(o.name for o in self.program.operands if o.kind == "tile")
        self._aliased = aliasing(self.outputs, self.inputs)
        self.options = {"num_warps": s.warps, "num_stages": s.stages, "enable_fp_fusion": self.program.fast_math}
        self.product_options = dict(self.options)
        if sliced:
            self.options |= {"num_warps": self.generated.warps, "num_stages": 1}
            self.options |= {"launch_pdl": True} if self.generated.chained else {}
        self.finish_options = options(self.program, self.generated.overlapped)
        self._product = self._dispatch("product_kernel", self.generated.product, self.product_options)
        self._kernel = self._dispatch("tile_kernel", self.generated.kernel, self.options)
        self._finisher = self._dispatch("finish_kernel", self.generated.finisher, self.finish_options)

    def _dispatch(
        self, name: str, arguments: tuple[Argument, ...] | None, options: Mapping[str, Any]
    ) -> Dispatch | None:
        if arguments is None:
            return None
        return Dispatch(getattr(self.module, name), arguments, self.problem, self.sizes, options, self.program.name)

    def run(self, tensors: Mapping[str, Any], *, build_only: bool = False) -> None:
        """Launch on the tensors' device and its current stream; nothing waits. `build_only` compiles for it and launches nothing."""
        import torch

        device = tensors[self._first].device
        if device.type == "cuda":
            step = self._build if build_only else self._launch
            if torch.cuda.current_device() == device.index:
                step(tensors, device)
            else:
                with torch.cuda.device(device):
                    step(tensors, device)
            return
        if device.type != "cpu":
            raise BackendUnavailable("triton runs on NVIDIA GPUs", got=str(device))
        if not env.interpreting():
            raise BackendUnavailable(
                "a CPU tensor outside an interpreting process",
                got="TRITON_INTERPRET unset",
                expected="TRITON_INTERPRET=1, set before Triton is imported",
                hint='use backend="reference" on a CPU',
            )
        if build_only:  # what is interpreted is not built
            return
        import numpy

        with numpy.errstate(all="ignore"):  # infinities and NaN are values here, not mistakes
            self._launch(tensors, device)

    def _launch(self, tensors: Mapping[str, Any], device: Any) -> None:
        import torch

        workspace = None
        if self.workspace:
            workspace = torch.empty_strided((self.workspace,), (1,), dtype=torch.float32, device=device)
        for kernel, programs, constants in self._steps(tensors, device):
            kernel(programs, device.index or 0, tensors, workspace, constants)

    def _build(self, tensors: Mapping[str, Any], device: Any) -> None:
        import torch

        workspace = torch.empty(max(1, self.workspace), dtype=torch.float32, device=device)
        for kernel, programs, constants in self._steps(tensors, device):
            kernel.build(programs, tensors, workspace, constants)

    def _steps(self, tensors: Mapping[str, Any], device: Any) -> list[tuple[Dispatch, int, dict[str, Any]]]:
        """Kernels in order, with how many programs of each and its constants."""
        steps: list[tuple[Dispatch, int, dict[str, Any]]] = []
        if self.slices and self._product is not None:
            steps.append((self._product, self.slices, {}))
        if self.tiles and self._kernel is not None:
            steps.append((self._kernel, self._programs(device), {"ALIASED": self._aliased(tensors)}))
        if self.vector_blocks and self._finisher is not None:
            steps.append((self._finisher, self.vector_blocks, {}))
        return steps

    def straight(self, tensors: Mapping[str, Any], names: Sequence[str]) -> Callable[..., None] | None:
        """See `registry.Straight`."""
        device = tensors[self._first].device
        steps = self._steps(tensors, device)
        if not steps or env.interpreting():
            return None
        line = Line(names, tensors, device.index or 0)
        line.aliased(self.outputs, self.inputs, self._aliased(tensors))
        workspace = line.memory(self.workspace) if self.workspace else None
        if not all(line.kernel(kernel, programs, workspace, constants) for kernel, programs, constants in steps):
            return None
        return line.function(self.run, steps[0][0].hooks)

    def _programs(self, device: Any) -> int:
        """One program per tile, or per multiprocessor."""
        if not self.schedule.persistent or self.program.kind == "pointwise":
            return self.tiles
        if device.index not in self._grid:
            self._grid[device.index] = min(self.tiles, multiprocessors(device))
        return self._grid[device.index]


def aliasing(outputs: Iterable[str], inputs: Iterable[str]) -> Callable[[Mapping[str, Any]], bool]:
    """Of a launch's tensors: whether one of these outputs starts where one of these inputs does."""
    read = " or ".join(f"p == tensors[{name!r}].data_ptr()" for name in inputs)
    if not read:
        return lambda tensors: False
    lines = [f"    p = tensors[{name!r}].data_ptr()\n    if {read}: return True" for name in outputs]
    return function_of("aliased(tensors)", [*lines, "    return False"], {})  # type: ignore[no-any-return]


@functools.cache
def multiprocessors(device: Any) -> int:
    """How many programs run at a time; a few in the interpreter, so that its programs loop too."""
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 3


# cross-compilation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """Machine code of one kernel and what it takes."""

    cubin: bytes
    registers: int | None
    spills: int | None
    shared_memory: int


def cross(runner: Runner, arch: str) -> Built:
    """Compile all kernels for an architecture; what is reported is the tile kernel's (the finisher's where there is none).
    Where K is cut, the product's machine code, and of registers, spills and shared memory the larger ones of both."""
    generated = runner.generated
    kernels: tuple[tuple[str, tuple[Argument, ...] | None, dict[str, Any], dict[str, Any]], ...] = (
        ("finish_kernel", generated.finisher, runner.finish_options, {}),
        ("tile_kernel", generated.kernel, runner.options, {"ALIASED": False}),
        ("product_kernel", generated.product, runner.product_options, {}),
    )
    built: dict[str, Built] = {}
    for name, taken, how, constants in kernels:
        if taken is not None:
            built[name] = _compile(runner, getattr(runner.module, name), taken, arch, how, constants)
    if "product_kernel" in built:
        return _both(built["product_kernel"], built["tile_kernel"])
    return built.get("tile_kernel") or built["finish_kernel"]


def _both(product: Built, epilogue: Built) -> Built:
    def most(x: int | None, y: int | None) -> int | None:
        return None if x is None or y is None else max(x, y)

    return Built(
        product.cubin,
        most(product.registers, epilogue.registers),
        most(product.spills, epilogue.spills),
        max(product.shared_memory, epilogue.shared_memory),
    )


def _compile(
    runner: Runner,
    kernel: Any,
    arguments: tuple[Argument, ...],
    arch: str,
    options: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    ones = {
        a.name: 1 for a in arguments if a.what == "size" and runner.sizes[a.tensor] == 1
    }  # a launch compiles them in
    constants = {**constants, **ones}
    signature = {a.name: a.type for a in arguments} | dict.fromkeys(constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(arguments) if _divisible(runner, a)}
    try:
        source = ASTSource(kernel, signature, dict(constants), attrs)
        compiled = triton.compile(source, target=GPUTarget("cuda", configs.capability(arch), 32), options=dict(options))
    except Exception as error:
        raise_as_compile_error(error, runner.program.name)
        raise CompileError(
            f"{runner.program.name}: compiling for {arch} failed", got=f"{type(error).__name__}: {error}"[-2000:]
        ) from error
    cubin = compiled.asm["cubin"]
    shared = int(compiled.metadata.shared)
    if shared > configs.limits(arch).shared:
        raise CompileError(
            f"{runner.program.name}: the kernel does not fit {arch}",
            got=f"{shared} bytes of shared memory",
            expected=f"at most {configs.limits(arch).shared}",
            hint="a schedule with fewer stages, a smaller tile or a larger split",
        )
    registers, spills = resources(cubin)
    return Built(cubin, registers, spills, shared)


def _divisible(runner: Runner, a: Argument) -> bool:
    """What a launch on aligned tensors would tell the compiler."""
    if a.what == "size":
        return runner.sizes[a.tensor] % 16 == 0
    if a.what == "workspace":
        return True
    if a.what not in ("pointer", "stride"):
        return False
    spec = runner.problem.spec(a.tensor)
    if a.what == "pointer":
        return spec.aligned
    return spec.aligned and (runner.problem.n * ITEM_BYTES[spec.dtype]) % 16 == 0 and runner.problem.n % 16 == 0


def resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers and bytes of local memory per thread, read off the machine code; None where the tool is missing."""
    import triton

    tool = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.is_file():
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        run = subprocess.run(
            [str(tool), "--dump-resource-usage", str(path)], capture_output=True, text=True, timeout=60, check=False
        )
    registers, stack = re.search(r"REG:(\d+)", run.stdout), re.search(r"STACK:(\d+)", run.stdout)
    return (int(registers[1]) if registers else None), (int(stack[1]) if stack else None)
