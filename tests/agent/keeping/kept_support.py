"""Kept kernels, verdicts and benchmark records for tests of review, promotion, comparison and the command line.

verdict       a real `Verdict` on a source of the task `rms_scale`, with the gates that a test wants
FakeJudge     answers with such verdicts, and counts; reads no candidate
keep_one      a kernel folder as `agent.keeping.keep` writes it
bench_record  one `BenchRecord` as plain JSON
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

import examples_curated
from agent.keeping import keep
from agent.keeping.shelves import Kept, read
from agent.llm.protocol import Usage
from agent.records import GATES, Environment, GateRecord, Status, Verdict, overall
from agent.task import Task, load

TASK_ID = "rms_scale"
NOW = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
PACKAGES = {"torch": "2.13.0", "triton": "3.9.0"}


def task() -> Task:
    return load(TASK_ID)


def source() -> str:
    return examples_curated.source(TASK_ID)


def program(example: str = TASK_ID) -> Any:
    return examples_curated.load(example).program


ERRORS = {
    "float16/z": {
        "ok": True, "why": "", "blocks": 32, "bad_blocks": 0, "max_error": 0.01, "max_allowed": 0.02, "rms_error": 0.001,
        "rms_allowed": 0.002, "trusted_max": 0.011, "trusted_rms": 0.001, "scale": 1.0, "ratio": 0.5, "detail": "",
        "where": "ragged", "distribution": "heavy",
    }
}  # fmt: skip
BUILT = {"name": "rms_scale", "shape": "smoke", "status": "PASS", "registers": 93, "spills": 0, "shared_memory": 65560}
EVIDENCE: dict[str, dict[str, Any]] = {
    "static": {"lines": 30, "findings": []},
    "trace": {"kind": "epilogue"},
    "algebra": {"cases": 20},
    "compile": {"arch": "sm_90", "backends": {"triton": {"status": "PASS", "built": [BUILT]}}},
    "numerics": {"device": "interpreter", "backends": {"triton": {"status": "PASS", "errors": ERRORS}}},
}


def verdict(
    text: str | None = None,
    *,
    fails: tuple[str, Status, str] | None = None,
    not_run: dict[str, str] | None = None,
    bench: list[dict[str, Any]] | None = None,
    example: str = TASK_ID,
) -> Verdict:
    """A verdict: a pass without bench, unless told otherwise. `fails` is (gate, word, reason)."""
    text = source() if text is None else text
    absent = {"bench": "no GPU"} if bench is None else {}
    absent |= not_run or {}
    records, stopped = [], ""
    for name in GATES:
        if stopped:
            records.append(GateRecord.not_run(name, stopped))
        elif name in absent:
            records.append(GateRecord.not_run(name, absent[name]))
        elif fails is not None and fails[0] == name:
            records.append(
                GateRecord(name=name, status=fails[1], reason=fails[2], evidence={"failures": []}, seconds=0.5)
            )
            stopped = f"{name} ended with {fails[1]}"
        else:
            evidence = {"shapes": [{"record": r} for r in bench or ()]} if name == "bench" else EVIDENCE[name]
            records.append(GateRecord(name=name, status=Status.PASS, evidence=evidence, seconds=0.25))
    gates = tuple(records)
    traced = all(g.status is Status.PASS for g in gates[:2])
    made = program(example)
    return Verdict(
        task=TASK_ID,
        task_digest=task().digest,
        source_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        program_digest=made.digest if traced else None,
        program_json=made.to_json() if traced else None,
        kind="epilogue" if traced else None,
        gates=gates,
        status=overall(gates),
        first_failure=fails[0] if fails else None,
        seeds={"algebra": 7},
        environment=Environment(
            python="3.11.7", platform="test", packages=PACKAGES, gpu="Test GPU" if bench else None, arch="sm_90"
        ),
        created=NOW,
    )


class FakeJudge:
    """Gives the same kind of verdict to every source, about that source."""

    def __init__(self, **about: Any) -> None:
        self.about, self.asked = about, []

    def __call__(self, text: str, task: Task, schedule: dict[str, Any] | None = None, **_: Any) -> Verdict:
        self.asked.append((text, task.id, schedule))
        return verdict(text, **self.about)


def keep_one(into: Path, name: str = "demo", *, model: str = "model-x", example: str = TASK_ID, **about: Any) -> Kept:
    """A kernel folder `into/rms_scale/<name>/`."""
    text = source()
    found = verdict(text, example=example, **about)
    assert found.program_digest is not None
    provenance = keep.Provenance(
        task=TASK_ID,
        task_digest=found.task_digest,
        program_digest=found.program_digest,
        source_sha256=found.source_sha256,
        model=model,
        provider="scripted",
        run="2026-11-29-rms_scale-abc123",
        call=1,
        rounds=1,
        prompt_version="1",
        prompt_sha256="0" * 64,
        examples=("gemm_rope",),
        usage=Usage(input_tokens=1200, output_tokens=300),
        cost_usd=0.0123,
        seeds_commitment=keep.seeds_commitment(found),
        rationale="the scale commutes",
        created=NOW,
    )
    kept = keep.keep(into, source=text, verdict=found, provenance=provenance, name=name)
    return read(Path(kept.path))


def bench_record(
    digest: str,
    *,
    us: float = 100.0,
    peers: dict[str, float] | None = None,
    suspicion: str | None = None,
    verified: bool = True,
    absent: dict[str, str] | None = None,
    author: str = "llm",
) -> dict[str, Any]:
    """One record: the kernel at `us` microseconds, each peer at its own."""
    peers = {"compile": 120.0, "cublas": 90.0} if peers is None else peers

    def measured(name: str, micro: float, who: str) -> dict[str, Any]:
        seconds = micro * 1e-6
        return {
            "name": name, "author": who, "samples": [0.99 * seconds, seconds, 1.01 * seconds], "median": seconds,
            "low": 0.99 * seconds, "high": 1.01 * seconds, "p20": 0.99 * seconds, "p80": 1.01 * seconds, "host": 1e-6, "config": {},
        }  # fmt: skip

    compared = [
        {
            "peer": n,
            "ratio": us / t,
            "low": max(us / t - 0.01, 0.001),
            "high": us / t + 0.01,
            "word": "faster" if us < t else "slower",
        }
        for n, t in peers.items()
        if n != "cublas"
    ]
    variants = [
        measured("triton", us, author),
        *(measured(n, t, "human" if n == "quack" else "tool") for n, t in peers.items()),
    ]
    return {
        "format": "coda.bench/1", "task": TASK_ID, "program_digest": digest, "dims": {"M": 4096, "N": 4096, "K": 4096},
        "dtype": "bfloat16", "verified": verified, "kernel": "triton", "measured": variants if verified else [],
        "compared": compared if verified else [], "noise_floor": 0.005,
        "floor": {"seconds": 80e-6, "bound": "compute", "flops": 137438953472, "bytes": 1}, "bandwidth": 4e12, "gemm_flops": 7e14,
        "suspicion": suspicion, "absent": absent or {}, "environment": {"gpu": "Test GPU", "arch": "sm_90"}, "protocol": {"rounds": 25},
    }  # fmt: skip


def add_bench(kept: Kept, *records: dict[str, Any]) -> None:
    """Benchmark records beside a kept kernel."""
    folder = kept.folder / "bench"
    folder.mkdir(exist_ok=True)
    (folder / "test-gpu.json").write_text(json.dumps({"shapes": [{"record": r} for r in records]}))
