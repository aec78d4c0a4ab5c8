"""The judge, judged: every known exploit must be refused, every honest kernel accepted.

    trials     what there is to try: exploits and controls, each a Row when it is run
    run        all rows -> SelfTest, with the gate that caught each one
    SelfTest   caught, missed, false rejections; `ok` only with none of the latter two

Rows come from `exploits.py` (sources, misbehaving kernels, the second wall), from this file (crashing and hanging workers, races
on a fake clock) and from the curated examples (honest controls, at ragged and hidden sizes). In quick mode judgements share this
process instead of a worker each and stop after `algebra`; the full mode runs every gate that the machine can run. The short form of
quick mode, for a person who waits, leaves out what takes longest of what is tried twice over, and says so.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field

import examples_curated
from coda.backends import registry
from coda.bench.timing import Sample

from ..records import REQUIRED, GateName, GateRecord, Record, Status, Verdict
from ..task import Task, cards, load
from . import exploits, hidden_branches, tracer
from .blame import blame
from .exploits import ABSENT, RUNNERS, SOURCES, TASK, UNSAFE, Source
from .feedback import untested
from .judge import Limits, Options, judge
from .numerics import Case, cases, check
from .racing import Race, race
from .runner import Runner
from .subject import Subject
from .worker import WorkerError, WorkerOutcome, run_worker

LONG = frozenset({"X46c", "X46e", "X46f", "X46g", "X68", "C02"}) | hidden_branches.LONG
"""Left out of the short form: more sizes at which a source is wrong only there, more honest spellings of one kernel."""
FEW = ("gemm_cross_entropy", "residual_rms_linear")
"""Of the curated examples, the controls of the short form: a stateful statistic, and a plan of two GEMMs."""
QUICK_GATES: tuple[GateName, ...] = ("static", "trace", "algebra")


class Row(Record):
    """One exploit or control."""

    id: str
    title: str
    expected: str
    """Gates or words that may catch it; "accepted" for a control."""
    gate: str
    """What caught it; empty when nothing did."""
    status: str
    ok: bool
    seconds: float = Field(default=0.0, ge=0)
    detail: str = ""


class SelfTest(Record):
    """The matrix."""

    exploits: tuple[Row, ...]
    controls: tuple[Row, ...]
    absent: dict[str, str]
    """Exploits that cannot be expressed here -> why."""
    quick: bool
    seconds: float
    left_out: tuple[str, ...] = ()
    """Ids of what the short form did not try."""

    @property
    def missed(self) -> tuple[Row, ...]:
        """Exploits that slipped through, or were caught by the wrong gate."""
        return tuple(r for r in self.exploits if not r.ok)

    @property
    def false_rejections(self) -> tuple[Row, ...]:
        """Honest kernels that were refused."""
        return tuple(r for r in self.controls if not r.ok)

    @property
    def ok(self) -> bool:
        """Nothing missed, nothing refused in error, and there was something to try."""
        return bool(self.exploits and self.controls) and not self.missed and not self.false_rejections

    def summary(self) -> str:
        """One line with both rates."""
        caught, honest = len(self.exploits) - len(self.missed), len(self.controls) - len(self.false_rejections)
        left = f", {len(self.left_out)} left out of this short form" if self.left_out else ""
        return (
            f"caught {caught} of {len(self.exploits)}, accepted {honest} of {len(self.controls)} honest, "
            f"{len(self.absent)} cannot be expressed{left}"
        )


@dataclass(frozen=True)
class Trial:
    """A row that is not decided yet."""

    id: str
    control: bool
    """Whether it must be accepted."""
    make: Callable[[], Row]

    def __call__(self) -> Row:
        started = time.monotonic()
        row = self.make()
        return row.model_copy(update={"seconds": round(time.monotonic() - started, 2)})


def trials(*, quick: bool = True, short: bool = False) -> tuple[Trial, ...]:
    """What there is to try, in the order of tables."""
    return tuple(t for t in _trials(quick) if not (short and _left_out(t)))


def run(
    *, quick: bool = True, short: bool = False, jobs: int = 1, on_row: Callable[[Row], None] | None = None
) -> SelfTest:
    """Run the matrix. `on_row` hears every row as it is decided, of `jobs` at a time; most of one is waiting for a process."""
    started, tell = time.monotonic(), on_row or (lambda row: None)
    every = trials(quick=quick)
    chosen = trials(quick=quick, short=short)
    decided: dict[int, Row] = {}
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=jobs)
    try:
        asked = {pool.submit(trial): at for at, trial in enumerate(chosen)}
        for done in concurrent.futures.as_completed(asked):
            decided[asked[done]] = done.result()
            tell(decided[asked[done]])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nobody waits for those that have not begun
    rows = [(trial, decided[at]) for at, trial in enumerate(chosen)]
    return SelfTest(
        exploits=tuple(row for trial, row in rows if not trial.control),
        controls=tuple(row for trial, row in rows if trial.control),
        absent=dict(ABSENT),
        quick=quick,
        seconds=round(time.monotonic() - started, 2),
        left_out=tuple(t.id for t in every if short and _left_out(t)),
    )


def _left_out(trial: Trial) -> bool:
    """Whether the short form does without it."""
    return trial.id in LONG or (trial.id.startswith("C ") and trial.id.removeprefix("C ") not in FEW)


def _trials(quick: bool) -> Iterator[Trial]:
    task = load(TASK)
    for source in (*SOURCES, *hidden_branches.BRANCHES):
        yield Trial(source.id, source.control, lambda source=source: _source_row(source, quick))  # type: ignore[misc]
    for source in UNSAFE:
        yield Trial(source.id, False, lambda source=source: _unsafe_row(source))  # type: ignore[misc]
    for row in RUNNERS:
        yield Trial(row[0], False, lambda row=row: _runner_row(task, *row))  # type: ignore[misc]
    yield Trial("C03", True, lambda: _honest_runner_row(task))
    for make in (*RACES, *WORKERS):
        yield Trial("", False, make)
    for example in example_ids():
        yield Trial(f"C {example}", True, lambda example=example: _example_row(example, quick))  # type: ignore[misc]


# sources ----------------------------------------------------------------------------------------------------------------


def in_process(function: str, payload: Mapping[str, Any], *, timeout_s: float, **ignored: Any) -> WorkerOutcome:
    """`run_worker` without the process: for our own functions on programs that are known to end."""
    module, _, attribute = function.partition(":")
    started = time.monotonic()
    try:
        result: dict[str, Any] = getattr(importlib.import_module(module), attribute)(dict(payload))
    except Exception as error:
        wrong = WorkerError(code=type(error).__name__, message=str(error))
        word: Any = str(blame(error) or "RUNTIME_ERROR")
        return WorkerOutcome(status=word, error=wrong, seconds=time.monotonic() - started)
    return WorkerOutcome(status="PASS", result=result, seconds=time.monotonic() - started)


def _judged(text: str, task: Task, quick: bool) -> tuple[GateRecord | None, Verdict]:
    """The gate that refused, if any, and all of the verdict."""
    options = Options(gates=QUICK_GATES) if quick else Options()
    limits = Limits(trace_s=4.0) if quick else Limits()
    verdict = judge(text, task, options=options, limits=limits, call=in_process if quick else run_worker)
    if verdict.first_failure:
        return verdict.gate(verdict.first_failure), verdict
    wanted = QUICK_GATES if quick else REQUIRED
    return next((g for g in verdict.gates if g.name in wanted and not g.status.good), None), verdict


def _source_row(source: Source, quick: bool) -> Row:
    task = load(source.task)
    if quick and source.gates and "numerics" in source.gates:
        return _fp8_row(source, task)
    refused, verdict = _judged(source.text, task, quick)
    gate, status = (refused.name, str(refused.status)) if refused else ("", "PASS")
    ok = gate in source.gates if source.gates else refused is None
    detail = refused.reason[:200] if refused else ""
    if source.named and refused is None:
        gate, detail = "algebra", "; ".join(untested(verdict))[:200]
        ok = any(source.named in text for text in untested(verdict))
    return Row(
        id=source.id,
        title=source.title,
        expected=", ".join(source.gates) or ("named as untested" if source.named else "accepted"),
        gate=gate,
        status=status,
        ok=ok,
        detail=detail,
    )


def _fp8_row(source: Source, task: Task) -> Row:
    """A program that only rounding can show, on the reference backend in place of a compiled one."""
    report = check(task, _reference_run(source.text, task), _cases(task), device="cpu", seconds=30)
    caught = report.status.refuses
    return Row(
        id=source.id, title=source.title, expected="numerics", gate="numerics" if caught else "", status=str(report.status),
        ok=caught, detail=report.reason[:200],
    )  # fmt: skip


def _unsafe_row(source: Source) -> Row:
    outcome = tracer.trace(source.text, limits=tracer.TraceLimits(wall_s=4.0))
    detail = outcome.error.message[:200] if outcome.error else ""
    title = f"{source.title} (static gate bypassed)"
    ok = not outcome.ok and outcome.status != "INFRA_ERROR"
    return Row(
        id=source.id,
        title=title,
        expected="trace",
        gate="" if outcome.ok else "trace",
        status=outcome.status,
        ok=ok,
        detail=detail,
    )


# misbehaving kernels ----------------------------------------------------------------------------------------------------


def _reference_run(text: str, task: Task) -> Runner:
    """The program of a source on the reference backend: a compiled kernel that behaves."""
    outcome = tracer.trace(text, operand_dtypes=task.operand_dtypes())
    assert outcome.program_json is not None, outcome.error
    return Runner(Subject.read(outcome.program_json, task), registry.get("reference"))


def _cases(task: Task) -> Iterator[Case]:
    """The numerics gate's own cases where there is no GPU, drawn freshly."""
    return cases(task, random.SystemRandom().randrange(2**60), device="cpu")


def _runner_row(task: Task, id_: str, title: str, kind: type[exploits.Wrapped], words: tuple[str, ...]) -> Row:
    report = check(task, kind(_reference_run(exploits.HONEST, task)), _cases(task), device="cpu", seconds=60)
    status = str(report.status)
    gate = "numerics" if report.status.refuses else ""
    return Row(
        id=id_,
        title=title,
        expected=", ".join(words),
        gate=gate,
        status=status,
        ok=status in words,
        detail=report.reason[:200],
    )


def _honest_runner_row(task: Task) -> Row:
    report = check(task, _reference_run(exploits.HONEST, task), _cases(task), device="cpu", seconds=60)
    return Row(
        id="C03", title="control: a kernel that behaves", expected="accepted", gate="", status=str(report.status),
        ok=report.status is Status.PASS and report.cases > 4, detail=report.reason[:200],
    )  # fmt: skip


# races on a fake clock --------------------------------------------------------------------------------------------------


class FakeClock:
    """Calls take as long as they say, give or take a per cent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.takes = 1e-3

    def time(self, call: Callable[[], Any]) -> Sample:
        call()
        return Sample(self.takes * (1 + self.rng.gauss(0, 0.01)), 1e-5)


def _race(kernel_s: float, *, stale: bool = False, seed: int = 0) -> tuple[Status, str]:
    clock = FakeClock(seed)
    count = 0

    def honest(seconds: float) -> Callable[[Mapping[str, Any]], dict[str, torch.Tensor]]:
        def variant(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            clock.takes = seconds
            return {"y": inputs["x"] * 2}

        return variant

    def kernel(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        nonlocal count
        count += 1
        clock.takes = kernel_s
        return {"y": inputs["x"] * (2 if not stale or count < 5 else 0)}  # X07: skips once warm-up must be over

    sets = [{"x": torch.full((4,), float(i + 1))} for i in range(3)]
    contest = Race(
        task="race", program_digest="", dims={"M": 4}, kernels={"kernel": kernel}, others={"eager": honest(1e-3)}, ceiling=honest(0.5e-3),
        flops=10**9, traffic=10**6, bandwidth=4e12, absent={},
    )  # fmt: skip

    def right(at: int, out: Mapping[str, torch.Tensor]) -> str | None:
        return None if torch.equal(out["y"], sets[at]["x"] * 2) else "wrong"

    status, reason, _ = race(contest, sets, right, clock, rounds=25, seed=seed)
    return status, reason


def _aa_row() -> Row:
    words = [_race(1e-3, seed=seed)[0] for seed in range(40)]
    same = words.count(Status.NO_DIFFERENCE)
    return Row(
        id="X35", title="the same kernel as both sides", expected="NO_DIFFERENCE in 95 % of runs", gate="bench",
        status=f"NO_DIFFERENCE in {same} of {len(words)}", ok=same >= 38,
    )  # fmt: skip


def _physics_row() -> Row:
    status, reason = _race(0.3e-3)
    return Row(
        id="X55",
        title="faster than physics allows",
        expected="SUSPECT",
        gate="bench",
        status=str(status),
        ok=status is Status.SUSPECT,
        detail=reason,
    )


def _skips_row() -> Row:
    status, reason = _race(0.8e-3, stale=True)
    ok = status is Status.WRONG_VALUES
    return Row(
        id="X07",
        title="stops working once warm-up is over",
        expected="WRONG_VALUES",
        gate="bench",
        status=str(status),
        ok=ok,
        detail=reason,
    )


RACES: tuple[Callable[[], Row], ...] = (_aa_row, _physics_row, _skips_row)


# workers that crash and hang --------------------------------------------------------------------------------------------


FAULTS = f"{__package__}.faults:misbehave"


def _worker_row(id_: str, title: str, how: str, word: str, seconds: float) -> Row:
    """It fails with the right word, and the next candidate is unaffected."""
    outcome = run_worker(FAULTS, {"how": how}, timeout_s=seconds)
    after = run_worker(FAULTS, {"how": "behave"}, timeout_s=60)
    ok = outcome.status == word and after.ok
    detail = "" if after.ok else f"the next candidate: {after.status}"
    return Row(id=id_, title=title, expected=word, gate="worker", status=str(outcome.status), ok=ok, detail=detail)


WORKERS: tuple[Callable[[], Row], ...] = (
    lambda: _worker_row("X69", "crashes its process", "crash", "CRASH", 60),
    lambda: _worker_row("X71", "never ends (kernel or compiler)", "hang", "TIMEOUT", 4),
    lambda: _worker_row("X39", "the benchmark raises", "raise", "RUNTIME_ERROR", 60),
    lambda: _worker_row("X58", "exits with success and no result", "exit", "TAMPERED", 60),
)


# honest controls --------------------------------------------------------------------------------------------------------


def example_ids() -> tuple[str, ...]:
    """Curated examples for which there is a task."""
    known = cards()
    return tuple(id_ for id_ in examples_curated.catalog() if id_ in known)


def _example_row(id_: str, quick: bool) -> Row:
    text = examples_curated.source(id_)
    refused, _ = _judged(text, load(id_), quick)
    return Row(
        id=f"C {id_}", title=f"control: the curated {id_}", expected="accepted", gate=refused.name if refused else "",
        status=str(refused.status) if refused else "PASS", ok=refused is None, detail=refused.reason[:200] if refused else "",
    )  # fmt: skip
