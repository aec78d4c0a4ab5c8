"""A race on one shape: variants, a clock, a comparison, a word. Knows nothing of GPUs, packages or processes.

    Race   what runs: the kernel on each backend, the candidates of every peer, ceilings
    race   time everything, audit the kernels' timed outputs, say the word
    together  one word for several shapes

A peer may race with several candidates, and the kernel on several backends and with its author's schedule: the fastest one's
time is the peer's, or the kernel's, and the record names it. The fastest of many owes a little to luck, on both sides, and more
to whoever has more variants. Which of ours a call without `backend` takes is in the record too, with its time. The word is about the best peer: PASS (faster), SLOWER, NO_DIFFERENCE, or
SUSPECT, which a person has to look at. Neighbours: `entrants.py` makes what races, `bench.py` is the gate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from coda.bench import peers
from coda.bench.record import BenchRecord, Compared, measured, now
from coda.bench.roofline import Floor, Rates, suspicion
from coda.bench.timing import PUBLISHED_RUNS, Clock, Timings, measure, measure_published

from ..records import Status
from ..task import Dims

if TYPE_CHECKING:
    import torch

DTYPE = "bfloat16"
CANDIDATE = "candidate"
"""The author of what is judged: the judge does not know whose it is, what keeps the kernel does."""
AUDITS = 4
"""Timed calls whose outputs are compared afterwards."""

Protocol = Literal["default", "paper"]
Tensors = Mapping[str, "torch.Tensor"]
Variant = Callable[[Mapping[str, Any]], Any]
"""Inputs by name in; a kernel's outputs by name out, whatever a peer writes."""
Check = Callable[[int, Tensors], str | None]
"""(input set, outputs) -> what is wrong with them, or None."""
Answer = tuple[Status, str, BenchRecord | None]
"""The word for one shape, why, and the record where there is one."""


@dataclass(frozen=True)
class Race:
    """What is raced on one shape."""

    task: str
    program_digest: str
    dims: Dims
    kernels: Mapping[str, Variant]
    """The candidate on each backend."""
    others: Mapping[str, Variant]
    """Everything that competes, by the name under which it is timed."""
    ceiling: Variant | None
    """The GEMM alone."""
    flops: int
    """Of the products of the task, which the ceiling computes too, however many the kernel has."""
    traffic: int
    """Bytes of the task's inputs and outputs, each once."""
    bandwidth: float
    absent: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """Of a kernel's variant: where its schedules come from."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the numbers depend on besides the kernel."""
    beside: Mapping[str, Variant] = field(default_factory=dict)
    """More ceilings: the kernels' own mainloop with an empty epilogue."""
    prepared: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """A variant's own input sets, where it has the inputs in another layout."""
    peer_of: Mapping[str, str] = field(default_factory=dict)
    """The peer of a candidate that has not its name."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What a reader must know of a variant."""
    default: str = ""
    """Of `kernels`, the one that a call without `backend` and `config` takes; empty where it is not among them."""

    def everything(self) -> dict[str, Variant]:
        """All variants in the order of tables; the first is measured twice."""
        ceiling = {"cublas": self.ceiling} if self.ceiling else {}
        return {**self.kernels, **self.others, **ceiling, **self.beside}

    def candidates(self) -> dict[str, list[str]]:
        """The variants of every peer."""
        found: dict[str, list[str]] = {}
        for name in self.others:
            found.setdefault(self.peer_of.get(name, name), []).append(name)
        return found


def race(
    contest: Race,
    sets: Sequence[Mapping[str, Any]],
    check: Check,
    clock: Clock,
    *,
    rounds: int,
    seed: int,
    protocol: Protocol = "default",
) -> Answer:
    """Time everything, audit the kernels' timed outputs, and say the word for this shape."""
    rounds = PUBLISHED_RUNS if protocol == "paper" else rounds
    kept: dict[str, dict[int, Tensors]] = {name: {} for name in contest.kernels}
    chosen = set(random.Random(seed).sample(range(rounds), min(AUDITS, rounds)))  # the kernel cannot know which

    def call_of(name: str, variant: Variant) -> Callable[[int], Any]:
        own = contest.prepared.get(name, sets)

        def call(at: int) -> None:
            out = variant(own[at % len(own)])
            if name in kept and at in chosen:
                kept[name][at] = out

        return call

    calls = {n: call_of(n, v) for n, v in contest.everything().items()}
    if protocol == "paper":
        timings = measure_published(calls, clock, runs=rounds)  # type: ignore[arg-type]
    else:
        timings = measure(calls, clock, rounds=rounds, seed=seed)
    audits = sorted((at % len(sets), at, name) for name, outputs in kept.items() for at in outputs)
    for which, at, name in audits:
        wrong = check(which, kept[name][at])
        if wrong:
            return Status.WRONG_VALUES, f"an output of a timed call of {name} is wrong: {wrong}", None
    how = {
        "name": protocol,
        "rounds": rounds,
        "seed": seed,
        "input_sets": len(sets),
        "audited": len(chosen),
        "cache": "cold",
        "backlog": protocol == "default",
        "interleaved": protocol == "default",
    }
    return _word(_record(contest, timings, how))


def _record(contest: Race, timings: Timings, how: Mapping[str, Any]) -> BenchRecord:
    medians = {name: timings.summary(name).median for name in contest.everything()}
    best = min(contest.kernels, key=medians.__getitem__)
    compared = tuple(_compared(contest, timings, medians, best))
    fastest = min((medians[c.variant or c.peer] for c in compared), default=None)
    gemm = contest.flops / medians["cublas"] if contest.ceiling and contest.flops else None
    floor = Floor.of_numbers(contest.flops if gemm else 0, contest.traffic, Rates(gemm or 1.0, contest.bandwidth))
    authors = dict.fromkeys(contest.kernels, CANDIDATE) | dict.fromkeys(contest.beside, "project") | {"cublas": "tool"}
    for name in contest.others:
        known = peers.PEERS.get(contest.peer_of.get(name, name))
        authors[name] = known.author if known else "human"
    return BenchRecord(
        task=contest.task,
        program_digest=contest.program_digest,
        dims=dict(contest.dims),
        dtype=DTYPE,
        verified=True,
        kernel=best,
        measured=measured(
            timings,
            authors,
            contest.configs,
            {n: contest.peer_of.get(n, n) for n in contest.others},
            contest.notes,
            contest.origins,
        ),
        compared=compared,
        noise_floor=timings.floor,
        floor=floor,
        bandwidth=contest.bandwidth,
        gemm_flops=gemm,
        suspicion=suspicion(medians[best], floor, gpu=contest.environment.get("gpu", ""), best_peer=fastest),
        absent=dict(contest.absent),
        environment=dict(contest.environment),
        protocol=dict(how),
        default=contest.default,
        measured_at=now(),
    )


def _compared(contest: Race, timings: Timings, medians: Mapping[str, float], best: str) -> Iterator[Compared]:
    for peer, names in contest.candidates().items():
        fastest = min(names, key=medians.__getitem__)
        r = timings.compare(best, fastest)
        yield Compared(peer, r.ratio, r.low, r.high, r.word, "" if fastest == peer else fastest)


def _word(record: BenchRecord) -> Answer:
    if record.suspicion:
        return Status.SUSPECT, record.suspicion, record
    top = record.best_peer
    if top is None:
        return Status.NO_DIFFERENCE, "there is no peer to compare with", record
    word = {"faster": Status.PASS, "slower": Status.SLOWER, "no difference": Status.NO_DIFFERENCE}[top.word]
    whom = top.variant or top.peer
    return word, f"{top.word} against {whom}: {top.ratio:.3f} [{top.low:.3f}, {top.high:.3f}] of its time", record


def together(words: Sequence[Status]) -> Status:
    """One word for all shapes: a refusal first, then NOT_RUN if any did not, then SLOWER if any is, then PASS if any is."""
    refused = next((w for w in words if w.refuses), None)
    if refused is not None:
        return refused
    return next((w for w in (Status.NOT_RUN, Status.SLOWER, Status.PASS) if w in words), Status.NO_DIFFERENCE)
