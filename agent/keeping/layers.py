"""A whole layer, measured: a run in a process of its own, its record, and the table of the records.

    Wanted       the lengths of a layer, and how many tokens
    LayerRecord  what was measured of one, with every sample
    measure      one layer on this GPU
    keep, kept   records in the bank, one file per GPU
    table        a row per pass and contestant, for a command or a page
    page         the documents' part of it; nothing where nothing has been measured

Ratios are times over the time of the layer's products alone (plain matrix products of the same operands, by torch.matmul), or over
torch.compile's. Neighbours: `layer_race.py` is the process, `commands/layer.py` the command, `examples_curated/layers` the layer.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

import examples_curated
from coda.bench.record import Compared, Measured
from coda.bench.timing import NOISE, GpuBusy, gpu_lock

from .. import files
from ..errors import BenchUnavailable, KernelDamaged
from ..records import Record, Status
from ..verify.suite import Options, machine_of
from ..verify.worker import WorkerSession
from .benchmarks import file_of
from .measured import UNKNOWN
from .results import markdown

RECORDS = examples_curated.FOLDER / "records" / "layers"
WORKER = f"{__package__}.layer_race:work"
FORWARD, BOTH = "forward", "forward + backward"
OURS, EAGER, COMPILED, AUTOTUNED, GEMMS = "coda", "eager", "compile", "max-autotune", "GEMMs alone"
HEAD = 128
"""Columns of a head, as these layers have them."""
COLUMNS = ("layer", "pass", "by", "ms", "÷ GEMMs alone", "÷ compile", "peak, GiB", "error ÷ eager's")
ABOUT = (
    "A Llama layer without its attention, `examples_curated/layers/llama.py`: out-projection, norm, SwiGLU MLP, norm, QKV with RoPE. "
    "Medians; **bold**: torch.compile is faster; ≈: the noise is larger. Peak memory is what one forward and backward pass allocates "
    "beyond weights, inputs and the gradients that arrive; the error is the mean distance of outputs and gradients from fp64."
)


@dataclass(frozen=True)
class Wanted:
    """A layer with as many heads of keys as of queries, in bf16."""

    width: int
    ffn: int
    tokens: int
    autotune: bool = False
    """Whether torch.compile's max-autotune races too, beside its default mode."""

    @property
    def name(self) -> str:
        """As it is typed."""
        return f"{self.width}:{self.ffn}"


class Pass(Record):
    """The race of one pass."""

    measured: tuple[Measured, ...]
    compared: tuple[Compared, ...]
    """The layer against every other contestant."""
    noise_floor: float

    def of(self, name: str) -> Measured | None:
        """One contestant."""
        return next((m for m in self.measured if m.name == name), None)


class LayerRecord(Record):
    """One layer at one length. Every contestant's outputs and gradients were compared with fp64 before it was timed."""

    format: Literal["coda.layer/1"] = "coda.layer/1"
    layer: str
    """Its module in `examples_curated.layers`."""
    dims: dict[str, int]
    dtype: str
    passes: dict[str, Pass]
    """Forward keeps what backward needs, as in a step of training."""
    memory: dict[str, int]
    """Bytes by contestant, for each that was measured: the peak of one forward and backward pass beyond what was there before
    (weights, inputs, the gradients that arrive); outputs and all gradients are part of it."""
    errors: dict[str, dict[str, float]]
    """By contestant and result: the distance from fp64 over its size, both as norms."""
    absent: dict[str, str]
    """Contestant -> why it was not measured."""
    environment: dict[str, str]
    protocol: dict[str, Any]
    measured_at: str

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in (FORWARD, BOTH):
            if name not in self.passes or any(self.passes[name].of(who) is None for who in (OURS, GEMMS)):
                raise ValueError(f"{name}: {OURS} and {GEMMS} were not both measured")
            if any(not m.median > 0 for m in self.passes[name].measured):
                raise ValueError(f"{name}: a time that is none")
        if lacking := {"width", "ffn", "tokens"} - set(self.dims):
            raise ValueError(f"dims without {', '.join(sorted(lacking))}")
        raced = {m.name for race in self.passes.values() for m in race.measured} - {GEMMS, NOISE}
        if missing := raced - set(self.memory):
            raise ValueError(f"memory: none of {', '.join(sorted(missing))}, who were measured")
        if any(not size > 0 for size in self.memory.values()):
            raise ValueError("memory: a size that is not above 0")
        if any(size >= 1 << 63 for size in self.memory.values()):
            raise ValueError("memory: a size beyond any machine's")
        if any(not 0 < off < math.inf for errors in self.errors.values() for off in errors.values()):
            raise ValueError("errors: a distance that is not above 0")
        if len({frozenset(errors) for errors in self.errors.values()}) > 1:
            raise ValueError("errors: not of the same results for all contestants")
        if not isinstance(self.protocol.get("rounds"), int):
            raise ValueError("protocol: rounds is no number")
        return self

    @property
    def gpu(self) -> str:
        """Where it was measured."""
        return self.environment.get("gpu", UNKNOWN)

    @property
    def size(self) -> str:
        """Its lengths, as they are typed."""
        return f"{self.dims['width']}:{self.dims['ffn']}"

    @property
    def title(self) -> str:
        """Which layer, of how many rows."""
        return f"{self.layer} {self.size}, {self.dims['tokens']} tokens"


@dataclass(frozen=True)
class Outcome:
    """What came of one layer."""

    wanted: Wanted
    record: LayerRecord | None
    status: Status
    reason: str = ""


def measure(wanted: Wanted, options: Options, tell: Callable[[str], None] = lambda text: None) -> Outcome:
    """One layer, in a process of its own, while no other of ours uses the GPU. Raises `BenchUnavailable`."""
    env = {"TRITON_INTERPRET": None, **options.env}
    with WorkerSession(WORKER, timeout_s=options.ready_s + options.race_s, env=env) as session:
        where = machine_of(session.call({"step": "device"}, timeout_s=120))
        tell(f"{wanted.name}, {wanted.tokens} tokens: compiling, checking and racing on {where.environment.get('gpu')}")
        try:
            with gpu_lock(where.gpu, timeout_s=options.wait_s):
                outcome = session.call({"step": "race", "rounds": options.rounds, **_payload(wanted)}, last=True)
        except GpuBusy as error:
            raise BenchUnavailable(str(error), hint="another benchmark or judgement is running: wait for it") from error
    if outcome.result is None:
        assert outcome.error is not None
        reason = f"{outcome.error.message[:500]} [{outcome.error.code}]"
        return Outcome(wanted, None, Status(outcome.status), reason)
    found = outcome.result
    record = LayerRecord.model_validate(found["record"]) if found["record"] is not None else None
    return Outcome(wanted, record, Status(found["status"]), found["reason"])


def _payload(wanted: Wanted) -> dict[str, Any]:
    return {
        "width": wanted.width,
        "ffn": wanted.ffn,
        "tokens": wanted.tokens,
        "modes": {COMPILED: "default", **({AUTOTUNED: "max-autotune-no-cudagraphs"} if wanted.autotune else {})},
    }


# in the bank ------------------------------------------------------------------------------------------------------------


def kept(path: Path) -> tuple[LayerRecord, ...]:
    """The records of a file; none where there is no file. Raises `KernelDamaged`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except IsADirectoryError as error:
        raise KernelDamaged(f"{str(path)!r} is a folder, and no file of records", hint="name a file") from error
    try:
        return tuple(LayerRecord.model_validate(r) for r in json.loads(data.decode("utf-8"))["records"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KernelDamaged(f"{str(path)!r} holds what is no record of a layer: {error}", hint="mend it") from error


def everything() -> list[LayerRecord]:
    """Every record in the bank. Raises `KernelDamaged`."""
    return [record for path in sorted(RECORDS.glob("*.json")) for record in kept(path)]


def place_of(gpu: str) -> Path:
    """Where records of a GPU are kept."""
    return RECORDS / file_of(gpu)


def readable() -> None:
    """Whether `keep` can go on from what is there, and write: before anything is measured. Raises `KernelDamaged`, `OSError`."""
    for path in RECORDS.glob("*.json"):
        kept(path)
    files.require_place(RECORDS / "gpu.json")


def keep(records: Sequence[LayerRecord]) -> list[Path]:
    """Into the bank, as `add` does. Raises `KernelDamaged`."""
    places: dict[Path, list[LayerRecord]] = {}
    for record in records:
        places.setdefault(place_of(record.gpu), []).append(record)
    for path, found in places.items():
        add(path, found)
    return sorted(places)


def add(path: Path, records: Iterable[LayerRecord]) -> None:
    """Into a file, in place of those of the same GPU, layer and lengths; what else it holds stays. Raises `KernelDamaged`."""
    write(path, {_key(r): r for r in (*kept(path), *records)}.values())


def write(path: Path, records: Iterable[LayerRecord]) -> None:
    """A file of records, a line each, at once or not at all."""
    lines = ",\n".join(r.model_dump_json() for r in sorted(records, key=_key))
    files.write_text(path, f'{{"records": [\n{lines}\n]}}\n')


def _key(record: LayerRecord) -> tuple[Any, ...]:
    return record.gpu, record.layer, record.dtype, tuple(sorted(record.dims.items()))


# tables -----------------------------------------------------------------------------------------------------------------


def table(records: Iterable[LayerRecord]) -> list[dict[str, str]]:
    """A row for each pass and contestant, as text, by `COLUMNS`."""
    return [
        _row(record, name, race, m)
        for record in sorted(records, key=lambda r: (r.gpu, r.dims["width"], r.dims["tokens"]))
        for name, race in record.passes.items()
        for m in race.measured
        if m.name in (OURS, EAGER, COMPILED, AUTOTUNED, GEMMS)
    ]


def _row(record: LayerRecord, name: str, race: Pass, m: Measured) -> dict[str, str]:
    gemms, compiled = race.of(GEMMS), race.of(COMPILED)
    word = next((c.word for c in race.compared if c.peer == COMPILED), "") if m.name == OURS else ""
    against = f"{m.median / compiled.median:.3f}" if compiled else "–"
    memory = record.memory.get(m.name) if name == BOTH else None
    return {
        "layer": record.title,
        "pass": name,
        "by": m.name,
        "ms": f"{m.median * 1e3:.3f} ± {(m.high - m.low) / 2 * 1e3:.3f}",
        "÷ GEMMs alone": f"{m.median / gemms.median:.3f}" if gemms else "–",
        "÷ compile": {"slower": f"**{against}**", "no difference": f"≈{against}"}.get(word, against),
        "peak, GiB": f"{memory / 2**30:.2f}" if memory is not None else "–",
        "error ÷ eager's": _error(record, m.name),
    }


def _error(record: LayerRecord, name: str) -> str:
    """The mean over outputs and gradients."""
    mine, plain = record.errors.get(name), record.errors.get(EAGER)
    if not mine or not plain:
        return "–"
    return f"{statistics.geometric_mean(mine[n] / plain[n] for n in mine):.2f}"


def reading(records: Iterable[LayerRecord]) -> str:
    """What a speed-up over torch.compile could be at most, which belongs beside every table of layers."""
    said = []
    for record in records:
        race = record.passes[BOTH]
        compiled, gemms = race.of(COMPILED), race.of(GEMMS)
        if compiled and gemms:
            over = compiled.median / gemms.median - 1
            said.append(f"{100 * over:.1f} % ({record.size})")
    if not said:
        return ""
    return (
        f"Forward and backward by torch.compile take {', '.join(said)} longer than the layer's matrix products alone: that gap, faster "
        "products and memory are all that fusing can win."
    )


def origin(record: LayerRecord) -> str:
    """Where and how it was measured."""
    e, p = record.environment, record.protocol
    known = ("torch", "triton", "quack-kernels", "cuda", "driver", "sm_clock_mhz", "power_limit_w")
    ours = record.passes[BOTH].of(OURS)
    schedules = (ours.origin if ours else "") or "unknown"
    versions = ", ".join(f"{name} {e[name]}" for name in known if name in e)
    return (
        f"{record.gpu} in {record.dtype}: {versions or 'versions not recorded'}; cold L2, {p['rounds']} interleaved rounds, "
        f"{schedules} schedules, outputs and gradients of every contestant first compared with fp64"
    )


def page() -> str:
    """Markdown for the page of records: a table for each GPU; empty where nothing has been measured."""
    lines: list[str] = []
    found = everything()
    for gpu in dict.fromkeys(r.gpu for r in found):
        records = [r for r in found if r.gpu == gpu]
        lines += [] if lines else ["", "## Whole layers", "", ABOUT]
        lines += ["", *markdown(COLUMNS, table(records)), "", reading(records)]
        for how in dict.fromkeys(map(origin, records)):
            which = ", ".join(r.size for r in records if origin(r) == how)
            lines.append(f"{which} measured on {how}.")
        lines += [f"{name} was not measured: {why}." for r in records for name, why in r.absent.items()]
    return "\n".join([*lines, ""]) if lines else ""
