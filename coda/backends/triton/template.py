"""The text of a whole module: the GEMM (or pointwise) kernel, the epilogue it calls, and the finisher.

    Generated   the text with the arguments of both kernels
    generate    program, problem class and schedule -> Generated; the same input gives the same text

The GEMM kernel walks over tiles in groups of GROUP_M rows of tiles (neighbours share operands in L2): persistently, as one
flattened loop, or one tile per program. A and B are read as `product` says; everything else is read and written by pointers
under masks, from the accumulator's parts.

Where the schedule cuts K into slices (`split_k`), the product is a kernel of its own (see `product`), and the tile kernel is
the epilogue alone: a tile of its own size (`configs.epilogue_tile`), small enough for all multiprocessors to have some, whose
accumulator is the sum of the slabs. It reads its operands before it waits for the product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coda.backends.finishing import arguments as taking
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.finisher import Finisher
from coda.backends.finishing.modules import GENERATOR
from coda.backends.triton import configs
from coda.backends.triton.epilogue import Epilogue, Form
from coda.backends.triton.product import SLABS, Product, matrix
from coda.backends.triton.tiling import Tiling
from coda.primitives.types import Kind
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram


@dataclass(frozen=True)
class Generated:
    """A module's text and what its kernels take."""

    text: str
    kernel: tuple[Argument, ...] | None
    """None where no tile has anything to do."""
    finisher: tuple[Argument, ...] | None
    form: Form
    overlapped: bool
    """Whether the finisher may be launched while the tiles run (it then waits for them on the device): one program per
    tile, where a launch is a large part of the time."""
    product: tuple[Argument, ...] | None = None
    """Where K is cut into slices: of the kernel that fills the slabs. The other one is the epilogue then."""
    chained: bool = False
    """Whether that epilogue may be launched while the product runs."""
    warps: int = 4
    """Of the kernel of the tiles."""


def generate(
    program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None, interpreted: bool
) -> Generated:
    """The module of a program on a class of problems."""
    anatomy = Tiling(program)
    native = configs.has_fp8(arch)
    tile_m, tile_n, warps = schedule.tile_m, schedule.tile_n, schedule.warps
    if schedule.split_k > 1:
        tile_m, tile_n, warps = configs.epilogue_tile(anatomy, problem)
    part = tile_n // schedule.split
    step = anatomy.step(part)
    even = problem.n % (step * schedule.split) == 0
    form = Form(tile_m, part, step, even, native, ahead=schedule.split_k > 1)
    early = configs.has_tma(arch) and not interpreted and not schedule.persistent
    module = _Module(program, problem, schedule, anatomy, form, configs.has_tma(arch) or interpreted, early, warps)
    return module.generated()


class _Module:
    def __init__(
        self,
        program: EpilogueProgram,
        problem: Problem,
        schedule: Schedule,
        anatomy: Tiling,
        form: Form,
        tma: bool,
        early: bool,
        warps: int,
    ) -> None:
        self.program, self.problem, self.schedule, self.anatomy, self.form = program, problem, schedule, anatomy, form
        self.product, self.warps = Product(problem, schedule, tma), warps
        self.gemm = program.kind == "epilogue"
        self.has_kernel = bool(anatomy.tile_outputs or anatomy.statistics)
        self.sliced = schedule.split_k > 1 and self.has_kernel
        self.early, self.chained = early, early and self.sliced
        self.overlapped = early and bool(anatomy.vector_outputs and anatomy.statistics)

    # the module ---------------------------------------------------------------------------------------------------
    def generated(self) -> Generated:
        """All of it."""
        lines = [*self._head()]
        s = self.schedule
        kernel = finisher = product = None
        if self.sliced:
            more, product = self.product.kernel(self.early)
            lines += _sized(more, s, s.tile_m, s.tile_n)
        if self.has_kernel:
            more, kernel = self._tile_kernel()
            lines += _sized(more, s, self.form.tile_m, s.tile_n, self.form.step * s.split)
        if self.anatomy.vector_outputs:
            slot = self.form.step * self.schedule.split
            more, finisher = Finisher(self.anatomy, self.problem, self.form.native_fp8, slot).kernel(self.overlapped)
            lines += more
        text = "\n".join(lines).rstrip() + "\n"
        return Generated(text, kernel, finisher, self.form, self.overlapped, product, self.chained, self.warps)

    def _head(self) -> list[str]:
        s = self.schedule
        layouts = ", ".join(f"{name}: {spec.dtype} {spec.layout}" for name, spec in self.problem.tensors)
        return [
            f'"""Generated for {self.program.kind} program {self.program.name!r}; do not edit.',
            "",
            f"program   {self.program.digest}",
            f"tensors   {layouts}",
            f"schedule  {' '.join(f'{k}={v}' for k, v in s.to_dict().items())}",
            f"generator {GENERATOR}",
            '"""',
            "",
            "import triton",
            "import triton.language as tl",
            *(
                ["from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"]
                if self.overlapped or self.chained
                else []
            ),
            "",
            "from coda.backends.finishing import maths",
            "from coda.backends.finishing.partials import combine, combine_logsumexp, combine_moments, merge_logsumexp",
            "from coda.backends.triton.pieces import fold_part, halves, logsumexp_part, merge, merge_moments, moments_part",
            "from coda.backends.triton.pieces import packed, paired, pairs_at, segment, select_part, slice_of, spread",
            "from coda.backends.triton.pieces import summed, tile_at, to_slab, unpacked, unpaired, wide_segment",
            "",
            "",
            "",
        ]

    # the tile kernel ----------------------------------------------------------------------------------------------
    def _tile_kernel(self) -> tuple[list[str], tuple[Argument, ...]]:
        epilogue = Epilogue(self.anatomy, self.problem, self.form)
        body, shares = epilogue.write()
        reading, inputs = epilogue.read()
        self.epilogue, self.inputs, self.shares = epilogue, inputs, shares
        arguments = self._operands(epilogue.used)
        for output in self.anatomy.tile_outputs:
            arguments += matrix(f"{output.name}_out", f"out.{output.name}", self.problem, self.form.native_fp8)
        if self.anatomy.statistics:
            arguments += [Argument("partials", "workspace", type="*fp32")]
        sizes = [Argument("M", "size", "m"), Argument("N", "size", "n")]
        inner = [a.name for a in arguments + sizes]
        acc = ["acc"] if self.gemm else []
        text = []
        if inputs:
            text += [
                "@triton.jit",
                f"def inputs({', '.join(['row0', 'col0', *inner])}):",
                '    """Tiles that one part of a tile reads."""',
                *("    " + line for line in reading),
                f"    return {', '.join(inputs)}",
                "",
                "",
            ]
        every = [
            *acc,
            *inputs,
            "row0",
            "col0",
            "tile_m",
            "tile_n",
            "tiles_m",
            "tiles_n",
            *inner,
            "ALIASED: tl.constexpr",
        ]
        text += [
            "@triton.jit",
            f"def epilogue({', '.join(every)}):",
            f'    """{"What follows the product, on one part of a tile." if self.gemm else "One tile."}"""',
            *("    " + line for line in body),
            *([f"    return {', '.join(shares)}"] if shares else []),
            "",
            "",
        ]
        call = ", ".join(inner)
        product: list[Argument] = []
        if self.sliced:
            sizes = [*sizes, Argument("slabs", "workspace", type="*fp32"), SLABS]
        elif self.gemm:
            product, sizes = self.product.arguments(), [*sizes, Argument("K", "size", "k")]
        taken = product + arguments + sizes
        text += [
            taking.decorator(taken),
            f"def tile_kernel({', '.join([a.name for a in taken] + ['ALIASED: tl.constexpr'])}):",
        ]
        if self.overlapped:
            text.append("    gdc_launch_dependents()  # the finisher may be made ready")
        text += ["    " + line for line in self._body(call)]
        return [*text, "", ""], tuple(taken)

    def _operands(self, used: set[str]) -> list[Argument]:
        arguments: list[Argument] = []
        for operand in self.program.operands:
            name = operand.name
            if name not in used:
                continue
            if operand.kind is Kind.SCALAR:
                arguments.append(taking.scalar(operand))
            elif operand.kind is Kind.TILE:
                arguments += matrix(f"{name}_ptr", name, self.problem, self.form.native_fp8)
            else:
                arguments += taking.vector(f"{name}_ptr", name, self.problem, self.form.native_fp8)
        return arguments

    # bodies -------------------------------------------------------------------------------------------------------
    def _body(self, call: str) -> list[str]:
        if self.sliced:
            return self._sliced_body(call)
        return self._gemm_body(call) if self.gemm else self._pointwise_body(call)

    def _gemm_body(self, call: str) -> list[str]:
        s = self.schedule
        lines = ["tiles_m = tl.cdiv(M, TILE_M)", "tiles_n = tl.cdiv(N, STEP_N)"]
        if self.problem.k:
            lines.insert(
                0, "tl.assume(K > 0)  # else the compiler writes the epilogue a second time, for no loop over K"
            )
        tile = [
            "tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP_M)",
            "row0 = tile_m * TILE_M",
            "col0 = tile_n * STEP_N",
            *self.product.lines(),
            *self._epilogues(s.split, call),
        ]
        if not s.persistent:
            return [*lines, "tile = tl.program_id(0)", *tile]
        lines.append("for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):")
        return lines + ["    " + line for line in tile]

    def _epilogues(self, split: int, call: str, between: tuple[str, ...] = ()) -> list[str]:
        """The parts of a tile one after the other, each with its tiles read while the one before is computed; other lines
        behind the reading of the first."""

        def read(part: int) -> list[str]:
            names = ", ".join(f"{name}_{part}" for name in self.inputs)
            return [f"{names} = inputs(row0, {at(part)}, {call})"] if names and part < split else []

        def at(part: int) -> str:
            return f"col0 + {part * self.form.step}" if part else "col0"

        lines = [*read(0), *between, *self._parts("acc", split)]
        for part in range(split):
            acc = [self._part_names(split)[part]] if self.gemm else []
            inputs = [f"{name}_{part}" for name in self.inputs]
            shares = ", ".join(f"{name}_{part}" for name in self.shares)
            places = ["row0", at(part), "tile_m", "tile_n", "tiles_m", "tiles_n"]
            lines += read(part + 1)
            lines.append(
                f"{shares + ' = ' if shares else ''}epilogue({', '.join([*acc, *inputs, *places])}, {call}, ALIASED)"
            )
        return lines + self.epilogue.merge(split)

    def _part_names(self, split: int) -> list[str]:
        return ["acc"] if split == 1 else [f"acc_{i}" for i in range(split)]

    def _parts(self, name: str, split: int) -> list[str]:
        """Cut the accumulator into halves, and those again."""
        if split == 1:
            return []
        lines, names = [], [name]
        while len(names) < split:
            final = len(names) * 2 == split
            cut = [f"acc_{i}" if final else f"acc_{len(names) * 2}_{i}" for i in range(len(names) * 2)]
            lines += [f"{cut[2 * i]}, {cut[2 * i + 1]} = halves({n})" for i, n in enumerate(names)]
            names = cut
        return ["# parts of the accumulator: fewer registers are live at a time", *lines]

    def _pointwise_body(self, call: str, between: tuple[str, ...] = ()) -> list[str]:
        return [
            "tiles_m = tl.cdiv(M, TILE_M)",
            "tiles_n = tl.cdiv(N, STEP_N)",
            "tile = tl.program_id(0)",
            "tile_m = tile // tiles_n",
            "tile_n = tile % tiles_n",
            "row0 = tile_m * TILE_M",
            "col0 = tile_n * STEP_N",
            *self._epilogues(1, call, between),
        ]

    def _sliced_body(self, call: str) -> list[str]:
        """As a pointwise program, with the sum of the slabs for `acc`."""
        lead = f"tl.cdiv(N, {self.schedule.tile_n}) * {self.schedule.tile_n}"
        wait = ("gdc_wait()  # for the end of the product",) if self.chained else ()
        acc = f"acc = summed(slabs + slabs_at, row0, col0, M, {lead}, TILE_M, {self.form.part_n}, SLICES)"
        return self._pointwise_body(call, (*wait, acc))


def _sized(lines: list[str], schedule: Schedule, tile_m: int, tile_n: int, step_n: int = 0) -> list[str]:
    """With numbers in place of a kernel's sizes."""
    sizes = {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": schedule.tile_k, "STEP_N": step_n}
    sizes |= {"GROUP_M": schedule.group_m, "SLICES": schedule.split_k}
    return [re.sub(r"\b[A-Z]+(?:_[A-Z])?\b", lambda name: str(sizes.get(name[0], name[0])), line) for line in lines]
