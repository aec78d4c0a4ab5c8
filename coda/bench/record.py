"""One benchmark as data: every sample, what was compared, where, and how.

BenchRecord   frozen; JSON both ways; refuses numbers about speed for outputs that nobody checked
short         lengths in a few letters
now           the time of a measurement, as records have it
environment   GPU, driver and versions of this process
origin_of     the word for where a kernel's schedules come from
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import platform
import re
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from coda.bench.peers import PEERS
from coda.bench.roofline import Floor
from coda.bench.timing import NOISE, Timings, current_gpu
from coda.schedules import DISTRIBUTIONS

FORMAT = "coda.bench/1"
LONE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character beyond 16 bits, in JSON: fine where the other half follows."""
KERNELS = ("candidate", "llm")
"""Authors of what is measured, in records: its other backends are no ceilings."""
MOST = 10**30
"""More than any time, rate, length or count of a record."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Measured:
    """One variant on one shape. Seconds."""

    name: str
    author: str
    """`candidate`, the kernel that is measured, whoever wrote it; else whose the peer is: `human` or `tool`."""
    samples: tuple[float, ...]
    median: float
    low: float
    high: float
    p20: float
    p80: float
    host: float
    config: Mapping[str, Any] = field(default_factory=dict)
    peer: str = ""
    """The peer of which this is a candidate; empty for kernels, ceilings and the noise twin."""
    origin: str = ""
    """Of a kernel: where the schedules in its `config` come from: `tuned` (measured fastest for exactly this), `partly tuned` (of a
    plan), `shipped` (the heuristic's choice) or `author` (submitted with it). Empty for all else, and in records from before it was
    written down."""
    note: str = ""
    """Of a peer: what is done outside the timed region, and what PyTorch does around the package's kernel."""

    @property
    def mean(self) -> float:
        """Of all samples, as some publish it."""
        return statistics.fmean(self.samples)

    @property
    def deviation(self) -> float:
        """Standard deviation of the samples."""
        return statistics.stdev(self.samples)


@dataclass(frozen=True)
class Compared:
    """The kernel against one peer: time ratio with its interval, and the word."""

    peer: str
    ratio: float
    low: float
    high: float
    word: str
    variant: str = ""
    """The fastest of the peer's candidates, with which it was compared; empty where it has only the one of its name."""


@dataclass(frozen=True)
class BenchRecord:
    """One kernel on one shape."""

    task: str
    program_digest: str
    dims: Mapping[str, int]
    dtype: str
    verified: bool
    """Whether the outputs of timed calls were compared with the reference, and were right."""
    kernel: str
    """Which variant is the kernel."""
    measured: tuple[Measured, ...]
    compared: tuple[Compared, ...]
    noise_floor: float
    floor: Floor
    bandwidth: float
    """Measured, bytes per second."""
    gemm_flops: float | None
    """Rate of the plain GEMM in the same run, per second."""
    suspicion: str | None
    absent: Mapping[str, str]
    """Peer -> why it was not measured."""
    environment: Mapping[str, str]
    protocol: Mapping[str, Any]
    measured_at: str = ""
    """UTC, like 2026-11-29T19:40:18Z, so that text sorts by age; empty in records from before it was written down."""
    default: str = ""
    """The variant that a call without `backend` and `config` takes here: `kernel` is the fastest of several, and need not be it.
    Empty where it was not measured, and in records from before it was asked."""

    def __post_init__(self) -> None:
        if not self.verified and (self.measured or self.compared):
            raise ValueError("speed of unverified outputs is not recorded")
        if self.verified and self.kernel not in {m.name for m in self.measured}:
            raise ValueError(f"the kernel {self.kernel!r} was not measured")
        if self.default and self.default not in {m.name for m in self.measured}:
            raise ValueError(f"the default call's variant {self.default!r} was not measured")
        if self.measured_at and not TIME.fullmatch(self.measured_at):
            raise ValueError(f"measured_at is {self.measured_at!r}: write it like 2026-11-29T19:40:18Z")
        for m in self.measured:
            if len(m.samples) < 3 or min(m.samples) <= 0:
                raise ValueError(f"{m.name}: fewer than three samples, or one that is not positive")

    def of(self, name: str) -> Measured:
        """One variant by name."""
        return next(m for m in self.measured if m.name == name)

    @property
    def best_peer(self) -> Compared | None:
        """The fastest peer that was compared with: every speed-up is over this one."""
        return max(self.compared, key=lambda c: c.ratio) if self.compared else None

    def to_json(self) -> str:
        """As text; `from_json` gives an equal record."""
        fields = dataclasses.asdict(self)
        if not self.measured_at:
            del fields["measured_at"]  # a record that never had it is written as it was
        for variant in fields["measured"]:
            if not variant["origin"]:
                del variant["origin"]
        return json.dumps({"format": FORMAT, **fields}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> BenchRecord:
        """Read and check: what others wrote is of the right types, and its numbers are times and ratios. Raises `ValueError`."""
        data = json.loads(text, parse_constant=_refuse)
        if LONE.search(text):
            json.dumps(data, ensure_ascii=False).encode("utf-8")  # half a character cannot be written anywhere
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"not a benchmark record of format {FORMAT}")
        try:
            data["measured"] = tuple(Measured(**{**m, "samples": tuple(m["samples"])}) for m in data["measured"])
            data["compared"] = tuple(Compared(**c) for c in data["compared"])
            data["floor"] = Floor(**data["floor"])
            _check(data)
            return cls(**data)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"a malformed benchmark record: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of a record")


def _check(data: Mapping[str, Any]) -> None:
    """What `from_json` read, before it is a record. Raises `ValueError`; `TypeError`, `KeyError` where a field is missing."""
    for name in ("task", "program_digest", "dtype", "kernel"):
        _require(isinstance(data[name], str), name, data[name], "text")
    for name in ("measured_at", "default"):
        _require(isinstance(data.get(name, ""), str), name, data.get(name), "text")
    _require(isinstance(data["verified"], bool), "verified", data["verified"], "true or false")
    _require(isinstance(data["suspicion"], str | None), "suspicion", data["suspicion"], "text or null")
    for name in ("environment", "absent"):
        _require(_texts(data[name]), name, data[name], "an object of texts")
    _require(isinstance(data["protocol"], dict), "protocol", data["protocol"], "an object")
    dims = data["dims"]
    lengths = isinstance(dims, dict) and dims and all(type(n) is int and 0 <= n < MOST for n in dims.values())
    _require(bool(lengths), "dims", dims, "names with whole lengths")
    _positive("bandwidth", data["bandwidth"])
    _require(_finite(data["noise_floor"]) and data["noise_floor"] >= 0, "noise_floor", data["noise_floor"], "0 or more")
    if data["gemm_flops"] is not None:
        _positive("gemm_flops", data["gemm_flops"])
    floor = data["floor"]
    _positive("floor.seconds", floor.seconds)
    _require(floor.bound in ("compute", "bandwidth"), "floor.bound", floor.bound, "compute or bandwidth")
    for name, least in (("flops", 0), ("bytes", 1)):
        value = getattr(floor, name)
        _require(
            type(value) is int and least <= value < MOST, f"floor.{name}", value, f"a whole number, {least} or more"
        )
    for m in data["measured"]:
        _check_measured(m)
    for c in data["compared"]:
        for name in ("peer", "word", "variant"):
            _require(isinstance(getattr(c, name), str), f"{name} of a comparison", getattr(c, name), "text")
        for name in ("ratio", "low", "high"):
            _positive(f"{name} of the comparison with {c.peer}", getattr(c, name))
        _require(c.low <= c.high, f"the interval of the comparison with {c.peer}", (c.low, c.high), "from low to high")


def _check_measured(m: Measured) -> None:
    for name in ("name", "author", "peer", "origin", "note"):
        _require(isinstance(getattr(m, name), str), f"{name} of a variant", getattr(m, name), "text")
    _require(isinstance(m.config, dict), f"{m.name}: config", m.config, "an object")
    for sample in m.samples:
        _positive(f"{m.name}: a sample", sample)
    for name in ("median", "low", "high", "p20", "p80"):
        _positive(f"{m.name}: {name}", getattr(m, name))
    _require(_finite(m.host) and m.host >= 0, f"{m.name}: host", m.host, "0 or more")
    _require(m.low <= m.median <= m.high, f"{m.name}: low, median, high", (m.low, m.median, m.high), "in this order")


def _require(holds: bool, what: str, got: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{what} is {str(got)[:60]!r}: expected {expected}")


def _positive(what: str, value: object) -> None:
    """Far from what a float can hold, so that sums and ratios of such numbers are finite and above 0 too."""
    _require(_finite(value) and 1 / MOST < value < MOST, what, value, "a finite number above 0")  # type: ignore[operator]


def _finite(value: object) -> bool:
    """JSON's `true` is no number, and a whole number can be larger than every float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def origin_of(tuned: Collection[bool]) -> str:
    """`Measured.origin` of a kernel for whose programs, one by one, measuring found the schedule, or not."""
    return "tuned" if all(tuned) else "partly tuned" if any(tuned) else "shipped"


def measured(
    timings: Timings,
    authors: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Any]],
    peers: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> tuple[Measured, ...]:
    """Every variant of a run, the noise twin included. Times are kept to the nanosecond: no clock sees less."""
    found = []
    for name in timings.samples:
        s = timings.summary(name)
        found.append(
            Measured(
                name,
                authors.get(name, "tool" if name == NOISE else ""),
                tuple(round(x, 9) for x in s.samples),
                median=round(s.median, 9),
                low=round(s.low, 9),
                high=round(s.high, 9),
                p20=round(s.p20, 9),
                p80=round(s.p80, 9),
                host=round(s.host, 9),
                config=dict(configs.get(name, {})),
                peer=(peers or {}).get(name, ""),
                origin=(origins or {}).get(name, ""),
                note=(notes or {}).get(name, ""),
            )
        )
    return tuple(found)


def now() -> str:
    """For `measured_at`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def short(dims: Mapping[str, int]) -> str:
    """4096×4096×4096: M, N, K, then whatever else there is."""
    first = [name for name in ("M", "N", "K") if name in dims]
    return "×".join(str(dims[name]) for name in (*first, *(n for n in dims if n not in first)))


def environment() -> dict[str, str]:
    """What a number depends on besides the kernel."""
    import torch

    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in dict.fromkeys((*DISTRIBUTIONS, *(p.distribution for p in PEERS.values()))):
        if name in found:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        found["gpu"] = properties.name
        found["arch"] = f"sm_{properties.major}{properties.minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
        found["memory_gib"] = f"{properties.total_memory / 2**30:.0f}"
        found["cuda"] = str(torch.version.cuda)
        found |= _nvml(current_gpu())
    return found


def _nvml(gpu: int | str) -> dict[str, str]:
    """Driver, clocks and power where NVIDIA's library is installed; their absence is recorded too.

    NVML numbers every GPU of the machine, CUDA only the visible ones: the UUID alone names the same one for both.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        found = {"driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except Exception as error:
        return {"driver": f"unknown: {type(error).__name__}"}
    try:
        if isinstance(gpu, str):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu if gpu.startswith(("GPU-", "MIG-")) else f"GPU-{gpu}")
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        found["sm_clock_mhz"] = str(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        found["power_limit_w"] = str(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000)
    except Exception as error:
        found["clocks"] = f"unknown: {type(error).__name__}"
    return found
