"""A stand-in for the worker of a benchmark suite, on machines without a GPU: the real steps, journal and race on a fake clock.

What a variant does is in the dims: M = 1 all is well, 2 a peer crashes its process, 3 a peer hangs, 4 the kernel crashes,
5 racing takes a while, 6 the kernel is wrong, 7 a peer lacks memory while others get ready too, 8 getting ready takes longer
than there is time, and nobody in particular is to blame, 9 the process dies between the steps, 10 the kernel lacks memory
while others get ready too.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from agent.verify import bench_worker, racing
from agent.verify.journal import Journal
from coda.bench.timing import Sample

READY: list[tuple[dict[str, Any], dict[str, str]]] = []
ENVIRONMENT = {"gpu": "NVIDIA Test", "torch": "2", "sm_clock_mhz": "1980"}


class Clock:
    def __init__(self) -> None:
        self.rng, self.takes = random.Random(1), 1.0

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(self.takes * (1 + self.rng.gauss(0, 0.004)), 2e-5)

    def burst(self, call: Callable[[int], Any], runs: int) -> list[Sample]:
        return [self.time(lambda at=at: call(at)) for at in range(runs)]


def work(payload: dict[str, Any]) -> dict[str, Any]:
    step = payload["step"]
    if step == "device":
        return {"gpu": "test-gpu", "memory": 2**40, "environment": ENVIRONMENT}
    return ready(payload) if step == "ready" else race(payload)


def ready(payload: dict[str, Any]) -> dict[str, Any]:
    guard = Journal(pathlib.Path(payload["journal"]), payload["seconds"])
    excluded, what = payload["excluded"], payload["dims"]["M"]
    with guard("triton"):
        if what == 4:
            os.abort()
    short = (7, 10) if int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"]) < (os.cpu_count() or 1) else ()
    if what == 10 and what in short:
        return {"status": "INFRA_ERROR", "reason": "OutOfMemoryError: CUDA out of memory", "absent": {}}
    if what == 6:
        return {"status": "WRONG_VALUES", "reason": "triton: output 'z'", "absent": {}}
    for peer in ("liger", "quack[a]"):
        if peer in excluded:
            continue
        with guard(peer):
            if peer == "liger" and what == 2:
                os.abort()
            if peer == "liger" and what == 3:
                time.sleep(60)
            if peer == "liger" and what == 8:
                time.sleep(30)
            if peer == "liger" and what in short:
                excluded = {**excluded, peer: "out of memory: OutOfMemoryError: CUDA out of memory"}
    READY[:] = [(payload, excluded)]
    if what == 9:
        threading.Timer(0.1, os.abort).start()
    return {"status": "PASS", "reason": "", "absent": {**excluded, "flashinfer": "not installed: pip install x"}}


def race(payload: dict[str, Any]) -> dict[str, Any]:
    if not READY:
        return bench_worker.work(payload)  # which has nothing ready either
    (asked, excluded) = READY.pop()
    clock, x = Clock(), [1.0]
    if asked["dims"]["M"] == 5:
        time.sleep(0.5)

    def variant(seconds: float) -> racing.Variant:
        def call(inputs: Any) -> dict[str, Any]:
            clock.takes = seconds
            return {"z": x}

        return call

    scale = asked["dims"]["N"] / 4096
    others = {
        "liger": variant(1.2e-4 * scale),
        "quack[a]": variant(1.05e-4 * scale),
        "compile": variant(1.1e-4 * scale),
    }
    contest = racing.Race(
        task=asked["task"]["id"],
        program_digest="d",
        dims=asked["dims"],
        kernels={"triton": variant(1e-4 * scale)},
        others={n: v for n, v in others.items() if n not in excluded},
        ceiling=variant(0.9e-4 * scale),
        flops=int(8e14 * 0.9e-4 * scale),
        traffic=10**8,
        bandwidth=4e12,
        absent=dict(excluded),
        environment={**ENVIRONMENT},
        beside={"triton, empty epilogue": variant(0.92e-4 * scale)},
        peer_of={"quack[a]": "quack"},
        notes={"liger": "in halves"},
    )
    status, reason, record = racing.race(
        contest, [{"x": x}], lambda at, out: None, clock, rounds=payload["rounds"], seed=3, protocol=payload["protocol"]
    )
    return {"status": str(status), "reason": reason, "record": None if record is None else json.loads(record.to_json())}
