"""The text of a whole module: the GEMM (or pointwise) kernel, the epilogue it calls, and the finisher.

    Generated   the text with the arguments of both kernels
    generate    program, problem class and schedule -> Generated; the same input gives the same text

The GEMM kernel walks over tiles in groups of GROUP_M rows of tiles (neighbours share operands in L2): persistently, as one
flattened loop, or one tile per program. A and B come through tensor descriptors (TMA) where strides and alignment allow,
else through pointers; both fill with zeros beyond the matrix, so that a ragged K needs no other care. Everything else is
read and written by pointers under masks, from the accumulator's parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coda.backends.finishing import arguments as taking
from coda.backends.finishing import lowering
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.finisher import Finisher
from coda.backends.finishing.modules import GENERATOR
from coda.backends.triton import configs
from coda.backends.triton.epilogue import Epilogue, Form
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


def generate(
    program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None, interpreted: bool
) -> Generated:
    """The module of a program on a class of problems."""
    anatomy = Tiling(program)
    native = configs.has_fp8(arch)
    part = schedule.tile_n // schedule.split
    step = anatomy.step(part)
    form = Form(schedule.tile_m, part, step, problem.n % (step * schedule.split) == 0, native)
    early = configs.has_tma(arch) and not interpreted and not schedule.persistent
    module = _Module(program, problem, schedule, anatomy, form, configs.has_tma(arch) or interpreted, early)
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
    ) -> None:
        self.program, self.problem, self.schedule, self.anatomy, self.form = program, problem, schedule, anatomy, form
        self.tma = tma and schedule.tma and min(problem.m, problem.n, problem.k) > 0
        self.gemm = program.kind == "epilogue"
        self.has_kernel = bool(anatomy.tile_outputs or anatomy.statistics)
        self.overlapped = early and bool(anatomy.vector_outputs and anatomy.statistics)

    # the module ---------------------------------------------------------------------------------------------------
    def generated(self) -> Generated:
        """All of it."""
        lines = [*self._head()]
        kernel = finisher = None
        if self.has_kernel:
            more, kernel = self._tile_kernel()
            lines += more
        if self.anatomy.vector_outputs:
            slot = self.form.step * self.schedule.split
            more, finisher = Finisher(self.anatomy, self.problem, self.form.native_fp8, slot).kernel(self.overlapped)
            lines += more
        s, text = self.schedule, "\n".join(lines).rstrip() + "\n"
        sizes = {"TILE_M": s.tile_m, "TILE_N": s.tile_n, "TILE_K": s.tile_k, "GROUP_M": s.group_m}
        for name, value in {**sizes, "STEP_N": self.form.step * s.split}.items():
            text = re.sub(rf"\b{name}\b", str(value), text)
        return Generated(text, kernel, finisher, self.form, self.overlapped)

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
            *(["from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"] if self.overlapped else []),
            "",
            "from coda.backends.finishing import maths",
            "from coda.backends.finishing.partials import combine, combine_logsumexp, merge_logsumexp",
            "from coda.backends.finishing.partials import moments_mean, moments_variance",
            "from coda.backends.triton.pieces import fold_part, halves, logsumexp_part, merge, merge_moments, moments_part",
            "from coda.backends.triton.pieces import packed, paired, pairs_at, segment, select_part, spread, tile_at",
            "from coda.backends.triton.pieces import unpacked, unpaired, wide_segment",
            "",
            "",
            "",
        ]

    # the tile kernel ----------------------------------------------------------------------------------------------
    def _tile_kernel(self) -> tuple[list[str], tuple[Argument, ...]]:
        epilogue = Epilogue(self.anatomy, self.problem, self.form)
        reading, inputs = epilogue.read()
        body, shares = epilogue.write()
        self.epilogue, self.inputs, self.shares = epilogue, inputs, shares
        arguments = self._operands(epilogue.used)
        for output in self.anatomy.tile_outputs:
            arguments += self._matrix(f"{output.name}_out", f"out.{output.name}")
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
        product = self._product_arguments() if self.gemm else []
        if self.gemm:
            sizes = [*sizes, Argument("K", "size", "k")]
        taken = product + arguments + sizes
        text += [
            taking.decorator(taken),
            f"def tile_kernel({', '.join([a.name for a in taken] + ['ALIASED: tl.constexpr'])}):",
        ]
        if self.overlapped:
            text.append("    gdc_launch_dependents()  # the finisher may be made ready")
        text += ["    " + line for line in (self._gemm_body(call) if self.gemm else self._pointwise_body(call))]
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
                arguments += self._matrix(f"{name}_ptr", name)
            else:
                arguments += taking.vector(f"{name}_ptr", name, self.problem, self.form.native_fp8)
        return arguments

    def _matrix(self, name: str, tensor: str) -> list[Argument]:
        layout = self.problem.spec(tensor).layout
        if layout == "any":
            strides = [
                Argument(f"{name}_stride_m", "stride", tensor, dim=0),
                Argument(f"{name}_stride_n", "stride", tensor, dim=1),
            ]
        else:
            strides = [Argument(f"{name}_stride", "stride", tensor, dim=0 if layout == "row" else 1)]
        return [taking.pointer(name, tensor, self.problem, self.form.native_fp8), *strides]

    # the product --------------------------------------------------------------------------------------------------
    def _by_tma(self, tensor: str) -> bool:
        spec = self.problem.spec(tensor)
        return self.tma and spec.aligned and spec.layout != "any"

    def _product_arguments(self) -> list[Argument]:
        if self.problem.k == 0:
            return []
        arguments: list[Argument] = []
        s = self.schedule
        for name, shape in (("a", (s.tile_m, s.tile_k)), ("b", (s.tile_k, s.tile_n))):
            spec = self.problem.spec(name)
            if not self._by_tma(name):
                arguments += self._matrix(name, name)
                continue
            swapped = spec.layout == "col"
            block = shape[::-1] if swapped else shape
            kind = f"tensordesc<{lowering.TRITON_NAMES[spec.dtype]}[{block[0]}, {block[1]}]>"
            arguments.append(Argument(name, "descriptor", name, kind, block=block, swapped=swapped))
        return arguments

    def _strides(self, name: str) -> tuple[str, str]:
        return {
            "row": (f"{name}_stride", ""),
            "col": ("", f"{name}_stride"),
            "any": (f"{name}_stride_m", f"{name}_stride_n"),
        }[self.problem.spec(name).layout]

    def _load(self, name: str) -> tuple[list[str], str]:
        """Lines before the loop over K, and the expression inside it."""
        first = "row0" if name == "a" else "col0"
        if self._by_tma(name):
            swapped = self.problem.spec(name).layout == "col"
            corner = [first, "k * TILE_K"] if (name == "a") is not swapped else ["k * TILE_K", first]
            return [], f"{name}.load([{', '.join(corner)}])" + (".T" if swapped else "")
        outer, inner = self._strides(name)
        ragged_k = self.problem.k % self.schedule.tile_k != 0
        size, tile = ("M", "TILE_M") if name == "a" else ("N", "TILE_N")
        at, ok, k = f"{name}_at", f"{name}_ok", "(k * TILE_K + tl.arange(0, TILE_K)).to(tl.int64)"
        setup = [f"{at} = ({first} + tl.arange(0, {tile})).to(tl.int64)", f"{ok} = {at} < {size}"]
        if name == "a":
            place = f"{_by('a_at[:, None]', outer)} + {_by(f'{k}[None, :]', inner)}"
            masks = ["a_ok[:, None]"] + (["(tl.arange(0, TILE_K) < K - k * TILE_K)[None, :]"] if ragged_k else [])
        else:
            place = f"{_by(f'{k}[:, None]', outer)} + {_by('b_at[None, :]', inner)}"
            masks = ["b_ok[None, :]"] + (["(tl.arange(0, TILE_K) < K - k * TILE_K)[:, None]"] if ragged_k else [])
        return setup, f"tl.load({name} + {place}, mask={' & '.join(masks)}, other=0.0)"

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
            *self._product(),
            *self._epilogues(s.split, call),
        ]
        if not s.persistent:
            return [*lines, "tile = tl.program_id(0)", *tile]
        lines.append("for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):")
        return lines + ["    " + line for line in tile]

    def _epilogues(self, split: int, call: str) -> list[str]:
        """The parts of a tile one after the other, each with its tiles read while the one before is computed."""

        def read(part: int) -> list[str]:
            names = ", ".join(f"{name}_{part}" for name in self.inputs)
            return [f"{names} = inputs(row0, {at(part)}, {call})"] if names and part < split else []

        def at(part: int) -> str:
            return f"col0 + {part * self.form.step}" if part else "col0"

        lines = [*read(0), *self._parts("acc", split)]
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

    def _product(self) -> list[str]:
        lines = ["acc = tl.zeros((TILE_M, TILE_N), tl.float32)"]
        if self.problem.k == 0:
            return lines
        setup_a, load_a = self._load("a")
        setup_b, load_b = self._load("b")
        precision = ', input_precision="ieee"' if self.problem.dtype == "float32" else ""
        return [
            *lines,
            *setup_a,
            *setup_b,
            "for k in range(tl.cdiv(K, TILE_K)):",
            f"    x = {load_a}",
            f"    y = {load_b}",
            f"    acc = tl.dot(x, y, acc{precision})",
        ]

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

    def _pointwise_body(self, call: str) -> list[str]:
        return [
            "tiles_m = tl.cdiv(M, TILE_M)",
            "tiles_n = tl.cdiv(N, STEP_N)",
            "tile = tl.program_id(0)",
            "tile_m = tile // tiles_n",
            "tile_n = tile % tiles_n",
            "row0 = tile_m * TILE_M",
            "col0 = tile_n * STEP_N",
            *self._epilogues(1, call),
        ]


def _by(text: str, stride: str) -> str:
    return f"{text} * {stride}" if stride else text
