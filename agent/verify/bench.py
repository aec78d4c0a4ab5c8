"""Gate `bench`: how fast is it, against everything people use today? Only on a GPU.

    gate      one worker for all shapes
    work      the worker's entry: per shape, make the entrants, race them, audit the timed outputs

Per shape: several sets of inputs are rotated, so that no call sees the inputs of the one before; the outputs of timed calls are
kept for rounds drawn afterwards and compared with the reference; the floor is the task's (`floors.py`), at the rates of the plain
GEMM and of a copy measured in the same run. A kernel that is wrong after timing fails here whatever it was before; a peer that is
wrong does not race. The word over all shapes: PASS (faster on some shape, slower on none), SLOWER, NO_DIFFERENCE, or SUSPECT,
which a person has to look at. Neighbours: `entrants.py` makes what races, `racing.py` times it; `suite.py` benchmarks many kernels
without judging them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from coda.bench.record import BenchRecord, environment
from coda.bench.roofline import copy_bandwidth, device_copy
from coda.bench.timing import Clock, CudaClock

from ..records import GateRecord, Status
from ..task import Dims, Task
from . import floors, tuning
from . import inputs as draws
from .blame import blame, described
from .entrants import Entrants, checker, enter, sets_of
from .racing import Answer, Race, race, together
from .runner import in_turn
from .subject import Subject, load_task

if TYPE_CHECKING:
    from .judge import Run as Judgement


def gate(run: Judgement) -> GateRecord:
    """Not run without a GPU."""
    from .judge import from_worker, probed

    if not run.options.device or run.gpu is None:
        return GateRecord.not_run("bench", "no GPU" if run.options.device else "not asked to use a GPU")
    won = tuning.tuned(run)
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
    record = from_worker("bench", outcome)
    if won:
        record = record.model_copy(update={"evidence": {**record.evidence, "tuned": won}})
    return probed(run, record, outcome)


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
        word, reason, record = blamed(
            lambda dims=dims, seed=seed: _shape(task, subject, dims, payload, clock, bandwidth, seed)  # type: ignore[misc]
        )
        words.append(word)
        shown = None if record is None else plain(record)
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


def blamed(measure_one: Callable[[], Answer]) -> Answer:
    """A shape's answer. What the task or the machine does wrong is its word; what is not theirs is raised."""
    try:
        with torch.no_grad():
            return measure_one()
    except Exception as error:
        whose = blame(error)
        if whose is None:
            raise
        return whose, described(error)[:1000], None


def plain(record: BenchRecord) -> dict[str, Any]:
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
    sets = sets_of(task, dims, seed=seed)
    check = checker(task, dims, sets, seed)
    found = enter(task, subject, sets, check, payload, alike=check.peer)
    refused = refusal(found)
    if refused is not None:
        return refused
    contest = contest_of(task, subject, dims, found, bandwidth)
    return race(contest, sets, check, clock, rounds=payload["rounds"], seed=seed)


def refusal(found: Entrants) -> Answer | None:
    """The word where no kernel can race: NOT_RUN where this machine has none of its backends, which is no fault of the kernel."""
    if found.wrong:
        return Status.WRONG_VALUES, found.wrong, None
    if not found.kernels:
        word = Status.NOT_RUN if found.refused.keys() <= found.unavailable else Status.RUNTIME_ERROR
        return word, "; ".join(f"{n}: {why}" for n, why in found.refused.items()) or "there is no fused backend", None
    return None


def contest_of(task: Task, subject: Subject, dims: Dims, found: Entrants, bandwidth: float) -> Race:
    """The race of what is ready."""
    return Race(
        task=task.id,
        program_digest=subject.program.digest,
        dims=dims,
        kernels=found.kernels,
        others=found.others,
        ceiling=found.ceiling,
        flops=floors.flops(task, dims),
        traffic=floors.traffic(task, dims),
        bandwidth=bandwidth,
        absent=found.absent,
        configs=found.configs,
        origins=found.origins,
        environment=environment(),  # everything is warm: the clocks are those of the race
        beside=found.beside,
        prepared=found.prepared,
        peer_of=found.peer_of,
        notes=found.notes,
        default=found.default if found.default in found.kernels else "",
    )
