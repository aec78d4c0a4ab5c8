"""`verify --all`: every curated and every kept kernel proved again, on a CPU.

    targets     what there is to prove, or a sample of it
    reverify    a Report: one Outcome per kernel, each with its gates
    Crew        workers that live on between kernels, so that torch is imported once and not four times a kernel

Each kernel goes through the gates that a pass needs, by the judge that judges everybody: read, traced afresh in a throw-away
process, compared in fp64 on fresh seeds, compiled (`QUICK`), run in Triton's interpreter. A kept kernel must also be the program that its
folder holds. An example that is not named after a task has nothing to be compared with: it is read and traced, and counted apart.

The gates behind `trace` run our code on a program that is data, so their processes may serve one kernel after the other; one that
fails is thrown away (`agent.verify.worker`). Neighbours: `review` judges one kernel and writes a packet, `shelves` finds kernels.
"""

from __future__ import annotations

import concurrent.futures
import queue
import random
import resource
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import examples_curated
from coda.errors import CodaError

from .. import task as tasks
from ..errors import AgentError
from ..records import REQUIRED, GateName, Record, Status, Verdict
from ..verify import static, tracer
from ..verify.compile import fused
from ..verify.judge import Options, judge
from ..verify.worker import WorkerError, WorkerOutcome, WorkerSession
from . import shelves
from .review import against
from .reviews import said, unproven

SERVES = 16
"""Kernels for which a worker serves before a fresh one takes its place: what it has printed and allocated goes with it."""
QUICK = ("triton",)
"""Backends unless others are named: building for CuTeDSL takes ten times as long as all the rest."""
PROOF: tuple[GateName, ...] = REQUIRED  # type: ignore[assignment]
Word = Literal["proved", "refused", "unproven", "traced"]


@dataclass(frozen=True)
class Target:
    """One kernel to prove."""

    id: str
    author: Literal["project", "kept"]
    task: str
    """Empty for an example that is not named after a task."""
    path: Path
    """The example's file, or the kept kernel's folder."""


class GateWord(Record):
    """What one gate said."""

    name: GateName
    status: Status
    seconds: float


class Outcome(Record):
    """What came of one kernel."""

    id: str
    author: Literal["project", "kept"]
    task: str
    word: Word
    """`unproven`: the machine could not run a gate. `traced`: there is no task to prove it against."""
    why: tuple[str, ...]
    """Empty for a proof."""
    digest: str
    """Of the program that the source traces to; empty where it does not."""
    gates: tuple[GateWord, ...]
    seconds: float


class Report(Record):
    """What came of all of them."""

    outcomes: tuple[Outcome, ...]
    gates: tuple[GateName, ...]
    """That were asked for."""
    backends: tuple[str, ...]
    """For which `compile` built."""
    of: int
    """Kernels that there are; more than were proved where this was a sample."""
    seed: int | None
    """Of the sample."""
    jobs: int
    seconds: float
    cpu_s: float
    """User and system, of this process and of all that it started."""

    def count(self, word: Word) -> int:
        """How many ended so."""
        return sum(outcome.word == word for outcome in self.outcomes)

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """What a gate, or a folder that is not what it says, speaks against."""
        return tuple(o for o in self.outcomes if o.word == "refused")

    @property
    def summary(self) -> str:
        """In one line."""
        parts = [f"{self.count(w)} {w}" for w in ("proved", "refused", "unproven", "traced") if self.count(w)]
        chosen = f" of {self.of} kernels, seed {self.seed}" if self.seed is not None else " kernels"
        return (
            f"{len(self.outcomes)}{chosen}: {', '.join(parts) or 'none'}; gates {', '.join(self.gates)} ({', '.join(self.backends)}); "
            f"{self.seconds:.0f} s with {self.jobs} jobs, {self.cpu_s:.0f} s of processor time"
        )


# what there is --------------------------------------------------------------------------------------------------------


def targets(folders: Iterable[Path]) -> tuple[Target, ...]:
    """Every curated example in ladder order, then every kept kernel by id."""
    known = tasks.cards()
    curated = (
        Target(f"examples_curated/{i}", "project", i if i in known else "", examples_curated.card(i).path)
        for i in examples_curated.catalog()
    )
    kept = (Target(e.id, "kept", e.task, e.path) for e in shelves.entries(folders))
    return (*curated, *kept)


def sample(found: Sequence[Target], number: int, seed: int) -> tuple[Target, ...]:
    """So many of them, of either kind where there are both, in their order; what has no task, and can only be traced, last."""
    rng = random.Random(seed)
    chosen: set[str] = set()
    groups = [[t for t in found if t.author == kind] for kind in ("project", "kept")]
    for group in groups:
        rng.shuffle(group)
        group.sort(key=lambda t: bool(t.task))  # taken from the end
    while len(chosen) < min(number, len(found)):
        for group in groups:
            if group and len(chosen) < number:
                chosen.add(group.pop().id)
    return tuple(t for t in found if t.id in chosen)


# workers --------------------------------------------------------------------------------------------------------------


class Crew:
    """One set of worker processes, one for each gate and environment; has the parameters of `run_worker`. For one thread."""

    def __init__(self, stopped: threading.Event | None = None) -> None:
        self._stopped = stopped or threading.Event()
        self._sessions: dict[Any, tuple[WorkerSession, int]] = {}

    def __call__(
        self,
        function: str,
        payload: Mapping[str, Any],
        *,
        timeout_s: float,
        env: Mapping[str, str | None] | None = None,
        memory_mb: int | None = None,
    ) -> WorkerOutcome:
        if self._stopped.is_set():
            return WorkerOutcome(
                status="INFRA_ERROR", error=WorkerError(code="stopped", message="stopped"), seconds=0.0
            )
        key = (function, payload.get("backend"), tuple(sorted((env or {}).items())), memory_mb)
        session, served = self._sessions.get(key, (None, 0))
        if session is None or served >= SERVES:
            if session is not None:
                session.close()
            alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **(env or {})}  # the jobs share the processor
            session, served = WorkerSession(function, timeout_s=timeout_s, env=alone, memory_mb=memory_mb), 0
        self._sessions[key] = session, served + 1
        return session.call(payload, timeout_s=timeout_s)

    def close(self) -> None:
        """End every process."""
        for session, _ in self._sessions.values():
            session.close()
        self._sessions.clear()


# proving --------------------------------------------------------------------------------------------------------------


def reverify(
    chosen: Sequence[Target],
    *,
    of: int | None = None,
    seed: int | None = None,
    jobs: int = 2,
    options: Options | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Prove them. Whatever is wrong with one kernel is its outcome, and the others are proved. `on_outcome` hears of each as it
    ends, on the caller's thread. Interrupted, it ends every process that it started."""
    options = options or Options(gates=PROOF, device=False, backends=QUICK)
    started, before = time.monotonic(), _cpu_s()
    found: dict[str, Outcome] = {}
    crews: queue.SimpleQueue[Crew] = queue.SimpleQueue()
    stopped = threading.Event()
    made = [Crew(stopped) for _ in range(jobs)]
    for crew in made:
        crews.put(crew)

    def prove_one(target: Target) -> Outcome | None:
        if stopped.is_set():
            return None
        crew = crews.get()
        try:
            return prove(target, options, crew)
        finally:
            crews.put(crew)

    pool = concurrent.futures.ThreadPoolExecutor(jobs, thread_name_prefix="reverify")
    try:
        for done in concurrent.futures.as_completed([pool.submit(prove_one, target) for target in chosen]):
            outcome = done.result()
            if outcome is not None:
                found[outcome.id] = outcome
                on_outcome(outcome)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)  # waits for the gates that run, which have deadlines; no other one starts
        for crew in made:
            crew.close()
    return Report(
        outcomes=tuple(found[t.id] for t in chosen),
        gates=tuple(options.gates),
        backends=options.backends or fused(),
        of=len(chosen) if of is None else of,
        seed=seed,
        jobs=jobs,
        seconds=round(time.monotonic() - started, 2),
        cpu_s=round(_cpu_s() - before, 2),
    )


def _cpu_s() -> float:
    total = 0.0
    for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(whose)
        total += used.ru_utime + used.ru_stime
    return total


def prove(target: Target, options: Options, call: Callable[..., WorkerOutcome]) -> Outcome:
    """One kernel through the gates."""
    started = time.monotonic()
    try:
        made = _curated(target, options, call) if target.author == "project" else _kept(target, options, call)
    except (AgentError, CodaError, OSError) as error:  # its own files cannot be read
        made = {"word": "refused", "why": (str(getattr(error, "what", error)),), "digest": "", "gates": ()}
    return Outcome(
        id=target.id,
        author=target.author,
        task=target.task,
        seconds=round(time.monotonic() - started, 3),
        **made,
    )


def _curated(target: Target, options: Options, call: Callable[..., WorkerOutcome]) -> dict[str, Any]:
    source = target.path.read_text("utf-8")
    expected = examples_curated.load(target.path.stem).program.digest
    if not target.task:
        return _traced(source, target.path.stem, expected)
    verdict = judge(source, tasks.load(target.task), options=options, call=call)
    refusals = list(said(verdict))
    if verdict.program_digest not in (None, expected):
        refusals.append(f"it traces to {(verdict.program_digest or '')[:12]}, and imports as {expected[:12]}")
    return _made(verdict, refusals)


def _kept(target: Target, options: Options, call: Callable[..., WorkerOutcome]) -> dict[str, Any]:
    kept = shelves.read(target.path)
    with_schedule = options.model_copy(update={"schedule": kept.schedule})
    verdict = judge(kept.source, tasks.load(kept.task), options=with_schedule, call=call)
    refusals, _, _ = against(kept, verdict)
    return _made(verdict, refusals)


def _made(verdict: Verdict, refusals: Sequence[str]) -> dict[str, Any]:
    word: Word = "proved" if not refusals else "unproven" if unproven(verdict, refusals) else "refused"
    gates = tuple(GateWord(name=g.name, status=g.status, seconds=g.seconds) for g in verdict.gates if g.name != "bench")
    return {"word": word, "why": tuple(refusals), "digest": verdict.program_digest or "", "gates": gates}


def _traced(source: str, name: str, expected: str) -> dict[str, Any]:
    """An example without a task: its text obeys the rules, and traces to the program that it imports as."""
    began = time.monotonic()
    report = static.check(source, filename=f"{name}.py")
    gates = [GateWord(name="static", status=Status(report.status), seconds=round(time.monotonic() - began, 3))]
    if not report.ok:
        why = tuple(f"gate static: line {f.line}: {f.message}" for f in report.findings)
        return {"word": "refused", "why": why, "digest": "", "gates": tuple(gates)}
    began = time.monotonic()
    operands = examples_curated.load(name).program
    dtypes = {o.name: o.dtype for o in getattr(operands, "operands", ())}
    outcome = tracer.trace(report.source, operand_dtypes=dtypes)
    gates.append(GateWord(name="trace", status=Status(outcome.status), seconds=round(time.monotonic() - began, 3)))
    digest = ""
    if outcome.program_json is not None:
        from coda.kernel import from_json

        digest = from_json(outcome.program_json).program.digest
    why = (
        () if digest == expected else (f"it traces to {digest[:12] or outcome.status}, and imports as {expected[:12]}",)
    )
    return {"word": "refused" if why else "traced", "why": why, "digest": digest, "gates": tuple(gates)}
