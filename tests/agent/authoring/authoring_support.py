"""A task, a judge and sources for tests of the loop; run as a script it is a run that gets killed.

TASK       a task that needs no torch
source     a kernel file whose docstring says which verdict `FakeJudge` gives it
FakeJudge  a judge that answers with real `Verdict` records, and counts

python authoring_support.py RUNS MODE    MODE: in-call, in-judge or after-reply
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import signal
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

import coda
from agent.authoring import loop, prepare
from agent.authoring.budget import Limits
from agent.authoring.starting import start_from
from agent.keeping.shelves import Kept
from agent.llm.protocol import Reply, Usage
from agent.llm.scripted import ScriptedLLM, ScriptedReply
from agent.prompting import bank
from agent.records import GATES, Environment, GateRecord, Status, Verdict, overall
from agent.runs import store
from agent.runs.events import Event, Summary
from agent.task import Input, Result, Shape, Task

SEED = 987654321987
"""Of every gate of the fake judge: must never be seen in a prompt."""


def reference(**inputs: Any) -> dict[str, Any]:
    """Never called: the judge is a fake."""
    raise AssertionError


TASK = Task(
    id="demo_scale",
    title="A product scaled by a vector",
    aliases=(),
    family="demo",
    difficulty=1,
    inputs=(Input("x", ("M", "K"), role="a"), Input("w", ("K", "N"), role="b"), Input("r", ("M",), dtype="float32")),
    outputs=(Result("z", ("M", "N")),),
    reference=reference,
    baseline=reference,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "small"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B"),
    ),
    description="z[i, j] = r[i] · Σ_k x[i, k]·w[k, j]",
)


@coda.epilogue
def _scaled(acc: Any, r: coda.primitives.ColVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """Something that was traced."""
    return {"z": acc * r}


@coda.epilogue
def _doubled(acc: Any, r: coda.primitives.ColVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """Another program."""
    return {"z": acc * r * 2.0}


@coda.epilogue
def _biased(acc: Any, bias: coda.primitives.RowVector) -> dict[str, Any]:  # type: ignore[valid-type]
    """Of another interface than the task's."""
    return {"y": acc + bias}


PROGRAMS = {"first": _scaled.program, "second": _doubled.program}


def source(word: str, *, note: str = "", program: str = "first") -> str:
    """A kernel file that gets this verdict: PASS, "PASS 0.8" (with bench), "trace COMPILE_ERROR", "algebra WRONG_VALUES", …"""
    return (
        f'"""{word}|{program}|{note}"""\n\nimport coda\n\n\n@coda.epilogue\ndef kernel(acc):\n    return {{"z": acc}}\n'
    )


def reply(word: str, **more: str) -> str:
    """The same as a model's text."""
    return f"The row factor commutes.\n\n```python\n{source(word, **more)}```\n"


def examples() -> tuple[bank.Example, ...]:
    """A bank of one example that is not the task's."""
    return (bank.Example("other", 1, '"""Another kernel."""\n\nimport coda\n', _biased.program),)


def bench_evidence(fraction: float, digest: str) -> dict[str, Any]:
    """One benchmark record at this fraction of the floor's speed."""
    floor, mine, peer = 100e-6, 100e-6 / fraction, 150e-6

    def measured(name: str, seconds: float) -> dict[str, Any]:
        low, high = 0.99 * seconds, 1.01 * seconds
        samples = [low, seconds, high]
        return {
            "name": name, "author": "tool", "samples": samples, "median": seconds, "low": low, "high": high,
            "p20": low, "p80": high, "host": 1e-6, "config": {"scaled": {"tile_m": 128}} if name == "triton" else {},
        }  # fmt: skip

    record = {
        "format": "coda.bench/1", "task": TASK.id, "program_digest": digest, "dims": {"M": 4096, "N": 4096, "K": 4096},
        "dtype": "bfloat16", "verified": True, "kernel": "triton",
        "measured": [measured("triton", mine), measured("compile", peer)],
        "compared": [{"peer": "compile", "ratio": mine / peer, "low": 0.9, "high": 1.1, "word": "faster"}],
        "noise_floor": 0.001, "floor": {"seconds": floor, "bound": "compute", "flops": 1, "bytes": 1}, "bandwidth": 4e12,
        "gemm_flops": 7e14, "suspicion": None, "absent": {}, "environment": {"gpu": "Test GPU"}, "protocol": {"seed": SEED},
    }  # fmt: skip
    return {"shapes": [{"dims": record["dims"], "status": "PASS", "reason": "", "record": record}]}


EVIDENCE: dict[str, dict[str, Any]] = {
    "static": {"findings": [{"rule": "S101", "status": "POLICY", "line": 3, "column": 0, "message": "no torch: use primitives"}]},
    "trace": {"error": {"code": "width", "message": "mul: widths differ: got a and b", "hint": "unpair(v) halves a width", "line": 8}},
    "algebra": {
        "max_error": {"z": 1.25},
        "failures": [
            {
                "status": "WRONG_VALUES", "output": "z", "pattern": "sign", "text": "the sign is flipped", "magnitude": "about 1e0",
                "fraction": 1.0, "where": "smoke", "distribution": "normal",
            }
        ],
    },
}  # fmt: skip


def verdict_of(text: str, *, task: Task = TASK) -> Verdict:
    """The verdict that a source asks for in its docstring."""
    word, program, _ = text.split('"""')[1].split("|")
    gate, _, status = word.partition(" ")
    traced = PROGRAMS[program]
    fraction = float(status) if gate == "PASS" and status else None
    records = []
    for name in GATES:
        position, failing = GATES.index(name), GATES.index(gate) if gate in GATES else len(GATES)
        if position < failing and (name != "bench" or fraction is not None):
            evidence = bench_evidence(fraction, traced.digest) if name == "bench" and fraction else {"seed": SEED}
            records.append(GateRecord(name=name, status=Status.PASS, evidence=evidence))
        elif position == failing and status != "NOT_RUN":
            evidence = EVIDENCE.get(name, {"seed": SEED})
            records.append(
                GateRecord(name=name, status=Status(status), reason="it broke at 37×65 with 0.125", evidence=evidence)
            )
        else:
            records.append(GateRecord.not_run(name, "no GPU" if name == "bench" else "cannot run here"))
    gates = tuple(records)
    has_program = gates[1].status is Status.PASS
    return Verdict(
        task=task.id,
        task_digest=task.digest,
        source_sha256=hashlib.sha256(text.encode()).hexdigest(),
        program_digest=traced.digest if has_program else None,
        program_json=traced.to_json() if has_program else None,
        kind="epilogue" if has_program else None,
        gates=gates,
        status=overall(gates),
        first_failure=next((g.name for g in gates if g.status.refuses), None),
        seeds={g.name: SEED for g in gates if g.status is not Status.NOT_RUN},
        environment=Environment.here(gpu="Test GPU" if fraction else None),
        created=datetime.datetime.now(datetime.UTC),
    )


@dataclasses.dataclass
class FakeJudge:
    """Answers as the source asks; remembers what it was asked."""

    asked: list[str] = dataclasses.field(default_factory=list)
    flaky: int = 0
    """So many judgements fail for the machine's reasons first."""
    kill_at: int = 0

    def __call__(self, text: str, task: Task, *, schedule: dict[str, Any] | None) -> Verdict:
        self.asked.append(text)
        if len(self.asked) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.flaky:
            self.flaky -= 1
            return verdict_of(text.replace(text.split('"""')[1].split("|")[0], "compile INFRA_ERROR", 1)).model_copy(
                update={"source_sha256": hashlib.sha256(text.encode()).hexdigest()}
            )
        return verdict_of(text, task=task)


class Billed(ScriptedLLM):
    """A scripted model that is paid for."""

    name = "anthropic"


def billed(word: str, *, tokens: int = 1000, **more: str) -> Reply:
    """A reply that was paid for."""
    made = ScriptedReply(
        source=source(word, **more), usage=Usage(input_tokens=tokens, output_tokens=tokens), model="claude-opus-5-5"
    )
    return made.reply().model_copy(update={"billed": True, "provider": "anthropic"})


@dataclasses.dataclass
class Outcome:
    """What a run left."""

    summary: Summary
    llm: ScriptedLLM
    judge: Any
    run: store.Run
    events: list[Event]

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events]

    def of(self, kind: str) -> list[Any]:
        return [e for e in self.events if e.kind == kind]

    @property
    def feedback(self) -> list[str]:
        """The user turns of the last request."""
        return [t.text for t in self.llm.history[-1].turns if t.role == "user"]


def author(
    tmp_path: pathlib.Path,
    script: list[str | Reply | Exception],
    *,
    judge: Any = None,
    run: store.Run | None = None,
    llm: ScriptedLLM | None = None,
    model: str = "scripted",
    limits: Limits | None = None,
    goal: float | None = None,
    keep: bool = True,
    max_tokens: int = 32_000,
    improve: Kept | None = None,
) -> Outcome:
    """One run in a temporary folder."""
    llm, judge, limits = llm or ScriptedLLM(script), judge or FakeJudge(), limits or Limits()
    start = start_from(improve, TASK, goal) if improve is not None else None
    prompt = prepare.prepare(TASK, model=model, examples=examples(), max_tokens=max_tokens, start=start)
    run = run or prepare.new_run(tmp_path / "runs", prompt, llm=llm.name, limits=limits, goal=goal)
    events: list[Event] = []
    into = tmp_path / "kept" if keep else None
    with run:
        summary = loop.author(prompt, llm, judge, run, limits=limits, goal=goal, into=into, on_event=events.append)
    return Outcome(summary, llm, judge, run, events)


def the_run(tmp_path: pathlib.Path) -> pathlib.Path:
    (folder,) = store.list_runs(tmp_path / "runs")
    return folder


def main(runs: pathlib.Path, mode: str) -> None:
    """A run that kills itself with SIGKILL in its second round."""

    class Killed(ScriptedLLM):
        def complete(self, request: Any, on_text: Any = None) -> Any:
            if mode == "in-call" and request.round == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().complete(request, on_text)

    def on_event(event: Any) -> None:
        if mode == "after-reply" and event.kind == "replied" and event.call == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    script = [reply("trace COMPILE_ERROR"), reply("algebra WRONG_VALUES"), reply("PASS")]
    prompt = prepare.prepare(TASK, model="scripted", examples=examples())
    run = prepare.new_run(runs, prompt, llm="scripted", limits=Limits())
    print(json.dumps({"run": str(run.folder)}), flush=True)
    loop.author(
        prompt,
        Killed(script),
        FakeJudge(kill_at=2 if mode == "in-judge" else 0),
        run,
        limits=Limits(),
        on_event=on_event,
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
