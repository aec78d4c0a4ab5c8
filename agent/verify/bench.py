"""Gate `bench`: how fast is it, against everything people use today? Only on a GPU.

    gate      one worker for all shapes
    work      the worker's entry: per shape, verify, time interleaved, audit the timed outputs
    race      the part that knows nothing of GPUs: variants, a clock, a comparison, a word

Per shape: several sets of inputs are rotated, so that no call sees the inputs of the one before; the outputs of timed calls are
kept for rounds drawn afterwards and compared with the reference; the floor comes from the plain GEMM and a copy measured in
the same run. A kernel that is wrong after timing fails here whatever it was before. The word is about the best peer:
PASS (faster on some shape, slower on none), SLOWER, NO_DIFFERENCE, or SUSPECT, which a person has to look at.
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
from coda.bench.timing import Clock, CudaClock, GpuBusy, gpu_lock, measure
from coda.errors import CodaError
from coda.kernel import from_json
from coda.numerics import within
from coda.problem import Schedule
from coda.tune import choose

from ..records import GateRecord, Status
from ..task import Dims, Task, lengths
from . import inputs as draws
from .numerics import Case, expected
from .runner import problems
from .subject import Subject, load_task

if TYPE_CHECKING:
    from .judge import Run as Judgement

DTYPE = "bfloat16"
SETS = 3
"""Input sets that calls rotate through."""
AUDITS = 4
"""Timed calls whose outputs are compared afterwards."""

Tensors = Mapping[str, torch.Tensor]
Variant = Callable[[Mapping[str, Any]], Tensors]
"""Inputs by name in, outputs by name out."""
Check = Callable[[int, Tensors], str | None]
"""(input set, outputs) -> what is wrong with them, or None."""


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
    author: str
    flops: int
    traffic: int
    bandwidth: float
    absent: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gpu: str = ""


def race(
    race: Race, sets: Sequence[Mapping[str, Any]], check: Check, clock: Clock, *, rounds: int, seed: int
) -> tuple[Status, str, BenchRecord | None]:
    """Time everything, audit the kernels' timed outputs, and say the word for this shape."""
    kept: dict[str, dict[int, Tensors]] = {name: {} for name in race.kernels}
    rng = random.Random(seed)
    chosen = set(rng.sample(range(rounds), min(AUDITS, rounds)))  # the kernel cannot know which

    def call_of(name: str, variant: Variant) -> Callable[[int], Any]:
        def call(at: int) -> None:
            out = variant(sets[at % len(sets)])
            if name in kept and at in chosen:
                kept[name][at] = out

        return call

    everything = {**race.kernels, **race.others, **({"cublas": race.ceiling} if race.ceiling else {})}
    timings = measure({n: call_of(n, v) for n, v in everything.items()}, clock, rounds=rounds, seed=seed)
    audits = sorted((at % len(sets), at, name) for name, outputs in kept.items() for at in outputs)
    for which, at, name in audits:
        wrong = check(which, kept[name][at])
        if wrong:
            return Status.WRONG_VALUES, f"an output of a timed call of {name} is wrong: {wrong}", None
    best = min(race.kernels, key=lambda n: timings.summary(n).median)
    against = [(n, timings.compare(best, n)) for n in race.others]
    fastest = min((timings.summary(n).median for n in race.others), default=None)
    gemm = race.flops / timings.summary("cublas").median if race.ceiling and race.flops else None
    floor = Floor.of_numbers(race.flops if gemm else 0, race.traffic, Rates(gemm or 1.0, race.bandwidth))
    doubt = suspicion(timings.summary(best).median, floor, gpu=race.gpu, best_peer=fastest)
    authors = dict.fromkeys(race.kernels, race.author) | {
        n: peers.PEERS[n].author if n in peers.PEERS else "human" for n in (*race.others, "cublas")
    }
    record = BenchRecord(
        task=race.task,
        program_digest=race.program_digest,
        dims=dict(race.dims),
        dtype=DTYPE,
        verified=True,
        kernel=best,
        measured=measured(timings, authors, race.configs),
        compared=tuple(Compared(n, r.ratio, r.low, r.high, r.word) for n, r in against),
        noise_floor=timings.floor,
        floor=floor,
        bandwidth=race.bandwidth,
        gemm_flops=gemm,
        suspicion=doubt,
        absent=dict(race.absent),
        environment={"gpu": race.gpu},
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
        wait_s=run.limits.bench_s * 0.25,
    )
    outcome = run.call(
        "agent.verify.bench:work",
        payload,
        timeout_s=run.limits.bench_s,
        env={"TRITON_INTERPRET": None},
        memory_mb=run.limits.memory_mb,
    )
    return probed(run, from_worker("bench", outcome), outcome)


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "seed", "schedule", "backends", "shapes", "peers", "rounds"} -> status, reason, evidence with the records."""
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with gpu_lock(_device(), timeout_s=payload["wait_s"]):
            return _measure(payload)
    except GpuBusy as error:
        return {"status": "INFRA_ERROR", "reason": str(error), "evidence": {"waited_s": payload["wait_s"]}}


def _device() -> int | str:
    """What tells this GPU from others whatever its index in this process."""
    index = torch.cuda.current_device()
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", index))


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
        with torch.no_grad():
            word, reason, record = _shape(task, subject, dims, payload, clock, bandwidth, seed)
        words.append(word)
        found = {**environment(), **(record.environment if record else {})}
        shown = None if record is None else {**_plain(record), "environment": found}
        said.append({"dims": dict(dims), "status": str(word), "reason": reason, "record": shown})
        torch.cuda.empty_cache()
        if word.refuses and word is not Status.SUSPECT:
            break
    status = together(words)
    told = next((s for s in said if s["status"] == str(status)), said[0])
    return {
        "status": str(status),
        "reason": "" if status is Status.PASS else told["reason"],
        "evidence": {"shapes": said},
    }


def _plain(record: BenchRecord) -> dict[str, Any]:
    import json

    plain: dict[str, Any] = json.loads(record.to_json())
    return plain


def _shape(
    task: Task, subject: Subject, dims: Dims, payload: Mapping[str, Any], clock: Clock, bandwidth: float, seed: int
) -> tuple[Status, str, BenchRecord | None]:
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
    others, ceiling = _peers(task, setting, sets[0], absent, payload.get("peers") or ())
    contest = Race(
        task=task.id,
        program_digest=subject.program.digest,
        dims=dims,
        kernels=kernels,
        others=others,
        ceiling=ceiling,
        author="candidate",
        flops=sum(2 * m * n * k for m, n, k in gemms),
        traffic=_traffic(task, dims),
        bandwidth=bandwidth,
        absent=absent,
        configs=configs,
        gpu=torch.cuda.get_device_name(),
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
        theirs = schedule if schedule is not None and schedule.backend == name else None
        for label, config in {name: None, **({f"{name}, author's schedule": theirs} if theirs else {})}.items():
            try:
                ready = registry.get(name).available()
                if not ready.ok:
                    absent[label] = ready.reason
                    continue
                variant = _caller(kernel, subject, name, config)
                variant(inputs)
                torch.cuda.synchronize()
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
        chosen = config if config is not None and part.kind == "epilogue" else None
        found[part.name] = choose(part, problem, backend, chosen)[1].to_dict()
    return found


def _peers(
    task: Task, setting: peers.Setting, inputs: Mapping[str, Any], absent: dict[str, str], wanted: Sequence[str]
) -> tuple[dict[str, Variant], Variant | None]:
    """Every ready peer (of those wanted, if any are named; the ceiling always), warmed up; the others are in `absent` with
    the reason."""
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
                variant(inputs)
            torch.cuda.synchronize()
        except Exception as error:
            absent[name] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            continue
        if entry.peer.competes:
            found[name] = variant
        else:
            ceiling = variant
    return found, ceiling


def _checker(task: Task, dims: Dims, sets: Sequence[Mapping[str, Any]], seed: int) -> Check:
    """Compares on the device, with the reference of one set at a time: audits come sorted by set."""
    known: dict[int, tuple[dict[str, torch.Tensor], ...]] = {}

    def check(at: int, out: Tensors) -> str | None:
        if at not in known:
            known.clear()
            case = Case("benchmark", dims, DTYPE, "normal", draws.subseed(seed, at))
            known[at] = expected(task, case, sets[at])
        right, trusted, noise = known[at]
        length = max(dims.values())
        for o in task.outputs:
            name = o.name
            found = within(out[name], trusted[name], right[name], working=DTYPE, noise=noise[name], length=length)
            if not found.ok:
                return f"output {name!r} ({found.why}, {found.bad_blocks} of {found.blocks} blocks)"
        return None

    return check
