"""What no kernel can beat on a shape, from rates measured in the same run.

Rates           FLOP/s of the plain GEMM and bytes/s of a copy
copy_bandwidth  measured: bytes read and written per second by a large device copy
Floor           max(flops / GEMM rate, mandatory bytes / bandwidth), and which of the two binds
suspicion       why a time cannot be true, or None
PEAKS           data-sheet rates, for GPUs whose measured GEMM may be slower than the machine
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coda.bench.timing import Clock
from coda.explain import Cost

SLACK = 0.05
"""A time this far below the floor is still taken for a lucky clock."""
BEST_KNOWN = 2.0
"""More than this factor better than the best peer needs a person to look."""

PEAKS: dict[str, tuple[float, float]] = {"H100": (989e12, 3.35e12), "H200": (989e12, 4.8e12), "A100": (312e12, 2.04e12)}
"""Name part -> dense bf16 FLOP/s and bytes/s of HBM (NVIDIA data sheets of the SXM modules; never the sparse figure)."""


@dataclass(frozen=True)
class Rates:
    """What the device does, measured."""

    flops: float
    """Per second, of the plain GEMM of the same shape."""
    bandwidth: float
    """Bytes per second, read plus written, of a copy."""


@dataclass(frozen=True)
class Floor:
    """The time that no kernel can beat."""

    seconds: float
    bound: Literal["compute", "bandwidth"]
    flops: int
    bytes: int

    @classmethod
    def of(cls, cost: Cost, rates: Rates) -> Floor:
        """From a program's cost."""
        return cls.of_numbers(cost.gemm_flops, cost.bytes, rates)

    @classmethod
    def of_numbers(cls, flops: int, traffic: int, rates: Rates) -> Floor:
        """From the flops of the GEMMs and the bytes of declared inputs and outputs."""
        compute = flops / rates.flops if flops else 0.0
        memory = traffic / rates.bandwidth
        return cls(max(compute, memory), "compute" if compute >= memory else "bandwidth", flops, traffic)


def copy_bandwidth(clock: Clock, copy: Callable[[], object], traffic: int, *, rounds: int = 9) -> float:
    """Bytes per second of `copy`, which reads and writes `traffic` bytes in all."""
    for _ in range(2):
        copy()
    return traffic / statistics.median(clock.time(copy).device_s for _ in range(rounds))


def device_copy(megabytes: int = 512) -> tuple[Callable[[], object], int]:
    """A large copy on the CUDA device and the bytes that it moves."""
    import torch

    source = torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.numel()


def suspicion(seconds: float, floor: Floor, *, gpu: str = "", best_peer: float | None = None) -> str | None:
    """Why a time needs a person: below the measured floor, below the data sheet, or far better than anything known."""
    if seconds < floor.seconds * (1 - SLACK):
        return f"{seconds * 1e6:.1f} µs is below the floor of {floor.seconds * 1e6:.1f} µs ({floor.bound})"
    peak = next((rates for name, rates in PEAKS.items() if name in gpu), None)
    if peak is not None and seconds < max(floor.flops / peak[0], floor.bytes / peak[1]) * (1 - SLACK):
        return f"{seconds * 1e6:.1f} µs is faster than the data sheet of {gpu} allows"
    if best_peer is not None and seconds * BEST_KNOWN < best_peer:
        return f"{best_peer / seconds:.2f} times faster than the best peer: measured right?"
    return None
