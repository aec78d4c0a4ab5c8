"""Layers measured without a GPU: a clock that makes no difference, and a session that answers at once."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from agent.keeping import layer_race, layers
from agent.records import Status
from agent.verify.worker import WorkerError, WorkerOutcome
from coda.bench.timing import Sample
from examples_curated.layers import llama

SHAPE = llama.Shape(width=64, ffn=40, heads=2, kv_heads=2, head=32)
GPU = {"gpu": "NVIDIA Test", "torch": "2", "driver": "1"}


class Clock:
    """Every call takes a millisecond, with some noise."""

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(1e-3 * (1 + self.rng.gauss(0, 0.004)), 2e-5)


def record(ms: Mapping[str, float] | None = None, **change: Any) -> layers.LayerRecord:
    """A record with these times, both passes the same."""
    times = ms or {layers.OURS: 10.0, layers.EAGER: 14.0, layers.COMPILED: 11.0, layers.GEMMS: 9.5}
    names = iter(times)
    first = next(names)

    def measured(name: str) -> dict[str, Any]:
        t = times[name] * 1e-3
        return {
            "name": name, "author": "tool", "samples": [t] * 3, "median": t, "low": t * 0.999, "high": t * 1.001, "p20": t, "p80": t,
            "host": 1e-5, "origin": "shipped" if name == layers.OURS else "",
        }  # fmt: skip

    def word(ratio: float) -> str:
        return "faster" if ratio < 0.99 else "slower" if ratio > 1.01 else "no difference"

    one = {
        "measured": [measured(name) for name in times],
        "compared": [
            {"peer": n, "ratio": r, "low": r, "high": r, "word": word(r)}
            for n in names
            for r in (times[first] / times[n],)
        ],
        "noise_floor": 0.005,
    }
    data = {
        "layer": "llama", "dims": {"tokens": 16384, "width": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "head": 128},
        "dtype": "bfloat16", "passes": {layers.FORWARD: one, layers.BOTH: one},
        "memory": {layers.OURS: 3 << 30, layers.EAGER: 5 << 30, layers.COMPILED: 4 << 30},
        "errors": {layers.OURS: {"x2": 0.003, "qkv": 0.004}, layers.EAGER: {"x2": 0.004, "qkv": 0.004}}, "absent": {},
        "environment": GPU, "protocol": {"rounds": 25}, "measured_at": "2026-11-30T00:00:00Z",
    }  # fmt: skip
    return layers.LayerRecord.model_validate({**data, **change})


class Session:
    """In place of `WorkerSession`: a GPU, and these results in turn."""

    gpu: str | None = "test-gpu"
    results: list[WorkerOutcome] = []
    asked: list[dict[str, Any]] = []

    def __init__(self, function: str, **options: Any) -> None:
        assert function == "agent.keeping.layer_race:work"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def call(self, payload: dict[str, Any], **options: Any) -> WorkerOutcome:
        if payload["step"] == "device":
            return answered({"gpu": self.gpu, "memory": 2**37, "environment": GPU})
        self.asked.append(payload)
        return self.results.pop(0)


def scripted(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> type[Session]:
    """Such sessions, nothing asked and no result yet, and a bank of records below the folder."""
    monkeypatch.setattr(layers, "WorkerSession", Session)
    monkeypatch.setattr(layers, "RECORDS", folder / "layers")
    for name, value in (("gpu", "test-gpu"), ("results", []), ("asked", [])):
        monkeypatch.setattr(Session, name, value)
    return Session


def answered(result: dict[str, Any]) -> WorkerOutcome:
    return WorkerOutcome(status="PASS", result=result, seconds=0.1)


def passed(record: layers.LayerRecord) -> WorkerOutcome:
    return answered({"status": str(Status.PASS), "reason": "", "record": record.model_dump(mode="json")})


def crashed() -> WorkerOutcome:
    return WorkerOutcome(status="CRASH", error=WorkerError(code="SIGSEGV", message="it died"), seconds=0.1)


def raced(**change: Any) -> dict[str, Any]:
    """A real run of a small layer on the CPU, in fp32."""
    given: dict[str, Any] = {"rounds": 5, "device": "cpu", "dtype": torch.float32, "clock": Clock(), "memory": memory}
    return layer_race.run(SHAPE, 37, {layers.COMPILED: "default"}, **{**given, **change})


def memory(call: Callable[[], Any]) -> int:
    call()
    return 1 << 30
