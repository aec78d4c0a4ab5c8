"""Gate `algebra`: is it the right formula? fp64 on a CPU, so that nothing but the formula can differ.

    check       one program against its task: every distribution × visible and hidden sizes, long and thin ones, calculus, probes
    reference   the task's reference in fp64
    compare     the comparison of one case (shared with the spec lint: what the lint's mutants must not survive)
    work        the worker's entry: program JSON and task name in, evidence out

Sizes and seeds are drawn per run (`sizes.hidden`, `inputs.draw`). For a gradient, two checks need no reference: outputs
named linear are linear in the upstream gradient, and <output, d> is the directional derivative of the forward function
along d by central differences. Probes (`probes.py`) go where no distribution does: to every magnitude, and to both sides of every
choice that the program makes. What they cannot reach is named as untested (`branches.py`): such a pass is one to look at.
The process is our own code on data; it is bounded in time all the same.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from coda.errors import CodaError
from coda.numerics import DIFFERENCE, EXACT, LINEAR, PROBE, Comparison, exact
from coda.stochastic import FP64, spread

from ..records import Status
from ..task import Dims, Gradient, Task
from . import inputs as draws
from .blame import Blamed, blame, described, trusted
from .branches import Branches, Seen
from .patterns import describe
from .probes import ORDINARY, Probe, edges, integers, ladder, numbers, sizes
from .sizes import hidden, long_shapes, small_shapes
from .subject import Subject, load_task

FAMILIES = ("smoke", "ragged")
"""Sizes that the task lists: it must accept them."""
DRAWS = 32
"""Of the reference's spread in fp64, where a difference may be its own: at a jump even a rare turn must show."""
STEP = 1e-5
"""Of central differences, relative to the size of the input."""


@dataclass(frozen=True)
class Case:
    """One set of inputs."""

    where: str
    """smoke, ragged, tiny, near, far or long: never sizes, the author sees this word."""
    dims: Dims
    distribution: str
    seed: int


@dataclass
class Findings:
    """What a run of checks found."""

    cases: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    """Output -> largest error, relative to its block."""
    status: Status = Status.PASS
    reason: str = ""
    failures: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0
    checks: dict[str, float] = field(default_factory=dict)
    """Calculus checks: name -> largest relative deviation."""
    probes: int = 0
    untested: list[str] = field(default_factory=list)
    """Sides of the program's choices that no input reached on which its results were compared."""
    limits: dict[str, float] = field(default_factory=dict)
    """Output -> the smallest magnitude of a probe at which it is not finite where the reference is: it overflows earlier."""

    def fail(self, status: Status, reason: str, **failure: Any) -> None:
        """Keep the first status and every failure."""
        if self.status is Status.PASS:
            self.status, self.reason = status, reason
        self.failures.append({"status": str(status), **failure})


def reference(task: Task, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The task's reference on fp64 values, with the task's output names. Raises `Blamed` for whatever it raises."""
    with trusted(f"the reference of {task.id}"):
        found = task.reference(**draws.upcast(inputs))
        return {o.name: found[o.name] for o in task.outputs}


def compare(candidate: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> dict[str, Comparison]:
    """Every output of one case against the right answer."""
    return {name: exact(candidate[name], value) for name, value in right.items()}


def settled(
    task: Task,
    inputs: Mapping[str, Any],
    candidate: Mapping[str, torch.Tensor],
    right: Mapping[str, torch.Tensor],
    *,
    seed: int,
    relative: float = EXACT,
) -> dict[str, Comparison]:
    """The comparison of one case; where values differ, with the reference's own uncertainty in fp64 taken into account."""
    found = {name: exact(candidate[name], value, relative=relative) for name, value in right.items()}
    if not any(comparison.why == "values" for comparison in found.values()):
        return found
    with trusted(f"the spread of {task.id}"):
        own = spread(
            lambda x: reference(task, x), draws.upcast(inputs), right, seed=seed % 2**31, unit=FP64, draws=DRAWS
        )
    return {n: exact(candidate[n], value, relative=relative, spread=own[n]) for n, value in right.items()}


def cases(task: Task, seed: int, rng: random.Random) -> Iterator[Case]:
    """Every distribution on one visible and on every hidden size; `normal` on all visible and on long and thin ones."""
    visible, secret = small_shapes(task), hidden(task, rng)
    for at, (where, dims) in enumerate(visible):
        yield Case(where, dims, "normal", draws.subseed(seed, "visible", at))
    for at, distribution in enumerate(task.distributions):
        for where, dims in (visible[at % len(visible)], *secret):
            yield Case(where, dims, distribution, draws.subseed(seed, where, distribution))
    for at, dims in enumerate(long_shapes(task, rng)):
        yield Case("long", dims, "normal", draws.subseed(seed, "long", at))


def check(subject: Subject, *, seed: int, seconds: float = 60.0) -> Findings:
    """Run every case; after the first failing output of a case the rest still run, so that the failure's pattern is known."""
    task, found, branches = subject.task, Findings(), Branches(subject)
    started = time.monotonic()
    for case in cases(task, seed, random.Random(draws.subseed(seed, "sizes"))):
        if time.monotonic() - started > seconds:
            found.fail(Status.TIMEOUT, f"the fp64 cases did not end within {seconds:g} s")
            return found
        try:
            _case(branches, case, found)
        except Exception as error:
            whose = blame(error)
            if whose is None:
                raise
            found.fail(whose, f"at {case.where} sizes: {described(error)}", where=case.where)
            return found
        if len(found.failures) >= 8:
            break
    if not found.cases and not found.failures:
        found.fail(Status.INVALID_SPEC, f"{task.id}: the reference accepts none of the sizes that its shapes imply")
    if task.gradient is not None and found.status is Status.PASS:
        for at, (_, dims) in enumerate(small_shapes(task)[:3]):
            _calculus(subject, task.gradient, dims, draws.subseed(seed, "calculus", at), found)
    if found.status is Status.PASS:
        _probes(branches, draws.subseed(seed, "probes"), found, until=started + seconds)
    return found


def _case(branches: Branches, case: Case, found: Findings) -> None:
    subject = branches.subject
    with trusted(f"drawing the inputs of {subject.task.id}"):
        inputs = draws.draw(subject.task, case.dims, seed=case.seed, distribution=case.distribution)
    try:
        right = reference(subject.task, inputs)
    except Blamed as error:
        if case.where in FAMILIES or error.status is not Status.INVALID_SPEC:
            raise
        found.skipped += 1  # hidden sizes are guesses at what the task allows
        return
    found.cases += 1
    labels = {"where": case.where, "distribution": case.distribution}
    try:
        values, seen = branches.run(inputs)
    except (CodaError, RuntimeError) as error:
        if blame(error) is not None:
            raise
        what = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
        found.fail(
            Status.RUNTIME_ERROR, f"the kernel does not run at {case.where} sizes: {what}", pattern="error", **labels
        )
        return
    compared = settled(subject.task, inputs, values, right, seed=draws.subseed(case.seed, "spread"))
    _count(branches, seen, compared, right)
    rest = [name for name, comparison in compared.items() if comparison.ok]
    for name, comparison in compared.items():
        if comparison.why != "shape":
            off = comparison.ratio * EXACT
            found.worst[name] = max(found.worst.get(name, 0.0), off if math.isfinite(off) else 1e308)
        if comparison.ok:
            continue
        status = {"shape": Status.WRONG_SHAPE, "nonfinite": Status.NONFINITE}.get(comparison.why, Status.WRONG_VALUES)
        pattern = describe(values[name], right[name], inputs=inputs, outputs=right, dims=case.dims, name=name)
        found.fail(
            status,
            f"output {name!r} differs from the reference: {pattern.text}",
            output=name,
            right=rest,
            **pattern.to_dict(),
            **labels,
        )


def _count(
    branches: Branches, seen: Seen, compared: Mapping[str, Comparison], right: Mapping[str, torch.Tensor]
) -> None:
    """What a run took is proven where all of it was right and is a number."""
    if all(c.ok for c in compared.values()) and all(bool(torch.isfinite(x).all()) for x in right.values()):
        branches.count(seen)


# probes ---------------------------------------------------------------------------------------------------------------


def _probes(branches: Branches, seed: int, found: Findings, *, until: float) -> None:
    """Inputs that no distribution draws; then, for sides that are still missing, the program's own numbers as inputs and sizes."""
    for probe in _every_probe(branches, seed):
        if time.monotonic() > until:
            found.untested.append("the probes did not end in time")
            break
        try:
            _probe(branches, probe, draws.subseed(seed, found.probes), found)
        except Blamed as error:
            if error.status is not Status.INVALID_SPEC:
                raise
            found.skipped += 1  # more than what the task's reference takes
        if len(found.failures) >= 8:
            return
    found.untested += branches.untested()


def _every_probe(branches: Branches, seed: int) -> Iterator[Probe]:
    task = branches.subject.task
    yield from ladder(task, seed)
    yield from numbers(task, seed)
    yield from edges(branches, task, seed)
    yield from integers(branches, task, seed)
    if branches.missing():
        for at, dims in enumerate(sizes(branches, task)):
            yield Probe("size", dims, draws.draw(task, dims, seed=draws.subseed(seed, "size", at)))


def _probe(branches: Branches, probe: Probe, seed: int, found: Findings) -> None:
    task = branches.subject.task
    right = reference(task, probe.inputs)
    labels = {"where": "long" if probe.kind == "size" else "smoke", "distribution": probe.kind}
    try:
        values, seen = branches.run(probe.inputs)
    except (CodaError, RuntimeError) as error:
        if blame(error) is not None:
            raise
        what = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
        found.fail(Status.RUNTIME_ERROR, f"the kernel does not run on {probe.kind} values: {what}", **labels)
        return
    found.probes += 1
    wanted, got = {}, {}
    for name, r in right.items():
        finite, early = torch.isfinite(r), torch.isfinite(r) & ~torch.isfinite(values[name])
        if bool(early.any()):
            _early(name, probe, found, labels)
        wanted[name], got[name] = (torch.where(finite & ~early, x, 0) for x in (r, values[name]))
    compared = settled(task, probe.inputs, got, wanted, seed=seed, relative=PROBE)
    _count(branches, seen, compared, right if all(torch.equal(right[n], wanted[n]) for n in right) else {"": _NAN})
    for name, comparison in compared.items():
        if not comparison.ok:
            pattern = describe(got[name], wanted[name], inputs=probe.inputs, outputs=wanted, dims=probe.dims, name=name)
            text = f"output {name!r} differs from the reference: {pattern.text}"
            found.fail(Status.WRONG_VALUES, text, output=name, **pattern.to_dict(), **labels)


_NAN = torch.tensor(math.nan)


def _early(name: str, probe: Probe, found: Findings, labels: Mapping[str, Any]) -> None:
    """An output is not finite where the reference is: a mistake at ordinary magnitudes, a limit at others."""
    if probe.scale <= ORDINARY:
        text = f"output {name!r} is not finite where the reference is"
        found.fail(Status.NONFINITE, text, output=name, pattern="not finite", text="not a finite number", **labels)
    else:
        found.limits[name] = min(found.limits.get(name, math.inf), probe.scale)


# calculus -------------------------------------------------------------------------------------------------------------


def _calculus(subject: Subject, gradient: Gradient, dims: Dims, seed: int, found: Findings) -> None:
    task = subject.task
    first = draws.draw(task, dims, seed=draws.subseed(seed, 1))
    second = draws.draw(task, dims, seed=draws.subseed(seed, 2))[gradient.upstream]
    _linearity(subject, gradient, first, second, found)
    _differences(subject, gradient, gradient.consistent(dict(first)), draws.subseed(seed, 3), found)


def _linearity(
    subject: Subject, gradient: Gradient, inputs: dict[str, Any], other: torch.Tensor, found: Findings
) -> None:
    """f(u + 3v) = f(u) + 3·f(v) for outputs named linear, statistics of the upstream recomputed for each."""
    u = inputs[gradient.upstream]

    def at(upstream: torch.Tensor) -> dict[str, torch.Tensor]:
        return subject.reference(gradient.consistent({**inputs, gradient.upstream: upstream}))

    one, two, both = at(u), at(other), at(u + 3 * other)
    for name in gradient.linear:
        expected = one[name] + 3 * two[name]
        off = _relative(both[name] - expected, expected)
        key = f"linear {name}"
        found.checks[key] = max(found.checks.get(key, 0.0), off)
        if off > LINEAR:
            text = f"not linear in {gradient.upstream}, as a gradient must be"
            found.fail(Status.WRONG_VALUES, f"output {name!r} is {text}", output=name, pattern="not linear", text=text)


def _differences(subject: Subject, gradient: Gradient, inputs: dict[str, Any], seed: int, found: Findings) -> None:
    values = subject.reference(inputs)
    generator = torch.Generator().manual_seed(seed)
    upstream = inputs[gradient.upstream]
    for name, wrt in gradient.wrt.items():
        x = inputs[wrt]
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        step = STEP * max(float(x.abs().mean()), 1e-3)
        with trusted(f"the forward function of {subject.task.id}"):
            plus, minus = (gradient.forward(**{**inputs, wrt: x + sign * step * direction}) for sign in (1, -1))
        measured = float((upstream * (plus - minus)).sum()) / (2 * step)
        claimed = float((values[name] * direction).sum())
        size = float(values[name].norm()) * float(direction.norm()) / math.sqrt(max(direction.numel(), 1))
        off = abs(measured - claimed) / max(size, abs(measured), 1e-12)
        key = f"gradient {name}"
        found.checks[key] = max(found.checks.get(key, 0.0), off)
        if off > DIFFERENCE:
            text = f"not the derivative of the forward function with respect to {wrt}"
            found.fail(
                Status.WRONG_VALUES, f"output {name!r} is {text}", output=name, pattern="not a gradient", text=text
            )


def _relative(difference: torch.Tensor, size: torch.Tensor) -> float:
    scale = float(size.abs().max()) if size.numel() else 0.0
    worst = float(difference.abs().max()) if difference.numel() else 0.0
    return worst / scale if scale else worst


# worker ---------------------------------------------------------------------------------------------------------------


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"program", "task", "seed", "seconds"} -> status, reason and evidence."""
    subject = Subject.read(payload["program"], load_task(payload["task"]))
    found = check(subject, seed=payload["seed"], seconds=payload["seconds"])
    evidence = {
        "cases": found.cases,
        "skipped": found.skipped,
        "gemms": subject.gemms,
        "max_error": dict(found.worst),
        "checks": dict(found.checks),
        "probes": found.probes,
        "untested": list(unseen(found))[:16],
        "failures": found.failures[:8],
    }
    reason = found.reason or "; ".join(f"untested: {text}" for text in unseen(found))
    return {"status": str(found.status), "reason": reason[:1000], "evidence": evidence}


def unseen(found: Findings) -> Iterator[str]:
    """What a pass does not say, for the verdict, the author and the reviewer."""
    if found.status is Status.PASS:
        yield from found.untested
        for name, scale in found.limits.items():
            yield f"output {name!r} is not finite where the reference is, with inputs about {scale:g} times as large as usual"
