"""The text of the finisher: one small kernel that combines every statistic's partials and writes every vector output.

    Finisher       writes the kernel `finish_kernel`, and says what it takes
    col_partials   where the partials of a statistic of columns begin, for whoever writes them
    sections       how many programs the finisher runs
    options        what Triton compiles and launches it with

Programs 0 … tell by their number which vector they work on: first the rows of the matrix, then the columns of each width
in use. LANES numbers per program; partials are read slot by slot in a fixed order, so two runs agree bit by bit. Without a
tile (an empty matrix) there is no slot, and what is left are the identities: 0, -inf, NaN for a mean.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coda.backends.finishing import arguments, lowering
from coda.backends.finishing.anatomy import Anatomy, Statistic, statistic
from coda.backends.finishing.arguments import Argument
from coda.backends.finishing.vectors import Axis, Vectors, suffix, times
from coda.primitives.types import Kind
from coda.problem import Problem
from coda.program import EpilogueProgram, Output

LANES = 32


class Finisher(Vectors):
    """Writes the finisher of one program. `slot`: how many columns (of width 1) a whole tile contributes to a statistic of
    rows; only moments ask. A backend whose tiles contribute something else overrides `finished`."""

    def __init__(self, anatomy: Anatomy, problem: Problem, native_fp8: bool, slot: int | None = None) -> None:
        super().__init__(anatomy.program, problem, native_fp8)
        self.anatomy, self.slot = anatomy, slot
        self._shared: set[str] = set()
        """Names that are written in the section under way."""

    def kernel(self, overlapped: bool) -> tuple[list[str], tuple[Argument, ...]]:
        """The lines of the kernel and its arguments. `overlapped`: it waits on the device for the kernel before it, with
        `gdc_wait`, which the module then imports."""
        body = self.write()
        if overlapped:
            body.insert(0, "gdc_wait()  # for the end of the tiles")
        taken = self._arguments()
        head = [arguments.decorator(taken), f"def finish_kernel({', '.join(a.name for a in taken)}):"]
        return head + ["    " + line for line in body], tuple(taken)

    def _arguments(self) -> list[Argument]:
        """Known once the body is written: operands that it reads, outputs, partials, sizes."""
        taken: list[Argument] = []
        for operand in self.program.operands:
            if operand.name not in self.used:
                continue
            if operand.kind is Kind.SCALAR:
                taken.append(arguments.scalar(operand))
            else:
                taken += arguments.vector(f"{operand.name}_ptr", operand.name, self.problem, self.native_fp8)
        for output in self.anatomy.vector_outputs:
            taken += arguments.vector(f"{output.name}_out", f"out.{output.name}", self.problem, self.native_fp8)
        if self.anatomy.statistics:
            taken += [
                Argument("partials", "workspace", type="*fp32"),
                Argument("tiles_m", "size", "tiles_m"),
                Argument("tiles_n", "size", "tiles_n"),
            ]
        return [*taken, Argument("M", "size", "m"), Argument("N", "size", "n")]

    def finished(self, index: int, axis: Axis) -> str:
        """A statistic, combined from its partials."""
        node = self.program.nodes[index]
        s = statistic(node)
        assert s is not None
        width = self.anatomy.width(s)
        count = times(width, "N") if s.axis == "row" else "M"
        if s.fold == "select":
            return self._selected(s.index, axis, width, self.anatomy.selections.index(s))
        if s.axis == "col":
            where = f"tiles_m, {times(width, 'N')}, {axis.at}, {axis.ok}"
            text = f'combine(partials + {col_partials(self.anatomy, s)}, {where}, "{s.fold}")'
            return f"{text} / tl.cast({count}, tl.float32)" if node.op == "col_mean" else text
        first = dict(self.anatomy.sliced())[s]
        planes = ", ".join(f"partials + {first + i} * tiles_n * m64" for i in range(s.planes))
        where = f"tiles_n, M, {axis.at}, {axis.ok}"
        if s.fold == "logsumexp":
            return f"combine_logsumexp({planes}, {where})"
        if s.fold == "moments":
            assert self.slot is not None
            step = int(self.slot * width)
            mean, variance = f"mean_{first}", f"variance_{first}"
            self._once(f"{mean}, {variance}", f"combine_moments({planes}, {where}, {count}, {step})")
            return mean if node.attr("part") == "mean" else variance
        text = f'combine({planes}, {where}, "{s.fold}")'
        return f"{text} / tl.cast({count}, tl.float32)" if node.op == "row_mean" else text

    def _selected(self, index: int, axis: Axis, width: Fraction, place: int) -> str:
        """Read only where the wanted column exists: elsewhere nobody has written."""
        wanted = self._typed(index, axis)
        there = f"v{index}_exists"
        self._once(there, f"{axis.ok} & ({wanted} >= 0) & ({wanted} < {times(width, 'N')})")
        return f"tl.load(partials + ({self.anatomy.row_planes} * tiles_n + {place}) * m64 + {axis.at}, mask={there}, other=0.0)"

    def _once(self, names: str, text: str) -> None:
        """A line that several statistics share."""
        if names not in self._shared:
            self._shared.add(names)
            self.line(f"{names} = {text}")

    def write(self) -> list[str]:
        """The lines of the body."""
        body: list[str] = ["block = tl.program_id(0)", "m64 = tl.cast(M, tl.int64)"]
        sections = self._sections()
        before = ""
        for number, (kind, width, outputs) in enumerate(sections):
            rows = kind is Kind.COL
            name = "rows" if rows else f"cols{suffix(width)}"
            length = "M" if rows else times(width, "N")
            self.lines, self._known, self._axes, self._shared = [], {}, {}, set()
            self.line(f"{name} = {f'(block - {before})' if before else 'block'} * {LANES} + tl.arange(0, {LANES})")
            self.line(f"{name}_ok = {name} < {length}")
            axis = Axis(name, f"{name}_ok")
            for output in outputs:
                self._store(output, axis)
            end = f"end_{name}"
            conditions = [f"block >= {before}"] if before else []
            if number < len(sections) - 1:
                body.append(f"{end} = {before + ' + ' if before else ''}tl.cdiv({length}, {LANES})")
                conditions.append(f"block < {end}")
            if conditions:
                body.append(f"if {' and '.join(conditions)}:")
            body += [("    " if conditions else "") + line for line in self.lines]
            before = end
        return body

    def _sections(self) -> list[tuple[Kind, Fraction, list[Output]]]:
        """Outputs by what they range over, in a fixed order."""
        found: dict[tuple[Kind, Fraction], list[Output]] = {}
        for output in self.anatomy.vector_outputs:
            t = self.program.nodes[output.node].type
            found.setdefault((t.kind, t.width if t.kind is Kind.ROW else Fraction(1)), []).append(output)
        return [
            (kind, width, found[kind, width]) for kind, width in sorted(found, key=lambda k: (k[0] is Kind.ROW, k[1]))
        ]

    def _store(self, output: Output, axis: Axis) -> None:
        dtype = self.spec(f"out.{output.name}").dtype
        text = lowering.stored(
            self.vector(output.node, axis),
            self.program.nodes[output.node].type.dtype,
            dtype,
            output.saturate,
            self.native_fp8,
        )
        at = axis.at
        if self.spec(f"out.{output.name}").layout == "any":
            at = f"{at}.to(tl.int64) * {output.name}_out_stride"
        self.line(f"tl.store({output.name}_out + {at}, {text}, mask={axis.ok})", f"-> {output.name}")


def col_partials(anatomy: Anatomy, s: Statistic) -> str:
    """Where the partials of a statistic of columns begin in the workspace, as text."""
    rows = f"({anatomy.row_planes} * tiles_n + {len(anatomy.selections)}) * m64"
    start = anatomy.col_start(s)
    if not start:
        return rows
    return f"{rows} + tl.cast(tiles_m, tl.int64) * ({start.numerator} * N // {start.denominator})"


def sections(anatomy: Anatomy, m: int, n: int) -> int:
    """How many programs the finisher runs."""
    nodes = anatomy.program.nodes
    lengths = {
        (nodes[o.node].type.kind, nodes[o.node].type.width if nodes[o.node].type.kind is Kind.ROW else Fraction(1))
        for o in anatomy.vector_outputs
    }
    return sum(-(-(m if kind is Kind.COL else int(width * n)) // LANES) for kind, width in lengths)


def options(program: EpilogueProgram, overlapped: bool) -> dict[str, Any]:
    """What Triton compiles and launches the finisher with. `overlapped`: while the kernel before it runs."""
    found = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": program.fast_math}
    return {**found, "launch_pdl": True} if overlapped else found
