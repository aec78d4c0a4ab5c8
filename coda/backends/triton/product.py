"""The text of a product: tiles of A and B into an accumulator, over all of K or over one slice of it.

    Product            lines of the loop over K, what they take, and the kernel of a product whose K is cut into slices
    matrix             the arguments of a matrix that is read or written through pointers
    SLABS              the argument that says where slabs begin in the workspace

A and B come through tensor descriptors (TMA) where strides and alignment allow, else through pointers; both fill with zeros
beyond the matrix, so that a ragged K needs no other care.

A product with fewer tiles than multiprocessors leaves some of them idle, unless K is cut: each program then computes one tile
over one slice of K and writes the fp32 accumulator to the slice's slab of the workspace, (M, LEAD) with LEAD the tiles'
columns. Nobody counts arrivals: the kernel behind it, which is launched while this one runs and waits for its end on the
device, sums the slabs in the order of the slices and is the epilogue (`template`). A counter per tile, whose last arrival sums,
would save that launch, but has to be zero before each launch, also after one that was killed, and leaves the epilogue to as few
multiprocessors as there are tiles; slabs belong to one call, need no initial value, and leave nothing behind.
"""

from __future__ import annotations

from coda.backends.finishing import arguments as taking
from coda.backends.finishing import lowering
from coda.backends.finishing.arguments import Argument
from coda.problem import Problem, Schedule

SLABS = Argument("slabs_at", "size", "slabs_at")
"""Numbers of the workspace before the slabs."""


class Product:
    """Writes the product of one problem under one schedule."""

    def __init__(self, problem: Problem, schedule: Schedule, tma: bool) -> None:
        self.problem, self.schedule = problem, schedule
        self.tma = tma and schedule.tma and min(problem.m, problem.n, problem.k) > 0

    def arguments(self) -> list[Argument]:
        """What A and B are read through."""
        if self.problem.k == 0:
            return []
        arguments: list[Argument] = []
        s = self.schedule
        for name, shape in (("a", (s.tile_m, s.tile_k)), ("b", (s.tile_k, s.tile_n))):
            spec = self.problem.spec(name)
            if not self._by_tma(name):
                arguments += matrix(name, name, self.problem, True)
                continue
            swapped = spec.layout == "col"
            block = shape[::-1] if swapped else shape
            kind = f"tensordesc<{lowering.TRITON_NAMES[spec.dtype]}[{block[0]}, {block[1]}]>"
            arguments.append(Argument(name, "descriptor", name, kind, block=block, swapped=swapped))
        return arguments

    def lines(self, blocks: str = "tl.cdiv(K, TILE_K)") -> list[str]:
        """The accumulator `acc` of the tile at row0, col0 over these blocks of K: the arguments of `range`."""
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
            f"for k in range({blocks}):",
            f"    x = {load_a}",
            f"    y = {load_b}",
            f"    acc = tl.dot(x, y, acc{precision})",
        ]

    def kernel(self, early: bool) -> tuple[list[str], tuple[Argument, ...]]:
        """The lines of `product_kernel` and what it takes. `early`: what is launched behind it may be made ready at once."""
        sizes = [Argument(size, "size", size.lower()) for size in ("M", "N", "K")]
        taken = [*self.arguments(), Argument("slabs", "workspace", type="*fp32"), SLABS, *sizes]
        body = [
            *(["gdc_launch_dependents()  # the epilogue may be made ready"] if early else []),
            "tiles_m = tl.cdiv(M, TILE_M)",
            "tiles_n = tl.cdiv(N, TILE_N)",
            "item = tl.program_id(0)",
            "slice = item // (tiles_m * tiles_n)  # all tiles of a slice together: they share rows of A and columns of B",
            "tile_m, tile_n = tile_at(item % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)",
            "row0 = tile_m * TILE_M",
            "col0 = tile_n * TILE_N",
            "first, last = slice_of(slice, tl.cdiv(K, TILE_K), SLICES)",
            "tl.assume(last > first)",
            *self.lines("first, last"),
            "to_slab(slabs + slabs_at, acc, slice, row0, col0, M, tiles_n * TILE_N)",
        ]
        head = [taking.decorator(taken), f"def product_kernel({', '.join(a.name for a in taken)}):"]
        return [
            *head,
            '    """One tile over one slice of K, into the slab of the slice."""',
            *_in(body),
            "",
            "",
        ], tuple(taken)

    def _by_tma(self, tensor: str) -> bool:
        spec = self.problem.spec(tensor)
        return self.tma and spec.aligned and spec.layout != "any"

    def _load(self, name: str) -> tuple[list[str], str]:
        """Lines before the loop over K, and the expression inside it."""
        first = "row0" if name == "a" else "col0"
        layout = self.problem.spec(name).layout
        if self._by_tma(name):
            swapped = layout == "col"
            corner = [first, "k * TILE_K"] if (name == "a") is not swapped else ["k * TILE_K", first]
            return [], f"{name}.load([{', '.join(corner)}])" + (".T" if swapped else "")
        outer, inner = {
            "row": (f"{name}_stride", ""),
            "col": ("", f"{name}_stride"),
            "any": (f"{name}_stride_m", f"{name}_stride_n"),
        }[layout]
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


def matrix(name: str, tensor: str, problem: Problem, native_fp8: bool) -> list[Argument]:
    """The pointer and the strides of a matrix."""
    layout = problem.spec(tensor).layout
    if layout == "any":
        strides = [
            Argument(f"{name}_stride_m", "stride", tensor, dim=0),
            Argument(f"{name}_stride_n", "stride", tensor, dim=1),
        ]
    else:
        strides = [Argument(f"{name}_stride", "stride", tensor, dim=0 if layout == "row" else 1)]
    return [taking.pointer(name, tensor, problem, native_fp8), *strides]


def _by(text: str, stride: str) -> str:
    return f"{text} * {stride}" if stride else text


def _in(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
