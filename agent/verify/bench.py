"""Gate `bench`: how fast is it, against everything people use today? Only on a GPU.

    gate      one worker for all shapes
    work      the worker's entry: per shape, verify, time interleaved, audit the timed outputs
    race      the part that knows nothing of GPUs: variants, a clock, a comparison, a word

Per shape: several sets of inputs are rotated, so that no call sees the inputs of the one before; the outputs of timed calls are
kept for rounds drawn afterwards and compared with the reference; the floor comes from the plain GEMM and a copy measured in
the same run. A kernel that is wrong after timing fails here whatever it was before; a peer that is wrong does not race. The
word is about the best peer: PASS (faster on some shape, slower on none), SLOWER, NO_DIFFERENCE, or SUSPECT, which a person has
to look at.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from coda.backends import registry
from coda.bench import peers
from coda.bench.record import BenchRecord, Compared, environment, measured
from coda.bench.roofline import Floor, Rates, copy_bandwidth, device_copy, suspicion
from coda.bench.timing import Clock, CudaClock, measure
from coda.errors import CodaError
from coda.kernel import from_json
from coda.numerics import within
from coda.problem import Schedule
from coda.tune import choose

from ..records import GateRecord, Status
from ..task import Dims, Task, lengths
from . import inputs as draws
from .blame import blame, described, trusted
from .numerics import Case, expected
from .runner import in_turn, own, problems
from .subject import Subject, load_task

if TYPE_CHECKING:
    from .judge import Run as Judgement

DTYPE = "bfloat16"
CANDIDATE = "candidate"
"""The author of what is judged: the judge does not know whose it is, what keeps the kernel does."""
SETS = 3
"""Input sets that calls rotate through."""
AUDITS = 4
"""Timed calls whose outputs are compared afterwards."""

Tensors = Mapping[str, torch.Tensor]
Variant = Callable[[Mapping[str, Any]], Tensors]
"""Inputs by name in, outputs by name out."""
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
    """Peers that compete."""
    ceiling: Variant | None
    """The GEMM alone."""
    flops: int
    traffic: int
    bandwidth: float
    absent: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the numbers depend on besides the kernel."""


def race(
    contest: Race, sets: Sequence[Mapping[str, Any]], check: Check, clock: Clock, *, rounds: int, seed: int
) -> Answer:
    """Time everything, audit the kernels' timed outputs, and say the word for this shape."""
    kept: dict[str, dict[int, Tensors]] = {name: {} for name in contest.kernels}
    rng = random.Random(seed)
    chosen = set(rng.sample(range(rounds), min(AUDITS, rounds)))  # the kernel cannot know which

    def call_of(name: str, variant: Variant) -> Callable[[int], Any]:
        def call(at: int) -> None:
            out = variant(sets[at % len(sets)])
            if name in kept and at in chosen:
                kept[name][at] = out

        return call

    everything = {**contest.kernels, **contest.others, **({"cublas": contest.ceiling} if contest.ceiling else {})}
    timings = measure({n: call_of(n, v) for n, v in everything.items()}, clock, rounds=rounds, seed=seed)
    audits = sorted((at % len(sets), at, name) for name, outputs in kept.items() for at in outputs)
    for which, at, name in audits:
        wrong = check(which, kept[name][at])
        if wrong:
            return Status.WRONG_VALUES, f"an output of a timed call of {name} is wrong: {wrong}", None
    best = min(contest.kernels, key=lambda n: timings.summary(n).median)
    against = [(n, timings.compare(best, n)) for n in contest.others]
    fastest = min((timings.summary(n).median for n in contest.others), default=None)
    gemm = contest.flops / timings.summary("cublas").median if contest.ceiling and contest.flops else None
    floor = Floor.of_numbers(contest.flops if gemm else 0, contest.traffic, Rates(gemm or 1.0, contest.bandwidth))
    doubt = suspicion(timings.summary(best).median, floor, gpu=contest.environment.get("gpu", ""), best_peer=fastest)
    authors = dict.fromkeys(contest.kernels, CANDIDATE) | {
        n: peers.PEERS[n].author if n in peers.PEERS else "human" for n in (*contest.others, "cublas")
    }
    record = BenchRecord(
        task=contest.task,
        program_digest=contest.program_digest,
        dims=dict(contest.dims),
        dtype=DTYPE,
        verified=True,
        kernel=best,
        measured=measured(timings, authors, contest.configs),
        compared=tuple(Compared(n, r.ratio, r.low, r.high, r.word) for n, r in against),
        noise_floor=timings.floor,
        floor=floor,
        bandwidth=contest.bandwidth,
        gemm_flops=gemm,
        suspicion=doubt,
        absent=dict(contest.absent),
        environment=dict(contest.environment),
        protocol={
            "rounds": rounds,
            "seed": seed,
            "input_sets": len(sets),
            "audited": len(chosen),
            "cache": "cold",
            "backlog": True,
        },
    )
    if doubt:
        return Status.SUSPECT, doubt, record
    top = record.best_peer
    if top is None:
        return Status.NO_DIFFERENCE, "there is no peer to compare with", record
    word = {"faster": Status.PASS, "slower": Status.SLOWER, "no difference": Status.NO_DIFFERENCE}[top.word]
    return word, f"{top.word} against {top.peer}: {top.ratio:.3f} [{top.low:.3f}, {top.high:.3f}] of its time", record


def together(words: Sequence[Status]) -> Status:
    """One word for all shapes: a refusal first, then SLOWER if any is, then PASS if any is."""
    refused = next((w for w in words if w.refuses), None)
    if refused is not None:
        return refused
    return next((w for w in (Status.SLOWER, Status.PASS) if w in words), Status.NO_DIFFERENCE)


# gate and worker --------------------------------------------------------------------------------------------------------


def gate(run: Judgement) -> GateRecord:
    """Not run without a GPU."""
    from .judge import from_worker, probed

    if not run.options.device or run.gpu is None:
        return GateRecord.not_run("bench", "no GPU" if run.options.device else "not asked to use a GPU")
    payload = run.payload(
        "bench",
        backends=list(run.options.backends),
        shapes=[dict(s) for s in run.options.bench_shapes],
        peers=list(run.options.bench_peers),
        rounds=run.options.bench_rounds,
        wait_s=run.limits.wait_s,
    )
    outcome = run.call(
        "agent.verify.bench:work",
        payload,
        timeout_s=run.limits.bench_s + run.limits.wait_s,
        env={"TRITON_INTERPRET": None},
        memory_mb=run.limits.memory_mb,
    )
    return probed(run, from_worker("bench", outcome), outcome)


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "seed", "schedule", "backends", "shapes", "peers", "rounds", "wait_s"} -> status, reason, evidence
    with the records."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return in_turn(lambda: _measure(payload), wait_s=payload["wait_s"])


def _measure(payload: Mapping[str, Any]) -> dict[str, Any]:
    task = load_task(payload["task"])
    subject = Subject.read(payload["program"], task)
    clock = CudaClock()
    copy, moved = device_copy()
    bandwidth = copy_bandwidth(clock, copy, moved)
    del copy
    words: list[Status] = []
    said: list[dict[str, Any]] = []
    shapes: list[Dims] = payload["shapes"] or [s.dims for s in task.shapes_of("benchmark")]
    for at, dims in enumerate(shapes):
        seed = draws.subseed(payload["seed"], at) % 2**31
        word, reason, record = _blamed(
            lambda dims=dims, seed=seed: _shape(task, subject, dims, payload, clock, bandwidth, seed)  # type: ignore[misc]
        )
        words.append(word)
        shown = None if record is None else _plain(record)
        said.append({"dims": dict(dims), "status": str(word), "reason": reason, "record": shown})
        if word.refuses and word is not Status.SUSPECT:
            break
        torch.cuda.empty_cache()
    status = together(words)
    told = next((s for s in said if s["status"] == str(status)), said[0])
    return {
        "status": str(status),
        "reason": "" if status is Status.PASS else told["reason"],
        "evidence": {"shapes": said},
    }


def _blamed(measure_one: Callable[[], Answer]) -> Answer:
    """A shape's answer. What the task or the machine does wrong is its word; what is not theirs is raised."""
    try:
        with torch.no_grad():
            return measure_one()
    except Exception as error:
        whose = blame(error)
        if whose is None:
            raise
        return whose, described(error)[:1000], None


def _plain(record: BenchRecord) -> dict[str, Any]:
    import json

    plain: dict[str, Any] = json.loads(record.to_json())
    return plain


def _shape(
    task: Task,
    subject: Subject,
    dims: Dims,
    payload: Mapping[str, Any],
    clock: Clock,
    bandwidth: float,
    seed: int,
) -> Answer:
    with trusted(f"drawing the inputs of {task.id}"):
        sets = [draws.draw(task, dims, seed=draws.subseed(seed, i), dtype=DTYPE, device="cuda") for i in range(SETS)]
    kernels, configs, absent = _kernels(subject, payload, sets[0])
    if not kernels:
        return Status.RUNTIME_ERROR, "; ".join(f"{n}: {why}" for n, why in absent.items()), None
    check = _checker(task, dims, sets, seed)
    for name, variant in kernels.items():
        wrong = check(0, variant(sets[0]))
        if wrong:
            return Status.WRONG_VALUES, f"{name}: {wrong}", None
    gemms = tuple((p.m, p.n, p.k) for part, p in problems(subject, sets[0], None) if part.kind == "epilogue")
    roles = {i.role: i.name for i in task.inputs}
    a_b = (roles["a"], roles["b"]) if {"a", "b"} <= roles.keys() else None
    setting = peers.Setting(task.id, task.baseline, sets[0], gemms, a_b)
    others, ceiling = _peers(task, setting, check, absent, payload.get("peers") or ())
    contest = Race(
        task=task.id,
        program_digest=subject.program.digest,
        dims=dims,
        kernels=kernels,
        others=others,
        ceiling=ceiling,
        flops=sum(2 * m * n * k for m, n, k in gemms),
        traffic=_traffic(task, dims),
        bandwidth=bandwidth,
        absent=absent,
        configs=configs,
        environment=environment(),  # everything is warm: the clocks are those of the race
    )
    return race(contest, sets, check, clock, rounds=payload["rounds"], seed=seed)


def _traffic(task: Task, dims: Dims) -> int:
    """Bytes of declared inputs and outputs, each once."""

    def count(shape: tuple[str, ...]) -> int:
        total = 1
        for length in lengths(shape, dims):
            total *= length
        return total

    def size(dtype: str) -> int:
        return torch.empty((), dtype=getattr(torch, dtype)).element_size()

    read = sum(count(i.shape) * size(draws.input_dtype(i, DTYPE)) for i in task.inputs if i.default is None)
    return read + sum(count(o.shape) * size(draws.output_dtype(o.dtype, DTYPE)) for o in task.outputs)


def _kernels(
    subject: Subject, payload: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[dict[str, Variant], dict[str, dict[str, Any]], dict[str, str]]:
    """The candidate on every fused backend that runs it here, called as a user calls it; the others with their reason."""
    found: dict[str, Variant] = {}
    configs: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    schedule = Schedule.from_dict(payload["schedule"]) if payload["schedule"] else None
    kernel = from_json(payload["program"])
    for name in payload["backends"] or [n for n in registry.MODULES if n != "reference"]:
        theirs = next((s for part in subject.parts if (s := own(schedule, name, part))), None)
        for label, config in {name: None, **({f"{name}, author's schedule": theirs} if theirs else {})}.items():
            try:
                ready = registry.get(name).available()
                if not ready.ok:
                    absent[label] = ready.reason
                    continue
                variant = _caller(kernel, subject, name, config)
                variant(inputs)
                _synchronize()
                configs[label] = _schedules(subject, inputs, name, config)
            except CodaError as error:
                absent[label] = str(error)[:500]
                continue
            found[label] = variant
    return found, configs, absent


def _caller(kernel: Any, subject: Subject, backend: str, config: Schedule | None) -> Variant:
    def call(inputs: Mapping[str, Any]) -> Tensors:
        return kernel(**subject.bind(inputs), backend=backend, config=config)._asdict()  # type: ignore[no-any-return]

    return call


def _schedules(subject: Subject, inputs: Mapping[str, Any], backend: str, config: Schedule | None) -> dict[str, Any]:
    """What each of its programs ran with."""
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    found: dict[str, Any] = {}
    for part, problem in problems(subject, inputs, arch):
        found[part.name] = choose(part, problem, backend, own(config, backend, part))[1].to_dict()
    return found


def _peers(
    task: Task, setting: peers.Setting, check: Check, absent: dict[str, str], wanted: Sequence[str]
) -> tuple[dict[str, Variant], Variant | None]:
    """Every ready peer (of those wanted, if any are named; the ceiling always), warmed up and, if it competes, as right as a
    kernel must be; the others are in `absent` with the reason."""
    found: dict[str, Variant] = {}
    ceiling: Variant | None = None
    for entry in peers.lineup(task.id, task.peers, gemms=task.gemms):
        name = entry.peer.name
        if entry.state != "ready":
            absent[name] = f"{entry.state}: {entry.reason}"
            continue
        if wanted and entry.peer.competes and name not in wanted:
            absent[name] = "not asked for"
            continue
        try:
            variant: Variant = peers.build(name, setting)
            for _ in range(2):
                out = variant(setting.inputs)
            _synchronize()
            wrong = check(0, out) if entry.peer.competes else None
        except Exception as error:
            absent[name] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            continue
        if wrong:
            absent[name] = f"wrong: {wrong}"
            continue
        if entry.peer.competes:
            found[name] = variant
        else:
            ceiling = variant
    return found, ceiling


def _synchronize() -> None:
    """Errors of a launch show when the device is waited for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _checker(task: Task, dims: Dims, sets: Sequence[Mapping[str, Any]], seed: int) -> Check:
    """Compares on the device, with the reference of one set at a time: audits come sorted by set."""
    known: dict[int, tuple[dict[str, torch.Tensor], ...]] = {}

    def check(at: int, out: Tensors) -> str | None:
        if at not in known:
            known.clear()
            case = Case("benchmark", dims, DTYPE, "normal", draws.subseed(seed, at))
            known[at] = expected(task, case, sets[at])
        right, today, noise = known[at]
        length = max(dims.values())
        for o in task.outputs:
            name = o.name
            found = within(out[name], today[name], right[name], working=DTYPE, noise=noise[name], length=length)
            if not found.ok:
                return f"output {name!r} ({found.why}, {found.bad_blocks} of {found.blocks} blocks)"
        return None

    return check
