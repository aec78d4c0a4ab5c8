"""The text of a tile's epilogue: from a part of the accumulator (or from loaded tiles alone) to its stores and partials.

    Form       the shape of the part that it works on, and how tensors are laid out
    Epilogue   writes the body, one line per node

How a value is held: a scalar as a 0-d number; a col and a row as 1-d vectors, widened where they meet a tile; a tile as
(TILE_M, columns); a segment of a power of two as (TILE_M, groups), of any other size as a tile whose columns repeat the
number. Tiles are read by a function of their own, one part ahead of the part that is computed: loads are under way while
the tensor cores' result is cut up and the part before is stored. Each part is read before it is written, so that an output
may share memory with a tile. Pairs of which only the halves are wanted move as integers of two columns, in the layout of a
tile of half the width: reshaping them instead moved every number through shared memory, and computed some twice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

from coda.backends.finishing import lowering
from coda.backends.finishing.anatomy import Anatomy, Statistic
from coda.backends.finishing.cheaper import cheaper
from coda.backends.finishing.finisher import col_partials
from coda.backends.finishing.vectors import Axis, Vectors, suffix, times
from coda.primitives.types import DType, Kind, Type
from coda.primitives.value import OPS, Node
from coda.problem import Problem
from coda.program import Output

PACKED = {"bfloat16": "tl.int32", "float16": "tl.int32", "float32": "tl.int64"}
"""The integer that holds two neighbouring elements."""


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
    ahead: bool = False
    """Whether rows and cols are read with the tiles: behind a product that is another kernel, so that only slabs are waited
    for."""


class Epilogue(Vectors):
    """Writes the body of the function `epilogue`."""

    def __init__(self, anatomy: Anatomy, problem: Problem, form: Form) -> None:
        super().__init__(anatomy.program, problem, form.native_fp8)
        self.anatomy, self.form = anatomy, form
        self.rows = Axis("rows", "row_ok")
        self.tiles: dict[int, str] = {}
        self._widths: dict[str, Fraction] = {}
        """Of columns, by the name of their positions."""
        self._vectors: dict[str, tuple[str, str]] = {}
        """Rows and cols that are read ahead, by name: their positions, and the text of their reading."""

    def read(self) -> tuple[list[str], list[str]]:
        """The lines that read tiles, and the names of what was read: a function of its own, which a kernel calls ahead of what
        `write` writes. Written behind it: only then is it known which vectors are read."""
        self.lines, self._axes, names = [], {}, []
        self._positions()
        for i in self.anatomy.in_tile:
            node = self.program.nodes[i]
            if node.op == "operand" and node.type.kind is Kind.TILE:
                self._read(i, node)
                names.append(f"{node.attr('name')}_in")
        for name, (at, text) in self._vectors.items():
            if at in self._widths:
                self.columns(self._widths[at])
            self.line(f"{name} = {text}")
        return self.lines, [*names, *self._vectors]

    def write(self) -> tuple[list[str], list[str]]:
        """The lines that compute and store, and the names of this part's shares in statistics of rows."""
        self.lines, self._axes = [], {}
        self._positions()
        shares: dict[Statistic, list[str]] = {}
        if self.anatomy.tile_outputs:
            self.line("if ALIASED:", "an output shares memory with a tile: read everything before the first store")
            self.line("    tl.debug_barrier()")
        for i in self.anatomy.in_tile:
            for s in self.anatomy.statistics:
                if s.source == i:
                    shares[s] = self._partial(s)
            for output in self.anatomy.tile_outputs:
                if output.node == i:
                    self._store(output)
        return self.lines, [name for s, _ in self.anatomy.sliced() for name in shares[s]]

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
        if width in self._packed_widths and size == 1:
            # four elements per access of every dtype: packed pairs and single elements get one layout, nothing moves
            self.line(f"{name} = tl.max_contiguous({first} + tl.arange(0, {count}), 4)")
        else:
            self.line(f"{name} = {first} + tl.arange(0, {count})")
        if self.form.even_n and used == count:
            self.line(f"{name}_ok = tl.full(({count},), 1, tl.int1)", "N is a multiple of the tile")
        else:
            inside = f"({name} < {whole}) & (tl.arange(0, {count}) < {used})" if used < count else f"{name} < {whole}"
            self.line(f"{name}_ok = {inside}")
        self._axes[name] = Axis(name, f"{name}_ok")
        if size == 1:
            self._widths[name] = width
        return self._axes[name]

    def _operand(self, node: Node, axis: Axis | None) -> str:
        """As everywhere, or by the name under which `read` has read it."""
        text = super()._operand(node, axis)
        if not self.form.ahead or axis is None or (axis.at != self.rows.at and axis.at not in self._widths):
            return text
        name = f"{node.attr('name')}_at_{axis.at}"
        self._vectors[name] = (axis.at, text)
        return name

    @functools.cached_property
    def _packed_widths(self) -> set[Fraction]:
        """Widths in which pairs of columns are moved as integers."""
        nodes = self.program.nodes
        read = {
            nodes[i].type.width / 2
            for i in self.anatomy.in_tile
            if nodes[i].op == "operand" and nodes[i].type.kind is Kind.TILE and self._reads_packed(i)
        }
        return read | {nodes[o.node].type.width / 2 for o in self.anatomy.tile_outputs if self._writes_packed(o)}

    # reading and writing matrices -------------------------------------------------------------------------------
    def _packs(self, tensor: str) -> bool:
        """Whether two neighbouring columns of a tensor can be moved as one integer."""
        spec = self.spec(tensor)
        return spec.layout == "row" and spec.aligned and spec.dtype in PACKED

    def _reads_packed(self, index: int) -> bool:
        """A tile of which only the even and the odd columns are wanted apart."""
        whole = [o.node for o in self.anatomy.tile_outputs] + [s.source for s in self.anatomy.statistics]
        return (
            self._packs(str(self.program.nodes[index].attr("name")))
            and index not in whole
            and all(
                self.program.nodes[i].op == "unpair"
                for i in self.anatomy.in_tile
                if index in self.program.nodes[i].args
            )
        )

    def _writes_packed(self, output: Output) -> bool:
        node = self.program.nodes[output.node]
        return node.op == "pair" and node.type.dtype is DType.FLOAT and self._packs(f"out.{output.name}")

    def _packed_place(self, tensor: str, dtype: str, axis: Axis) -> str:
        """The address of a matrix's pairs of elements."""
        return f"pairs_at({tensor} + rows64[:, None] * {tensor}_stride, {dtype}) + {axis.at}[None, :]"

    def _place(self, tensor: str, layout: str, axis: Axis) -> str:
        """The address of a matrix's elements."""
        if layout == "row":
            return f"{tensor} + rows64[:, None] * {tensor}_stride + {axis.at}[None, :]"
        if layout == "col":
            return f"{tensor} + rows[:, None] + {axis.at}.to(tl.int64)[None, :] * {tensor}_stride"
        return f"{tensor} + rows64[:, None] * {tensor}_stride_m + {axis.at}.to(tl.int64)[None, :] * {tensor}_stride_n"

    def _read(self, index: int, node: Node) -> None:
        name = str(node.attr("name"))
        self.used.add(name)
        spec = self.spec(name)
        if self._reads_packed(index):
            axis = self.columns(node.type.width / 2)
            place = self._packed_place(f"{name}_ptr", PACKED[spec.dtype], axis)
            self.line(f"{name}_in = tl.load({place}, mask=row_ok[:, None] & {axis.ok}[None, :], other=0)")
            return
        axis = self.columns(node.type.width)
        place = self._place(f"{name}_ptr", spec.layout, axis)
        other = "0.0" if "float" in spec.dtype and (self.native_fp8 or spec.dtype not in lowering.FP8) else "0"
        self.line(f"{name}_in = tl.load({place}, mask=row_ok[:, None] & {axis.ok}[None, :], other={other})")

    def _store(self, output: Output) -> None:
        node = self.program.nodes[output.node]
        t = node.type
        dtype = self.spec(f"out.{output.name}").dtype
        name = f"{output.name}_out"
        if self._writes_packed(output):
            half = self.columns(t.width / 2)
            even, odd = (self._full(i, t) for i in node.args)
            place = self._packed_place(name, PACKED[dtype], half)
            value = f'packed({even}, {odd}, "{dtype}")'
            self.line(f"tl.store({place}, {value}, mask=row_ok[:, None] & {half.ok}[None, :])", f"-> {output.name}")
            return
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
            return f"paired({self._full(node.args[0], t)}, {self._full(node.args[1], t)})"
        if node.op.startswith("segment_"):
            return self._segment(node)
        node = cheaper(self.program.nodes, node, self.program.fast_math)
        return self.elementwise(node, [self._beside(i, t) for i in node.args])

    def _half(self, node: Node) -> str:
        """One half of a pair; both are written at once."""
        (source,) = node.args
        even, odd = f"v{source}_even", f"v{source}_odd"
        if even not in self._axes:
            if self.program.nodes[source].op == "operand" and self._reads_packed(source):
                name = str(self.program.nodes[source].attr("name"))
                text = f'unpacked({name}_in, "{self.spec(name).dtype}")'
            else:
                text = f"unpaired({self.tile(source)})"
            self.line(f"{even}, {odd} = {text}", "columns 0, 2, … and 1, 3, …")
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

    def _full(self, index: int, t: Type) -> str:
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
    def _partial(self, s: Statistic) -> list[str]:
        """Fold this part; what belongs to rows is returned by name, for the kernel to merge over the parts of a tile."""
        value = self.tile(s.source)
        width = self.anatomy.width(s)
        axis = self.columns(width)
        if s.axis == "col":
            self.line(f'part = fold_part({value}, row_ok[:, None], "{s.fold}", 0)', f"{s.fold} over the tile's rows")
            start = self._tail(s)
            self.line(
                f"tl.store(partials + {start} + (tl.cast(tile_m, tl.int64) * ({times(width, 'N')}) + {axis.at}), part, mask={axis.ok})"
            )
            return []
        inside = f"{axis.ok}[None, :]"
        if s.fold == "select":
            self._select(s, value, width)
            return []
        first = dict(self.anatomy.sliced())[s]
        names = [f"row_part_{first + i}" for i in range(s.planes)]
        if s.fold == "logsumexp":
            self.line(f"{names[0]}, {names[1]} = logsumexp_part({value}, {inside})")
        elif s.fold == "moments":
            used = int(self.form.step * width)
            self.line(f"count = tl.minimum(tl.maximum({times(width, 'N')} - {times(width, 'col0')}, 0), {used})")
            self.line(f"{names[0]}, {names[1]} = moments_part({value}, {inside}, count)")
        else:
            self.line(f'{names[0]} = fold_part({value}, {inside}, "{s.fold}", 1)', f"{s.fold} over the tile's columns")
        return names

    def merge(self, parts: int) -> list[str]:
        """Lines of the kernel: the shares of all parts of a tile into one, in order, and that one into its slot."""
        lines = []
        for s, first in self.anatomy.sliced():
            planes = [f"row_part_{first + i}" for i in range(s.planes)]
            width = self.anatomy.width(s)
            for part in range(1, parts):
                old, new = (", ".join(f"{plane}_{i}" for plane in planes) for i in (0, part))
                extra = f'"{s.fold}"'
                if s.fold == "logsumexp":
                    extra = ""
                elif s.fold == "moments":
                    step = int(self.form.step * width)
                    extra = f"{times(width, 'N')} - ({times(width, 'col0')}), {part * step}, {step}"
                name = {"logsumexp": "merge_logsumexp", "moments": "merge_moments"}.get(s.fold, "merge")
                lines.append(f"{old} = {name}({old}, {new}{', ' if extra else ''}{extra})")
            lines += [
                f"tl.store(partials + ({first + i} * tiles_n + tile_n) * tl.cast(M, tl.int64) + rows, {plane}_0, mask=rows < M)"
                for i, plane in enumerate(planes)
            ]
        return ["rows = row0 + tl.arange(0, TILE_M)", *lines] if lines else []

    def _select(self, s: Statistic, value: str, width: Fraction) -> None:
        wanted = self.vector(s.index, self.rows)
        used = int(self.form.step * width)
        self.line(f"count = tl.minimum({times(width, 'N')} - {times(width, 'col0')}, {used})")
        typed = self._typed(s.index, self.rows) if self.program.nodes[s.index].op == "const" else wanted
        self.line(f"part, mine = select_part({value}, {typed}, {times(width, 'col0')}, count)")
        place = f"({self.anatomy.row_planes} * tiles_n + {self.anatomy.selections.index(s)}) * m64 + rows"
        self.line(f"tl.store(partials + {place}, part, mask=row_ok & mine)", "only the tile that owns the column")

    def _tail(self, s: Statistic) -> str:
        """Where the partials of a statistic of columns begin."""
        return col_partials(self.anatomy, s)


def is_grouped(t: Type) -> bool:
    """Whether a segment is held as one number per group; else each of its columns holds the group's number."""
    return t.size & (t.size - 1) == 0


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
