"""Gate `numerics`: is the compiled kernel as right as what people run today, and does it behave?

    check   one runner against its task, case by case
    gate    chooses the device and starts the workers
    work    the worker's entry
    build   on a GPU, the entry of one before it: the kernels of all cases, compiled in parallel

Per case and dtype: outputs are poisoned and guarded, inputs hashed; the kernel runs twice, with different poison and at
different addresses; then every output is compared by `coda.numerics.within` with an fp64 reference of the same rounded
inputs, allowed a multiple of what the task's baseline (eager PyTorch, same dtype) gets wrong, and what rounding in fp32 may do.
Next cases of the same sizes are written into the *same* buffers, so an answer kept from an earlier call shows. Tasks of large
values are also tried with `huge` ones, which overflow where an exponential's argument is not kept in bounds; that case counts only
where the reference and eager PyTorch are finite everywhere.

| seen | word |
|---|---|
| shape, dtype or strides of an output | WRONG_SHAPE, WRONG_DTYPE, WRONG_DEVICE_OR_STRIDE |
| an element that keeps the poison of each run | WRONG_VALUES, "not written" |
| NaN or infinity at other places than the reference | NONFINITE |
| an error above the allowance in any block | WRONG_VALUES |
| a changed byte of an input, a guard that was written | INPUT_MUTATED, TAMPERED |
| two runs that differ in a bit | NONDETERMINISTIC |

What the task's own reference or baseline raises is INVALID_SPEC, a full memory INFRA_ERROR: neither is the kernel's.

With a GPU: bf16 and fp16, ragged and benchmark-like sizes, while no other process of ours uses it. Without: Triton's interpreter
at small sizes in fp32 and fp16 (its bf16 products are wrong), and the evidence says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pydantic import JsonValue

from coda.backends import registry
from coda.errors import BackendUnavailable, CodaError, Unsupported
from coda.numerics import Comparison, alike, response, within
from coda.problem import Schedule
from coda.stochastic import LAST_BIT, spread
from coda.testing import as_bytes
from coda.tuning import Job, build_ahead

from ..records import GateRecord, Status
from ..task import Dims, Task, lengths
from . import inputs as draws
from .algebra import reference
from .blame import blame, described, trusted
from .patterns import describe
from .runner import Buffers, Run, Runner, arch_here, in_turn, problems, schedule_of, submitted
from .sizes import Rules, bounded, hidden
from .subject import Subject, load_task

if TYPE_CHECKING:
    from .judge import Run as Judgement

HUGE = "huge"
"""The distribution whose cases count only where they can be computed."""
FILL = 240.0
"""What outputs hold before the second run, a number of every dtype down to fp8; the first one's hold NaN."""
DEVICE_MAX = 1 << 31
"""M·N·K of a benchmark-like case."""


@dataclass(frozen=True)
class Case:
    """One set of inputs in one dtype."""

    where: str
    dims: Dims
    dtype: str
    distribution: str
    seed: int
    strided: bool = False
    """Matrices as views of other layouts: transposed `b`, rows of a wider buffer."""


@dataclass
class Report:
    """What the cases have shown."""

    status: Status = Status.PASS
    reason: str = ""
    cases: int = 0
    worst: dict[str, dict[str, Any]] = field(default_factory=dict)
    """dtype/output -> the comparison with the largest error ratio."""
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, status: Status, reason: str, case: Case, **more: Any) -> None:
        """Keep the first status and every failure."""
        if self.status is Status.PASS:
            self.status, self.reason = status, reason
        labels = {"where": case.where, "distribution": case.distribution, "dtype": case.dtype, "strided": case.strided}
        self.failures.append({"status": str(status), **more, **labels})

    def record(self, name: str, case: Case, comparison: Comparison) -> None:
        """Keep the worst per dtype and output."""
        key, found = f"{case.dtype}/{name}", comparison.to_dict()
        found |= {"where": case.where, "distribution": case.distribution}
        before = self.worst.get(key)
        if before is None or (found["ratio"] or 0) > (before["ratio"] or 0):
            self.worst[key] = found


def cases(task: Task, seed: int, *, device: str) -> Iterator[Case]:
    """Interpreter: small sizes in fp32 and fp16. GPU: the same and benchmark-like sizes, in bf16 and fp16."""
    rng = random.Random(draws.subseed(seed, "sizes"))
    rules = Rules.of(task)
    small = _small(task, rules, {"cpu": 1 << 19, "cuda": 1 << 26}[device], {"cpu": 2, "cuda": 8}[device])
    spare = [(where, dims) for where, dims in hidden(task, rng) if math.prod(dims.values()) <= 1 << 19]
    large = [
        ("benchmark-like", bounded(s.dims, rules, DEVICE_MAX))
        for s in task.shapes_of("benchmark")[:1]
        if device == "cuda"
    ]
    for dtype in ("bfloat16", "float16") if device == "cuda" else ("float32", "float16"):
        for at, (where, dims) in enumerate((*small, *spare, *large)):
            every = task.distributions if at == 0 else ("normal",)
            if at == 0 and "large" in every:
                every = tuple(dict.fromkeys((*every, HUGE)))
            for distribution in every:
                yield Case(where, dims, dtype, distribution, draws.subseed(seed, dtype, at, distribution))
        where, dims = small[0]
        yield Case(where, dims, dtype, "normal", draws.subseed(seed, dtype, "strided"), strided=True)


def _small(task: Task, rules: Rules, elements: int, count: int) -> list[tuple[str, Dims]]:
    """The largest ragged shapes that fit as they are, then smoke ones; halved only where none fits."""
    found: list[tuple[str, Dims]] = []
    for family in ("ragged", "smoke"):
        fit = [s.dims for s in task.shapes_of(family) if math.prod(s.dims.values()) <= elements]
        fit.sort(key=lambda dims: math.prod(dims.values()), reverse=True)
        found += [(family, dims) for dims in fit[:count]]
    return found or [("ragged", bounded(task.shapes[0].dims, rules, elements))]


# checking -------------------------------------------------------------------------------------------------------------


def check(task: Task, run: Run, todo: Iterator[Case], *, device: str, seconds: float) -> Report:
    """Run the cases until one fails or the time is over, which is a failure too."""
    report, started = Report(), time.monotonic()
    buffers: dict[Any, dict[str, Any]] = {}
    for case in todo:
        if time.monotonic() - started > seconds:
            report.fail(Status.TIMEOUT, f"the cases did not end within {seconds:g} s", case)
            break
        try:
            with trusted(f"drawing the inputs of {task.id}"):
                fresh = draws.draw(
                    task, case.dims, seed=case.seed, distribution=case.distribution, dtype=case.dtype, device=device
                )
            if case.strided:
                inputs = {n: _strided(x) for n, x in fresh.items()}
            else:
                key = (tuple(sorted(case.dims.items())), case.dtype)
                inputs = _rewritten(buffers.get(key), fresh)
                buffers = {key: inputs}  # only the last sizes: memory stays flat
            _case(task, run, case, inputs, report)
        except Exception as error:
            whose = blame(error)
            if whose is None:
                raise
            report.fail(whose, f"at {case.where} sizes in {case.dtype}: {described(error)}"[:1000], case)
        report.cases += 1
        if report.status is not Status.PASS:
            break
    return report


def _rewritten(kept: dict[str, Any] | None, fresh: dict[str, Any]) -> dict[str, Any]:
    """The new values at the addresses of the last case of these sizes."""
    if kept is None:
        return fresh
    for name, x in fresh.items():
        if isinstance(x, torch.Tensor):
            kept[name].copy_(x)
    return kept


def _strided(x: Any) -> Any:
    """The same values as the transpose of a contiguous matrix, or every other element of a longer vector."""
    if not isinstance(x, torch.Tensor) or x.ndim == 0:
        return x
    if x.ndim == 2:
        return x.mT.contiguous().mT
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    return wide[..., ::2]


def _case(task: Task, run: Run, case: Case, inputs: dict[str, Any], report: Report) -> None:
    before = {n: as_bytes(x).clone() for n, x in inputs.items() if isinstance(x, torch.Tensor)}
    first, second = Buffers(), Buffers(fill=FILL)
    try:
        one = run(inputs, first)
        two = run(
            {n: x.clone() if isinstance(x, torch.Tensor) and not case.strided else x for n, x in inputs.items()}, second
        )
        if inputs_device(inputs) == "cuda":
            torch.cuda.synchronize()
    except (BackendUnavailable, Unsupported):
        raise
    except (CodaError, RuntimeError, ValueError, TypeError) as error:
        if blame(error) is not None:
            raise
        what = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
        report.fail(
            Status.RUNTIME_ERROR, f"the kernel does not run at {case.where} sizes in {case.dtype}: {what}"[:1000], case
        )
        return
    changed = [n for n, x in inputs.items() if n in before and not torch.equal(as_bytes(x), before[n])]
    if changed:
        report.fail(Status.INPUT_MUTATED, f"the kernel wrote into its input {', '.join(changed)}", case, inputs=changed)
        return
    if not (first.intact() and second.intact()):
        report.fail(
            Status.TAMPERED,
            "the kernel wrote outside its outputs: a store is not masked",
            case,
            pattern="out of bounds",
        )
        return
    if _metadata(task, case, one, report):
        _values(task, case, inputs, one, two, report)


def inputs_device(inputs: Mapping[str, Any]) -> str:
    """Type of the device of the tensors."""
    return next(x.device.type for x in inputs.values() if isinstance(x, torch.Tensor))


def _metadata(task: Task, case: Case, got: Mapping[str, torch.Tensor], report: Report) -> bool:
    """Exactly the task's outputs: names, shapes, dtypes, dense and plain."""
    names = [o.name for o in task.outputs]
    if set(got) != set(names):
        report.fail(Status.WRONG_SHAPE, f"outputs are {', '.join(got)}; wanted {', '.join(names)}", case)
        return False
    for o in task.outputs:
        x = got[o.name]
        want = getattr(torch, draws.output_dtype(o.dtype, case.dtype))
        if type(x) is not torch.Tensor:
            report.fail(Status.TAMPERED, f"output {o.name!r} is no plain tensor", case, output=o.name)
        elif tuple(x.shape) != lengths(o.shape, case.dims):
            report.fail(Status.WRONG_SHAPE, f"output {o.name!r} has the wrong shape", case, output=o.name)
        elif x.dtype is not want:
            report.fail(Status.WRONG_DTYPE, f"output {o.name!r} is {x.dtype}, wanted {want}", case, output=o.name)
        elif x.numel() and not x.is_contiguous():
            report.fail(Status.WRONG_DEVICE_OR_STRIDE, f"output {o.name!r} is not contiguous", case, output=o.name)
        else:
            continue
        return False
    return True


def expected(task: Task, case: Case, inputs: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], ...]:
    """fp64 reference, the baseline in the working dtype, and the response of the reference to one rounding.

    Raises `Blamed` for what any of them raises.
    """
    wide = draws.upcast(inputs)
    right = reference(task, wide)
    with trusted(f"the baseline of {task.id}"):
        found = task.baseline(**inputs)
        today = {o.name: found[o.name] for o in task.outputs}
    with trusted(f"the response of {task.id}"):
        noise = response(lambda x: reference(task, x), wide, right, seed=draws.subseed(case.seed, "response") % 2**31)
    return right, today, noise


def _computable(right: Mapping[str, torch.Tensor], today: Mapping[str, torch.Tensor]) -> bool:
    """Whether every output is finite, of the reference in its stored dtype too."""
    return all(
        bool(x.double().isfinite().all()) and bool(right[name].to(x.dtype).double().isfinite().all())
        for name, x in today.items()
        if x.is_floating_point()
    )


def spreads(
    task: Task, inputs: Mapping[str, Any], right: Mapping[str, torch.Tensor], seed: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The spread of the reference, and that of the baseline in fp32, where every result on the way is rounded at random.

    Raises `Blamed`.
    """
    seed = draws.subseed(seed, "spread") % 2**31
    with trusted(f"the spread of {task.id}"):
        own = spread(lambda x: reference(task, x), draws.upcast(inputs), right, seed=seed)
        plain = draws.rounded(task, inputs, "float32")
        return own, spread(lambda x: task.baseline(**x), plain, right, seed=seed, unit=LAST_BIT)


def _values(
    task: Task, case: Case, inputs: Mapping[str, Any], one: Mapping[str, Any], two: Mapping[str, Any], report: Report
) -> None:
    right, today, noise = expected(task, case, inputs)
    if case.distribution == HUGE and not _computable(right, today):
        return
    own, usual = spreads(task, inputs, right, case.seed)
    for o in task.outputs:
        x, y = one[o.name], two[o.name]
        unwritten = torch.isnan(x) & (y == torch.full_like(y, FILL))
        if bool(unwritten.any()):
            report.fail(
                Status.WRONG_VALUES,
                f"output {o.name!r} is not written completely",
                case,
                output=o.name,
                pattern="not written",
            )
            return
        try:
            found = within(
                x,
                today[o.name],
                right[o.name],
                working=case.dtype,
                noise=noise[o.name],
                spread=own[o.name],
                usual=usual[o.name],
                length=max(case.dims.values()),
            )
        except ValueError as error:
            report.fail(
                Status.INVALID_SPEC, f"baseline and reference of {task.id} disagree: {error}", case, output=o.name
            )
            return
        report.record(o.name, case, found)
        if not found.ok:
            _wrong(o.name, x, right, inputs, case, found, report)
            return
        if not torch.equal(as_bytes(x), as_bytes(y)):
            report.fail(Status.NONDETERMINISTIC, f"two runs of output {o.name!r} differ", case, output=o.name)
            return


def _wrong(
    name: str,
    x: torch.Tensor,
    right: Mapping[str, torch.Tensor],
    inputs: Mapping[str, Any],
    case: Case,
    found: Comparison,
    report: Report,
) -> None:
    words = {"nonfinite": Status.NONFINITE, "shape": Status.WRONG_SHAPE, "dtype": Status.WRONG_DTYPE}
    wide = draws.upcast(inputs)
    if found.why == "dtype":
        report.fail(
            Status.INVALID_SPEC, f"the baseline's {name!r} has another dtype than the task says", case, output=name
        )
        return
    tolerance = alike(case.dtype)
    seen = describe(x, right[name], inputs=wide, outputs=right, dims=case.dims, name=name, tolerance=tolerance)
    ratio = f", {found.ratio:.2g} times what is allowed" if found.why == "values" else ""
    text = f"output {name!r} in {case.dtype} is too far from the reference{ratio}: {seen.text}"
    numbers = found.to_dict()
    report.fail(
        words.get(found.why, Status.WRONG_VALUES), text, case, output=name, comparison=numbers, **seen.to_dict()
    )


# gate and worker --------------------------------------------------------------------------------------------------------


def gate(run: Judgement) -> GateRecord:
    """On the GPU if one is healthy, else in Triton's interpreter; with every backend that is there."""
    from .judge import from_worker, gpu, probed

    health = gpu(run)
    if health is not None and health.state == "unusable":
        return GateRecord(
            name="numerics",
            status=Status.INFRA_ERROR,
            reason=f"the GPU cannot be used: {health.reason}",
            evidence=health.model_dump(),
        )
    device = "cuda" if health is not None and health.state == "healthy" else "cpu"
    run.gpu = health.device if health is not None and device == "cuda" else None
    wait_s = run.limits.wait_s if device == "cuda" else 0.0
    built = _built_ahead(run) if device == "cuda" else {}
    payload = run.payload(
        "numerics",
        device=device,
        backends=list(run.options.backends),
        seconds=run.limits.numerics_s * 0.85,
        wait_s=wait_s,
    )
    outcome = run.call(
        "agent.verify.numerics:work",
        payload,
        timeout_s=run.limits.numerics_s + wait_s,
        env={"TRITON_INTERPRET": None if device == "cuda" else "1"},
        memory_mb=run.limits.memory_mb,
    )
    record = from_worker("numerics", outcome)
    if device == "cpu":
        return record
    return probed(run, record.model_copy(update={"evidence": {**record.evidence, "built_ahead": built}}), outcome)


def _built_ahead(run: Judgement) -> dict[str, JsonValue]:
    """What became of it. It saves time and decides nothing: whatever fails here shows in the worker that needs it."""
    seconds = run.limits.compile_s
    outcome = run.call(
        "agent.verify.numerics:build",
        run.payload("numerics", backends=list(run.options.backends), seconds=0.9 * seconds),
        timeout_s=seconds,
        env={"TRITON_INTERPRET": None},
        memory_mb=run.limits.memory_mb,
    )
    found = outcome.result or {"reason": outcome.error.message[:500] if outcome.error is not None else ""}
    return {**found, "seconds": round(outcome.seconds, 3)}


def kernels(
    task: Task, subject: Subject, seed: int, schedule: Schedule | None, arch: str | None, *, device: str
) -> list[Job]:
    """What the worker is going to run, for building it in parallel: its cases are many sizes, and in turn each takes seconds."""
    found: dict[Job, None] = {}
    for case in cases(task, seed, device=device):
        inputs = draws.blank(task, case.dims, case.dtype)
        if case.strided:
            inputs = {n: _strided(x) for n, x in inputs.items()}
        for part, problem in problems(subject, inputs, arch):
            found[Job(part, problem, submitted(schedule, part))] = None
    return list(found)


def build(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "seed", "schedule", "backends", "seconds"} -> how many kernels were built."""
    task = load_task(payload["task"])
    subject = Subject.read(payload["program"], task)
    schedule = schedule_of(payload)
    arch = arch_here()
    todo = kernels(task, subject, payload["seed"], schedule, arch, device="cuda")
    return {"kernels": build_ahead(todo, backends=payload["backends"], budget_s=payload["seconds"])}


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "seed", "schedule", "device", "backends", "seconds", "wait_s"} -> status, reason and evidence."""
    if payload["device"] == "cuda":
        return in_turn(lambda: _on_backends(payload), wait_s=payload["wait_s"])
    return _on_backends(payload)


def _on_backends(payload: Mapping[str, Any]) -> dict[str, Any]:
    task = load_task(payload["task"])
    subject = Subject.read(payload["program"], task)
    device = payload["device"]
    names = payload["backends"] or [n for n in registry.MODULES if n != "reference"]
    if device == "cpu":
        names = [n for n in names if n == "triton"]
    schedule = schedule_of(payload)
    tried: dict[str, Any] = {}
    for name in names:
        ready = registry.available().get(name, registry.Support(False, "no such backend"))
        if not ready.ok:
            tried[name] = {"status": "NOT_RUN", "reason": ready.reason}
            continue
        with torch.no_grad():
            tried[name] = _on_backend(task, subject, name, schedule, payload)
    ran = {n: t for n, t in tried.items() if t["status"] != "NOT_RUN"}
    if not ran:
        reasons = "; ".join(f"{n}: {t['reason']}" for n, t in tried.items())
        return {
            "status": "NOT_RUN",
            "reason": f"no fused backend can run here: {reasons or 'none exists'}",
            "evidence": {},
        }
    worst = next((t for t in ran.values() if t["status"] != "PASS"), None)
    evidence = {"device": "interpreter" if device == "cpu" else torch.cuda.get_device_name(), "backends": tried}
    return {
        "status": worst["status"] if worst else "PASS",
        "reason": worst["reason"] if worst else "",
        "evidence": evidence,
    }


def _on_backend(
    task: Task, subject: Subject, name: str, schedule: Schedule | None, payload: Mapping[str, Any]
) -> dict[str, Any]:
    device = payload["device"]
    runner = Runner(subject, registry.get(name), schedule)
    try:
        report = check(
            task, runner, cases(task, payload["seed"], device=device), device=device, seconds=payload["seconds"]
        )
    except (Unsupported, BackendUnavailable) as error:
        return {"status": "NOT_RUN", "reason": f"{error.what}: {error.got or error.hint or ''}"[:500]}
    found = {"cases": report.cases, "errors": report.worst, "failures": report.failures[:8]}
    if schedule is not None and schedule.backend == name:
        found["kernels_with_the_authors_schedule"] = runner.with_own
    return {"status": str(report.status), "reason": report.reason, **found}
