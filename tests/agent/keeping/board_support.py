"""A small bank of kept kernels with records, for tests of the leaderboard and of its page. No figure here was ever measured.

keep_as    a model's kernel of a task, kept by the real code
record     one benchmark record: every variant's time in microseconds, interval and noise given
populate   kernels of several tasks at several sizes: wins, losses, draws, the same program, what was not measured
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kept_support as support

import examples_curated
from agent.keeping import keep
from agent.keeping.shelves import Kept, read
from agent.llm.protocol import Usage
from agent.records import GATES, Environment, GateRecord, Status, Verdict, overall
from agent.task import load

GPU = "Test GPU"
HUMAN = ("quack", "liger", "flashinfer")
SQUARE = {"M": 4096, "N": 4096, "K": 4096}


def keep_as(
    into: Path,
    task_id: str,
    *,
    program: str = "",
    model: str = "model-x",
    name: str | None = None,
    records: Sequence[dict[str, Any]] = (),
    rounds: int = 1,
) -> Kept:
    """`into/<task>/<name>/`. The program is the curated one of the task, or of another example."""
    source = examples_curated.source(program or task_id)
    made = examples_curated.load(program or task_id).program
    task = load(task_id)
    gates = tuple(
        GateRecord(name=g, status=Status.PASS, evidence=support.EVIDENCE[g], seconds=0.1)
        if g != "bench"
        else GateRecord.not_run("bench", "no GPU")
        for g in GATES
    )
    verdict = Verdict(
        task=task_id,
        task_digest=task.digest,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        program_digest=made.digest,
        program_json=made.to_json(),
        kind="epilogue",
        gates=gates,
        status=overall(gates),
        seeds={"algebra": 7},
        environment=Environment(python="3.11.7", platform="test", packages={}),
        created=support.NOW,
    )
    provenance = keep.Provenance(
        task=task_id,
        task_digest=task.digest,
        program_digest=made.digest,
        source_sha256=verdict.source_sha256,
        model=model,
        provider="folder",
        run=f"2026-11-29-{task_id}-abc123",
        call=rounds,
        rounds=rounds,
        prompt_version="7",
        prompt_sha256="0" * 64,
        examples=(),
        usage=Usage(input_tokens=1000, output_tokens=200),
        cost_usd=None,
        seeds_commitment=keep.seeds_commitment(verdict),
        created=support.NOW,
    )
    kept = read(Path(keep.keep(into, source=source, verdict=verdict, provenance=provenance, name=name).path))
    if records:
        folder = kept.folder / "bench"
        folder.mkdir(exist_ok=True)
        (folder / "test-gpu.json").write_text(json.dumps({"records": list(records)}))
    return kept


def record(
    task_id: str,
    digest: str,
    times: Mapping[str, float],
    *,
    dims: Mapping[str, int] | None = None,
    noise: float = 0.005,
    spread: float = 0.002,
    suspicion: str | None = None,
    author: str = "llm",
    absent: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The first of `times` is the kernel; others are peers, those of `HUMAN` people's. Intervals are ± `spread`."""
    kernel, *peers = times

    def variant(name: str) -> dict[str, Any]:
        s = times[name] * 1e-6
        who = author if name == kernel else "human" if name in HUMAN else "tool"
        return {
            "name": name, "author": who, "samples": [s * (1 - spread), s, s * (1 + spread)], "median": s, "low": s * (1 - spread),
            "high": s * (1 + spread), "p20": s, "p80": s, "host": 1e-6, "config": {},
        }  # fmt: skip

    def compared(name: str) -> dict[str, Any]:
        ratio = times[kernel] / times[name]
        low, high = ratio * (1 - spread), ratio * (1 + spread)
        word = "faster" if high < 1 - noise else "slower" if low > 1 + noise else "no difference"
        return {"peer": name, "ratio": ratio, "low": low, "high": high, "word": word}

    dims = dict(dims or SQUARE)
    flops = 2 * dims["M"] * dims["N"] * dims.get("K", 1)
    traffic = 2 * (dims["M"] * dims["N"] + dims["M"] * dims.get("K", 0) + dims["N"] * dims.get("K", 0))
    floor = times.get("cublas", min(times.values())) * 1e-6
    return {
        "format": "coda.bench/1", "task": task_id, "program_digest": digest, "dims": dims, "dtype": "bfloat16", "verified": True,
        "kernel": kernel, "measured": [variant(n) for n in times], "compared": [compared(n) for n in peers if n != "cublas"],
        "noise_floor": noise, "floor": {"seconds": floor, "bound": "compute", "flops": flops, "bytes": traffic}, "bandwidth": 4e12,
        "gemm_flops": flops / floor, "suspicion": suspicion, "absent": dict(absent or {}),
        "environment": {"gpu": GPU, "arch": "sm_90", "torch": "2.13.0"}, "protocol": {"rounds": 25, "cache": "cold", "backlog": True},
    }  # fmt: skip


def digest_of(example: str) -> str:
    return str(examples_curated.load(example).program.digest)


SIZES = {
    "4096": SQUARE,
    "8192": {"M": 8192, "N": 8192, "K": 8192},
    "M = 512": {"M": 512, "N": 4096, "K": 4096},
}


def populate(folder: Path) -> None:
    """Another program than the curated one for most tasks; for one the same; one is kept and was not measured."""
    plans: dict[str, tuple[str, float, float, float]] = {
        # task: program, LLM, human and compile over the plain GEMM
        "gemm_rope": ("rms_rope", 1.06, 1.10, 1.15),
        "gemm_swiglu": ("rms_swiglu", 1.08, 1.02, 1.10),
        "rms_rope": ("gemm_rope", 1.05, 1.0505, 1.12),
        "rms_swiglu": ("gemm_swiglu", 1.31, 1.02, 1.09),
        "swiglu_backward": ("gelu_backward", 1.22, 1.30, 2.20),
        "residual_rms": ("residual_rms", 1.12, 1.15, 1.25),
    }
    base = {"4096": 180.0, "8192": 1400.0, "M = 512": 31.0}
    for task_id, (program, llm, human, compiled) in plans.items():
        records = [
            record(
                task_id,
                digest_of(program),
                {
                    "triton": base[size] * llm,
                    "quack": base[size] * human,
                    "compile": base[size] * compiled,
                    "max-autotune": base[size] * compiled * 0.98,
                    "cublas": base[size],
                },
                dims=dims,
                absent={"liger": "not installed"},
            )
            for size, dims in SIZES.items()
        ]
        keep_as(folder, task_id, program=program, records=records, rounds=2 if llm > 1.1 else 1)
    keep_as(folder, "rms_scale", program="gemm_rope")
