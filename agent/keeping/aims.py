"""What the kernels are held to, and what was measured of each aim: the worst of all records that it is about.

    Aim     a bound, what would be better still, and every value with where it was measured
    aims    all of them, from the records of one GPU
    table   Markdown for the page of records, a table for each GPU

Every value is a time of ours over another one of the same run, or memory likewise: less is better, and two places count. What is
`SUSPECT` counts as nothing. Where no backend is named, it is the one that a call takes. Neighbours: `results` has every record, `layers` those of
whole layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import examples_curated
from coda.bench.peers import COMPILED as MODES
from coda.bench.record import BenchRecord, short
from coda.program import EpilogueProgram

from . import layers, measured
from .layers import AUTOTUNED, BOTH, COMPILED, GEMMS, OURS, LayerRecord
from .results import by_gpu

Value = tuple[float, str]
"""And where it was measured."""
COLUMNS = ("what, as a part of", "at most", "better still", "worst measured", "at", "")
BACKWARD = "backward"
"""In the name of every task that is of a backward pass."""


@dataclass(frozen=True)
class Aim:
    """None where there is no such bound."""

    what: str
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
    told = [r for r in records if not r.suspicion]
    large = [r for r in told if r.dims.get("K") in (4096, 8192) and r.dims["M"] >= 4096]
    at = {size: [r for r in large if {r.dims["M"], r.dims["K"]} == {size}] for size in (4096, 8192)}
    small = [r for r in told if r.dims["M"] == 512]
    return [
        _aim("`cutedsl` ÷ quack's best configuration, 4096 and 8192", 1.02, 1.00, _cutedsl_to_quack, large),
        _aim("÷ the best of torch.compile, from M = 128", 1.00, None, _to_compile, told),
        _aim("the same, backward at 4096", 0.87, 0.80, _to_compile, _backward(at[4096])),
        _aim("the same, backward at 8192", 0.91, 0.83, _to_compile, _backward(at[8192])),
        _aim("÷ cuBLAS's GEMM alone, forward at 8192", 1.03, 1.00, _to_cublas, _forward(at[8192])),
        _aim("the same, backward at 8192", 1.06, 1.00, _to_cublas, _backward(at[8192])),
        _aim("the same, forward at 4096", 1.13, 1.05, _to_cublas, _forward(at[4096])),
        _aim("the same, backward at 4096", 1.22, 1.05, _to_cublas, _backward(at[4096])),
        _aim("the same, forward at M = 512", 1.25, 1.10, _to_cublas, _forward(small)),
        _aim("the same, backward at M = 512", 1.45, 1.10, _to_cublas, _backward(small)),
        _aim("`triton` ÷ `cutedsl`, programs without pairs of columns", 1.15, 1.05, _triton_to_cutedsl, told),
        *_of_layers(list(of_layers)),
    ]


def table() -> str:
    """A table for each GPU; empty where nothing has been measured."""
    found = by_gpu(
        r
        for name in examples_curated.catalog()
        for r in measured.of_example(examples_curated.load(name).program.digest).records
    )
    everybody = [r for path in sorted(layers.RECORDS.glob("*.json")) for r in layers.kept(path)]
    lines = [
        "",
        "## What the kernels are held to",
        "",
        "Times, and memory, as a part of another one's in the same run.",
        "",
    ]
    for gpu, records in found.items():
        lines += [
            *([f"### {gpu}", ""] if len(found) > 1 else []),
            *_rows(aims(records, (r for r in everybody if r.gpu == gpu))),
            "",
        ]
    return "\n".join(lines) if found else ""


def _rows(found: Sequence[Aim]) -> Iterator[str]:
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for aim in found:
        value, where = aim.worst or (None, "")
        yield (
            "| " + " | ".join((aim.what, _number(aim.must), _number(aim.reach), _number(value), where, aim.word)) + " |"
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# values -----------------------------------------------------------------------------------------------------------------


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


def _median(record: BenchRecord, name: str) -> float | None:
    """Of a variant, or the fastest of a peer's."""
    return min((m.median for m in record.measured if name in (m.name, m.peer)), default=None)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below is not None else None


def _cutedsl_to_quack(record: BenchRecord) -> float | None:
    return _ratio(_median(record, "cutedsl"), _median(record, "quack"))


def _to_compile(record: BenchRecord) -> float | None:
    best = min((t for t in (_median(record, name) for name in MODES) if t is not None), default=None)
    return _ratio(_median(record, record.kernel), best)


def _to_cublas(record: BenchRecord) -> float | None:
    return _ratio(_median(record, record.kernel), _median(record, "cublas"))


def _triton_to_cutedsl(record: BenchRecord) -> float | None:
    program = examples_curated.load(record.task).program
    if not isinstance(program, EpilogueProgram) or any(n.type.width != 1 for n in program.nodes):
        return None
    return _ratio(_median(record, "triton"), _median(record, "cutedsl"))


def _of_layers(records: Sequence[LayerRecord]) -> Iterator[Aim]:
    def times(names: Sequence[str]) -> tuple[Value, ...]:
        found = []
        for record in records:
            medians = {m.name: m.median for m in record.passes[BOTH].measured}
            if others := [medians[name] for name in names if name in medians]:
                found.append((medians[OURS] / min(others), record.title))
        return tuple(found)

    compiled = (COMPILED, AUTOTUNED)
    least = {r.title: min((r.memory[name] for name in compiled if name in r.memory), default=None) for r in records}
    memory = tuple((r.memory[OURS] / size, r.title) for r in records if (size := least[r.title]))
    yield Aim("a layer, forward and backward ÷ the best of torch.compile", 1.00, None, times(compiled))
    yield Aim("the same ÷ its matrix products alone", None, 1.02, times((GEMMS,)))
    yield Aim("its peak memory ÷ the least of torch.compile's", 0.90, 0.85, memory)
