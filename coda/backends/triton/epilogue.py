"""The text of a tile's epilogue: from a part of the accumulator (or from loaded tiles alone) to its stores and partials.

    Form       the shape of the part that it works on, and how tensors are laid out
    Epilogue   writes the body, one line per node

How a value is held: a scalar as a 0-d number; a col and a row as 1-d vectors, widened where they meet a tile; a tile as
(TILE_M, columns); a segment of a power of two as (TILE_M, groups), of any other size as a tile whose columns repeat the
number. Tiles are read first, all of them, so that an output may share memory with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from coda.backends.triton import lowering
from coda.backends.triton.analysis import Anatomy, Statistic, is_grouped
from coda.backends.triton.vectors import Axis, Vectors, suffix, times
from coda.primitives.types import DType, Kind, Type
from coda.primitives.value import OPS, Node
from coda.problem import Problem
from coda.program import Output


@dataclass(frozen=True)
class Form:
    """The shape of the part of a tile that an epilogue works on."""

    tile_m: int
    part_n: int
    """Columns of width 1 that are held; a power of two."""
    step: int
    """Columns that are used; fewer than `part_n` where segments would be cut."""
    even_n: bool
    """Whether N is a multiple of the whole tile: no column needs a mask."""
    native_fp8: bool


class Epilogue(Vectors):
    """Writes the body of the function `epilogue`."""

    def __init__(self, anatomy: Anatomy, problem: Problem, form: Form) -> None:
        super().__init__(anatomy.program, problem, form.native_fp8)
        self.anatomy, self.form = anatomy, form
        self.rows = Axis("rows", "row_ok")
        self.tiles: dict[int, str] = {}

    def write(self) -> list[str]:
        """The lines."""
        self._positions()
        for i in self.anatomy.in_tile:
            node = self.program.nodes[i]
            if node.op == "operand" and node.type.kind is Kind.TILE:
                self._read(node)
        if self.anatomy.tile_outputs:
            self.line("if ALIASED:", "an output shares memory with a tile: read everything before the first store")
            self.line("    tl.debug_barrier()")
        for i in self.anatomy.in_tile:
            for s in self.anatomy.statistics:
                if s.source == i:
                    self._partial(s)
            for output in self.anatomy.tile_outputs:
                if output.node == i:
                    self._store(output)
        return self.lines

    # positions --------------------------------------------------------------------------------------------------
    def _positions(self) -> None:
        self.line("rows = row0 + tl.arange(0, TILE_M)")
        self.line("row_ok = rows < M")
        self.line("rows64 = rows.to(tl.int64)")
        if self.anatomy.statistics:
            self.line("m64 = tl.cast(M, tl.int64)")

    def columns(self, width: Fraction, size: int = 1) -> Axis:
        """The columns of one width (or groups of `size` of them); written when first asked for."""
        name = "cols" + suffix(width) + (f"_by{size}" if size > 1 else "")
        if name in self._axes:
            return self._axes[name]
        count, used = int(self.form.part_n * width) // size, int(self.form.step * width) // size
        over = f" // {size}" if size > 1 else ""
        first, whole = times(width, "col0"), times(width, "N")
        if size > 1:
            first, whole = f"({first}){over}", f"({whole}){over}"
        self.line(f"{name} = {first} + tl.arange(0, {count})")
        if self.form.even_n and used == count:
            self.line(f"{name}_ok = tl.full(({count},), 1, tl.int1)", "N is a multiple of the tile")
        else:
            inside = f"({name} < {whole}) & (tl.arange(0, {count}) < {used})" if used < count else f"{name} < {whole}"
            self.line(f"{name}_ok = {inside}")
        self._axes[name] = Axis(name, f"{name}_ok")
        return self._axes[name]

    # reading and writing matrices -------------------------------------------------------------------------------
    def _place(self, tensor: str, layout: str, axis: Axis) -> str:
        """The address of a matrix's elements."""
        if layout == "row":
            return f"{tensor} + rows64[:, None] * {tensor}_stride + {axis.at}[None, :]"
        if layout == "col":
            return f"{tensor} + rows[:, None] + {axis.at}.to(tl.int64)[None, :] * {tensor}_stride"
        return f"{tensor} + rows64[:, None] * {tensor}_stride_m + {axis.at}.to(tl.int64)[None, :] * {tensor}_stride_n"

    def _read(self, node: Node) -> None:
        name = str(node.attr("name"))
        self.used.add(name)
        axis, spec = self.columns(node.type.width), self.spec(name)
        place = self._place(f"{name}_ptr", spec.layout, axis)
        other = "0.0" if "float" in spec.dtype and (self.native_fp8 or spec.dtype not in lowering.FP8) else "0"
        self.line(f"{name}_in = tl.load({place}, mask=row_ok[:, None] & {axis.ok}[None, :], other={other})")

    def _store(self, output: Output) -> None:
        node = self.program.nodes[output.node]
        t = node.type
        dtype = self.spec(f"out.{output.name}").dtype
        name = f"{output.name}_out"
        text = lowering.stored(self.tile(output.node), t.dtype, dtype, output.saturate, self.native_fp8)
        layout = self.spec(f"out.{output.name}").layout
        if t.kind is Kind.SEGMENT and not is_grouped(t):
            axis = self.columns(t.width)
            by = f"{axis.at}_by{t.size}"
            if by not in self._axes:
                self.line(f"{by} = {axis.at} // {t.size}")
                self.line(f"{by}_ok = {axis.ok} & ({axis.at} % {t.size} == 0)", "the first column of a group writes it")
                self._axes[by] = Axis(by, f"{by}_ok")
            axis = self._axes[by]
        else:
            axis = self.columns(t.width, t.size or 1)
        self.line(
            f"tl.store({self._place(name, layout, axis)}, {text}, mask=row_ok[:, None] & {axis.ok}[None, :])",
            f"-> {output.name}",
        )

    # values of the running tile ---------------------------------------------------------------------------------
    def tile(self, index: int) -> str:
        """The name of a tile or segment."""
        if index not in self.tiles:
            node = self.program.nodes[index]
            if node.op == "acc":
                self.tiles[index] = "acc"
            elif node.op == "unpair":
                self.tiles[index] = self._half(node)
            else:
                text = self._tile_text(node)
                self.tiles[index] = f"v{index}"
                self.line(f"v{index} = {text}", formula(self.program.nodes, node))
        return self.tiles[index]

    def _tile_text(self, node: Node) -> str:
        t = node.type
        if node.op == "operand":
            name = str(node.attr("name"))
            return lowering.loaded(f"{name}_in", t.dtype, self.spec(name).dtype, self.native_fp8)
        if node.op == "pair":
            return f"paired({self._full(node.args[0], node, t)}, {self._full(node.args[1], node, t)})"
        if node.op.startswith("segment_"):
            return self._segment(node)
        return self.elementwise(node, [self._beside(i, t) for i in node.args])

    def _half(self, node: Node) -> str:
        """One half of a pair; both are written at once."""
        (source,) = node.args
        even, odd = f"v{source}_even", f"v{source}_odd"
        if even not in self._axes:
            self.line(f"{even}, {odd} = unpaired({self.tile(source)})", "columns 0, 2, … and 1, 3, …")
            self._axes[even] = Axis(even, "")
        return odd if node.attr("odd") else even

    def _segment(self, node: Node) -> str:
        fold = node.op.removeprefix("segment_")
        how = "segment" if is_grouped(node.type) else "wide_segment"
        text = f'{how}({self.tile(node.args[0])}, {node.type.size}, "{"sum" if fold == "mean" else fold}")'
        return f"{text} / {node.type.size}.0" if fold == "mean" else text

    def _beside(self, index: int, t: Type) -> str:
        """A value as it is written beside others of type `t`."""
        own = self.program.nodes[index].type
        if own.kind is Kind.SCALAR:
            return self.vector(index, None)
        if own.kind is Kind.COL:
            return f"{self.vector(index, self.rows)}[:, None]"
        if own.kind is Kind.ROW:
            return f"{self.vector(index, self.columns(own.width))}[None, :]"
        if own.kind is Kind.SEGMENT and t.kind is Kind.TILE and is_grouped(own):
            return f"spread({self.tile(index)}, {own.size})"
        return self.tile(index)

    def _full(self, index: int, pair: Node, t: Type) -> str:
        """A value as a whole tile of half the width of a pair."""
        own = self.program.nodes[index].type
        if own.kind is Kind.TILE:
            return self.tile(index)
        shape = f"(TILE_M, {int(self.form.part_n * t.width) // 2})"
        if self.program.nodes[index].op == "const":
            value = self.program.nodes[index].attr("value")
            return f"tl.full({shape}, {lowering.literal(value)}, {lowering.TYPES[own.dtype]})"  # type: ignore[arg-type]
        return f"tl.broadcast_to({self._beside(index, t)}, {shape})"

    # statistics -------------------------------------------------------------------------------------------------
    def _partial(self, s: Statistic) -> None:
        value = self.tile(s.source)
        width = self.anatomy.width(s)
        axis = self.columns(width)
        if s.axis == "col":
            self.line(f'part = fold_part({value}, row_ok[:, None], "{s.fold}", 0)', f"{s.fold} over the tile's rows")
            start = self._tail(s)
            self.line(
                f"tl.store(partials + {start} + (tl.cast(tile_m, tl.int64) * ({times(width, 'N')}) + {axis.at}), part, mask={axis.ok})"
            )
            return
        self.used.add("slots")
        inside = f"{axis.ok}[None, :]"
        if s.fold == "select":
            self._select(s, value, width)
            return
        first = dict(self.anatomy.sliced())[s]
        if s.planes == 1:
            self.line(f'part = fold_part({value}, {inside}, "{s.fold}", 1)', f"{s.fold} over the tile's columns")
            parts = ["part"]
        else:
            parts = ["part", "part_2"]
            if s.fold == "moments":
                used = int(self.form.step * width)
                self.line(f"count = tl.minimum(tl.maximum({times(width, 'N')} - {times(width, 'col0')}, 0), {used})")
                self.line(f"part, part_2 = moments_part({value}, {inside}, count)")
            else:
                self.line(f"part, part_2 = logsumexp_part({value}, {inside})")
        for offset, name in enumerate(parts):
            self.line(f"tl.store(partials + ({first + offset} * slots + slot) * m64 + rows, {name}, mask=row_ok)")

    def _select(self, s: Statistic, value: str, width: Fraction) -> None:
        wanted = self.vector(s.index, self.rows)
        used = int(self.form.step * width)
        self.line(f"count = tl.minimum({times(width, 'N')} - {times(width, 'col0')}, {used})")
        typed = self._typed(s.index, self.rows) if self.program.nodes[s.index].op == "const" else wanted
        self.line(f"part, mine = select_part({value}, {typed}, {times(width, 'col0')}, count)")
        place = f"({self.anatomy.row_planes} * slots + {self.anatomy.selections.index(s)}) * m64 + rows"
        self.line(f"tl.store(partials + {place}, part, mask=row_ok & mine)", "only the tile that owns the column")

    def _tail(self, s: Statistic) -> str:
        """Where the partials of a statistic of columns begin."""
        return col_partials(self.anatomy, s)


def col_partials(anatomy: Anatomy, s: Statistic) -> str:
    """Where the partials of a statistic of columns begin in the workspace, as text."""
    rows = f"({anatomy.row_planes} * slots + {len(anatomy.selections)}) * m64"
    start = anatomy.col_start(s)
    if not start:
        return rows
    return f"{rows} + tl.cast(tiles_m, tl.int64) * ({start.numerator} * N // {start.denominator})"


def formula(nodes: tuple[Node, ...], node: Node) -> str:
    """A comment where the code does not read like the formula."""
    if node.op == "operand":
        return ""
    text = OPS[node.op].formula
    if (
        "maths." in lowering.TABLE.get(node.op, "")
        or node.op.startswith(("segment", "cast"))
        or node.type.dtype is DType.BOOL
    ):
        names = [
            f"v{i}" if nodes[i].op not in ("acc", "const") else str(dict(nodes[i].attrs).get("value", "acc"))
            for i in node.args
        ]
        return text.format(*names, **dict(node.attrs))
    return ""
