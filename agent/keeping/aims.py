"""What the kernels are held to, and what was measured of each aim: the worst of all records that it is about.

    Aim     bounds, and every value with where it was measured
    aims    all of them, from the records of one GPU
    table   Markdown for the page of records, a table for each GPU

Every value is a time of ours over another one of the same run, or memory likewise: less is better, and two places count. Where no
backend is named, it is the fastest of a record. What is `SUSPECT` counts as nothing. Neighbours: `results` has every record,
`layers` those of whole layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import examples_curated
from coda.bench.peers import COMPILED
from coda.bench.record import BenchRecord, short
from coda.program import EpilogueProgram

from . import layers
from .layers import LayerRecord
from .ratios import within
from .results import SIZES, by_gpu, by_task, markdown

Value = tuple[float, str]
"""And where it was measured."""
COLUMNS = ("time of ours", "at most", "better still", "worst measured", "at", "word")
BACKWARD = "backward"
"""In the name of every task that is of a backward pass."""
DTYPE = "bfloat16"
"""Of all aims."""
FEWEST = 128
"""Rows from which on a kernel is held to torch.compile."""


@dataclass(frozen=True)
class Aim:
    """Of the bounds, None where there is no such one."""

    what: str
    """Names ours and what it is divided by; of one aim only."""
    must: float | None
    reach: float | None
    values: tuple[Value, ...]

    @property
    def worst(self) -> Value | None:
        """None where nothing was measured."""
        return max(self.values, default=None)

    @property
    def word(self) -> str:
        """What became of it."""
        if self.worst is None:
            return "not measured"
        for bound, word in ((self.reach, "better still"), (self.must, "met")):
            if bound is not None and round(self.worst[0], 2) <= bound:
                return word
        return "**missed**" if self.must is not None else "not reached"


def aims(records: Iterable[BenchRecord], of_layers: Iterable[LayerRecord]) -> list[Aim]:
    """All of them. Records of one GPU."""
    told = [r for r in records if not r.suspicion and r.dtype == DTYPE]
    at = {size: [r for r in told if (r.dims.get("M"), r.dims.get("K")) == lengths] for size, lengths in SIZES.items()}
    found = [
        _aim("`cutedsl` ÷ quack's best configuration, 4096 and 8192", 1.02, 1.00, _cutedsl, at["4096"] + at["8192"]),
        _aim(f"÷ the best of torch.compile, from M = {FEWEST}", 1.00, None, _compiled, _tall(told)),
        _aim("÷ the best of torch.compile, backward, 4096", 0.87, 0.80, _compiled, _backward(at["4096"])),
        _aim("÷ the best of torch.compile, backward, 8192", 0.91, 0.83, _compiled, _backward(at["8192"])),
    ]
    for size, forward, backward in (
        ("8192", (1.03, 1.00), (1.06, 1.00)),
        ("4096", (1.13, 1.05), (1.22, 1.05)),
        ("M = 512", (1.25, 1.10), (1.45, 1.10)),
    ):
        found.append(_aim(f"÷ cuBLAS's GEMM alone, forward, {size}", *forward, _product, _forward(at[size])))
        found.append(_aim(f"÷ cuBLAS's GEMM alone, backward, {size}", *backward, _product, _backward(at[size])))
    found.append(_aim("`triton` ÷ `cutedsl`, programs without pairs of columns", 1.15, 1.05, _backends, told))
    return [*found, *_of_layers([r for r in of_layers if r.dtype == DTYPE])]


def table() -> str:
    """A table for each GPU; empty where nothing has been measured."""
    kernels = by_gpu(r for _, of_task in by_task() for r in of_task)
    of_layers = layers.everything()
    gpus = dict.fromkeys((*kernels, *(r.gpu for r in of_layers)))
    if not gpus:
        return ""
    lines = ["", "## What the kernels are held to", "", "Times, and memory, over another one's in the same run.", ""]
    for gpu in gpus:
        found = aims(kernels.get(gpu, ()), (r for r in of_layers if r.gpu == gpu))
        lines += [*([f"### {gpu}", ""] if len(gpus) > 1 else []), *markdown(COLUMNS, map(_row, found)), ""]
    return "\n".join(lines)


def _row(aim: Aim) -> dict[str, str]:
    value, where = aim.worst or (None, "")
    cells = (aim.what, _number(aim.must), _number(aim.reach), _number(value), where, aim.word)
    return dict(zip(COLUMNS, cells, strict=True))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# of kernels -------------------------------------------------------------------------------------------------------------


def _aim(
    what: str,
    must: float,
    reach: float | None,
    value: Callable[[BenchRecord], float | None],
    records: Iterable[BenchRecord],
) -> Aim:
    found = ((value(r), f"`{r.task}` {short(r.dims)}") for r in records)
    return Aim(what, must, reach, tuple((x, where) for x, where in found if x is not None))


def _backward(records: Iterable[BenchRecord]) -> list[BenchRecord]:
    return [r for r in records if BACKWARD in r.task]


def _forward(records: Iterable[BenchRecord]) -> list[BenchRecord]:
    return [r for r in records if BACKWARD not in r.task]


def _tall(records: Iterable[BenchRecord]) -> list[BenchRecord]:
    return [r for r in records if r.dims.get("M", 0) >= FEWEST]


def _over(record: BenchRecord, name: str, others: Sequence[str]) -> float | None:
    """A variant over the fastest of some others, each of them a variant or a peer's candidate."""
    mine = next((m for m in record.measured if m.name == name), None)
    if mine is None:
        return None
    return max((within(record, mine, m).ratio for m in record.measured if {m.name, m.peer} & {*others}), default=None)


def _cutedsl(record: BenchRecord) -> float | None:
    return _over(record, "cutedsl", ["quack"])


def _compiled(record: BenchRecord) -> float | None:
    return _over(record, record.kernel, COMPILED)


def _product(record: BenchRecord) -> float | None:
    return _over(record, record.kernel, ["cublas"])


def _backends(record: BenchRecord) -> float | None:
    program = examples_curated.load(record.task).program
    if not isinstance(program, EpilogueProgram) or any(n.type.width != 1 for n in program.nodes):
        return None
    return _over(record, "triton", ["cutedsl"])


# of layers --------------------------------------------------------------------------------------------------------------


def _of_layers(records: Sequence[LayerRecord]) -> Iterator[Aim]:
    modes = (layers.COMPILED, layers.AUTOTUNED)
    yield Aim("a layer, both passes, ÷ the best of torch.compile", 1.00, None, _times(records, modes))
    yield Aim("a layer, both passes, ÷ its matrix products alone", None, 1.02, _times(records, (layers.GEMMS,)))
    memory = ((r, min((r.memory[name] for name in modes if name in r.memory), default=0)) for r in records)
    least = tuple((r.memory[layers.OURS] / size, r.title) for r, size in memory if size)
    yield Aim("a layer's peak memory ÷ the least of torch.compile's", 0.90, 0.85, least)


def _times(records: Iterable[LayerRecord], others: Sequence[str]) -> tuple[Value, ...]:
    """Over the fastest of these contestants."""
    found = []
    for record in records:
        race = record.passes[layers.BOTH]
        ratios = [c.ratio for c in race.compared if c.peer in others]
        found += [(max(ratios), record.title)] if ratios else []
    return tuple(found)
