"""Spec lint: is a task able to refuse wrong kernels? Run before any token is spent on it.

    lint_task   task -> LintReport: kill rate, survivors, inputs that nothing depends on, what is wrong with the task itself
    MUTANTS     ways to be wrong that people and models really produce, as changes of the right outputs

The right answer is broken on purpose, one output and one mutant at a time, and put through the comparison of the algebra gate
on its own cases; grosser mutants must also fall to the tolerance rule in bf16, with the task's own baseline as the trusted
kernel. A mutant that survives everywhere makes the task INVALID_SPEC: its output may be zero, constant, symmetric, or its
baseline too poor. A mutant that cannot be built for an output (no even number of columns, no input of its shape) is not counted.

The lint also asks: is the reference finite and right in shape? Does the baseline agree with it? Does every input matter?
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field

from coda.numerics import FAR, PRECISION, UNMOVED, dtype_name, exact, response, within

from ..records import Record, Status
from ..task import Dims, Task, lengths
from . import inputs as draws
from .algebra import compare, reference
from .blame import Blamed, blame, described, trusted
from .numerics import spreads
from .patterns import REARRANGEMENTS
from .sizes import distinct_dims, hidden, small_shapes, square_shapes
from .worker import run_worker

WORKING = "bfloat16"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Scene:
    """One case: what a mutant may look at."""

    dims: Dims
    inputs: dict[str, Any]
    right: Tensors
    other: Tensors
    """The right outputs for other inputs."""


Make = Callable[[str, Scene], torch.Tensor | None]


@dataclass(frozen=True)
class Mutant:
    """A way to be wrong. `gross` ones must also be seen in bf16, where the output is stored with that many `bits`."""

    name: str
    make: Make
    gross: bool = True
    bits: int = 0


class LintReport(Record):
    """What the lint found. `ok` is what decides."""

    task: str
    task_digest: str
    status: Status
    """PASS or INVALID_SPEC; else how the lint's process ended, which says nothing about the task."""
    tried: int
    killed: int
    survivors: tuple[str, ...] = ()
    """ "output: mutant (rule)" of each."""
    problems: tuple[str, ...] = ()
    """What is wrong with the task besides survivors."""
    cases: int = 0
    seed: int = 0
    seconds: float = Field(default=0.0, ge=0)

    @property
    def ok(self) -> bool:
        """Whether kernels may be judged by this task."""
        return self.status is Status.PASS


# mutants ----------------------------------------------------------------------------------------------------------------


def _each(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Make:
    return lambda name, scene: change(scene.right[name])


def _means(axis: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    def change(x: torch.Tensor) -> torch.Tensor | None:
        if x.ndim <= axis or x.shape[axis] < 2:
            return None
        return x.mean(axis, keepdim=True).expand_as(x).clone()

    return change


def _scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor


def _by_size(inverse: bool) -> Make:
    """A sum where a mean is wanted, or the other way round, over the longest dim."""

    def make(name: str, scene: Scene) -> torch.Tensor | None:
        size = max(scene.dims.values())
        if size < 2:
            return None
        return scene.right[name] * (1 / size if inverse else size)

    return make


def _tail(axis: int) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """The last, partial tile of 32 is not computed."""

    def change(x: torch.Tensor) -> torch.Tensor | None:
        if x.ndim <= axis or x.shape[axis] < 2:
            return None
        whole = x.shape[axis] - (x.shape[axis] % 32 or min(32, x.shape[axis] - 1))
        y = x.clone()
        y.narrow(axis, whole, x.shape[axis] - whole).zero_()
        return y

    return change


def _pass_through(name: str, scene: Scene) -> torch.Tensor | None:
    x = scene.right[name]
    return next(
        (
            v
            for v in scene.inputs.values()
            if isinstance(v, torch.Tensor) and v.shape == x.shape and v.is_floating_point()
        ),
        None,
    )


def _half_copied(name: str, scene: Scene) -> torch.Tensor | None:
    """X44: the first rows computed, the rest copied from an input."""
    source = _pass_through(name, scene)
    if source is None or source.shape[0] < 2:
        return None
    rows = source.shape[0] // 2
    return torch.cat([scene.right[name][:rows], source[rows:]])


def _other_output(name: str, scene: Scene) -> torch.Tensor | None:
    x = scene.right[name]
    return next((v for n, v in scene.right.items() if n != name and v.shape == x.shape), None)


def _another_seed(name: str, scene: Scene) -> torch.Tensor | None:
    return scene.other[name]


def _rearranged(change: Callable[[torch.Tensor], list[torch.Tensor]]) -> Callable[[torch.Tensor], torch.Tensor | None]:
    def make(x: torch.Tensor) -> torch.Tensor | None:
        found = change(x) if x.numel() > 1 else []
        return found[0] if found else None

    return make


def _one_element(x: torch.Tensor) -> torch.Tensor | None:
    if not x.numel():
        return None
    y = x.clone()
    y.view(-1)[-1] += y.abs().max() + 1
    return y


def _nan(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, math.nan)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("zeros", _each(torch.zeros_like)),
    Mutant("ones", _each(torch.ones_like)),
    Mutant("NaN", _each(_nan)),
    Mutant("constant mean", _each(lambda x: x.mean().expand_as(x).clone() if x.numel() > 1 else None)),
    Mutant("mean of each column", _each(_means(0))),
    Mutant("mean of each row", _each(_means(1))),
    Mutant("pass-through of an input", _pass_through),
    Mutant("half copied from an input", _half_copied),
    Mutant("another output", _other_output),
    Mutant("another seed's answer", _another_seed),
    Mutant("sign flip", _each(torch.neg)),
    Mutant("absolute value", _each(lambda x: x.abs() if bool((x < 0).any()) else None)),
    Mutant("factor 2", _each(_scaled(2))),
    Mutant("factor 1/2", _each(_scaled(0.5))),
    Mutant("wrong by 1 %", _each(_scaled(1.01)), bits=7),
    Mutant("wrong by 1e-6", _each(_scaled(1 + 1e-6)), gross=False),
    Mutant("missing 1/N", _by_size(False)),
    Mutant("extra 1/N", _by_size(True)),
    Mutant("constant offset", _each(lambda x: x + x.abs().mean())),
    Mutant("last rows missing", _each(_tail(0))),
    Mutant("last columns missing", _each(_tail(1))),
    Mutant("one wrong element", _each(_one_element)),
    *(Mutant(name, _each(_rearranged(change))) for name, _, change in REARRANGEMENTS),
    Mutant("rounded to bf16", _each(lambda x: x.bfloat16().double()), gross=False),
    Mutant("rounded to fp32", _each(lambda x: x.float().double()), gross=False),
)


# the lint ---------------------------------------------------------------------------------------------------------------


def lint_task(task: Task, *, seed: int | None = None, mutants: tuple[Mutant, ...] = MUTANTS) -> LintReport:
    """Lint in this process. A task file is the project's own code; for a drafted one use `lint_in_worker`."""
    seed = draws.run_seed() if seed is None else seed
    started = time.monotonic()
    problems = _shape_problems(task)
    tried: list[str] = []
    survivors: list[str] = []
    scenes: list[Scene] = []
    if not problems:
        scenes = _scenes(task, seed)
        problems += _value_problems(task, scenes) + _ignored_inputs(task, scenes, seed)
    if scenes and not problems:
        for rule, judge_one in (("fp64", _killed_exactly), (WORKING, _Working(task, seed).killed)):
            for mutant in mutants:
                if rule == WORKING and not mutant.gross:
                    continue
                for output in task.outputs:
                    killed = _fate(judge_one, mutant, output.name, scenes)
                    if killed is None:
                        continue
                    label = f"{output.name}: {mutant.name} ({rule})"
                    tried.append(label)
                    if not killed:
                        survivors.append(label)
    bad = bool(problems or survivors or not tried)
    return LintReport(
        task=task.id,
        task_digest=task.digest,
        status=Status.INVALID_SPEC if bad else Status.PASS,
        tried=len(tried),
        killed=len(tried) - len(survivors),
        survivors=tuple(survivors),
        problems=tuple(problems),
        cases=len(scenes),
        seed=seed,
        seconds=round(time.monotonic() - started, 3),
    )


def _fate(
    judge_one: Callable[[Mutant, str, Scene], bool | None], mutant: Mutant, name: str, scenes: list[Scene]
) -> bool | None:
    """Whether some case refuses the mutant; None where it can be built for no case."""
    fate: bool | None = None
    for scene in scenes:
        seen = judge_one(mutant, name, scene)
        if seen:
            return True
        if seen is not None:
            fate = False
    return fate


def _scenes(task: Task, seed: int) -> list[Scene]:
    """Visible sizes in every distribution, this run's hidden ones, and square ones: what fits only there is never left
    to a hidden size so tiny that no rule in bf16 can refuse anything."""
    rng = random.Random(draws.subseed(seed, "sizes"))
    visible = [dims for _, dims in small_shapes(task)]
    todo = [(dims, task.distributions[i % len(task.distributions)]) for i, dims in enumerate(visible)]
    todo += [(dims, "normal") for dims in (*(d for _, d in hidden(task, rng)), *square_shapes(task))]
    scenes = []
    for at, (dims, distribution) in enumerate(todo):
        inputs = draws.draw(task, dims, seed=draws.subseed(seed, at), distribution=distribution)
        try:
            right = reference(task, inputs)
        except Blamed as error:
            if at < len(visible) or error.status is not Status.INVALID_SPEC:
                raise
            continue
        other = reference(
            task, draws.draw(task, dims, seed=draws.subseed(seed, at, "other"), distribution=distribution)
        )
        scenes.append(Scene(dims, inputs, right, other))
    return sorted(scenes, key=lambda scene: math.prod(scene.dims.values()))  # most mutants fall to the smallest


def _shape_problems(task: Task) -> list[str]:
    """What makes the task unusable whatever a kernel does."""
    problems = []
    if not task.outputs or not task.inputs:
        return ["it has no inputs or no outputs"]
    if not task.shapes_of("smoke") or not task.shapes_of("ragged"):
        problems.append("it lists no smoke or no ragged shape, so what sizes it allows is not known")
    if task.reference is task.baseline:
        problems.append("reference and baseline are one function: a kernel would be compared with itself")
    for dims in distinct_dims(task):
        try:
            inputs = draws.draw(task, dims, seed=1)
            right = task.reference(**inputs)
        except Exception as error:
            if blame(error) is Status.INFRA_ERROR:
                raise
            problems.append(f"the reference fails: {described(error)}")
            break
        for o in task.outputs:
            if o.name not in right:
                problems.append(f"the reference returns no {o.name!r}")
            elif tuple(right[o.name].shape) != lengths(o.shape, dims):
                problems.append(
                    f"the reference's {o.name!r} is {tuple(right[o.name].shape)}, not ({', '.join(o.shape)})"
                )
            elif right[o.name].dtype is not torch.float64:
                problems.append(
                    f"the reference's {o.name!r} is {right[o.name].dtype} for fp64 inputs: it rounds in between"
                )
    return list(dict.fromkeys(problems))


def _value_problems(task: Task, scenes: list[Scene]) -> list[str]:
    """Non-finite answers, and a baseline that computes something else."""
    problems = []
    for scene in scenes:
        for name, x in scene.right.items():
            if not bool(torch.isfinite(x).all()):
                problems.append(f"the reference's {name!r} is not finite: a NaN would pass for a NaN")
        problems += _baseline_problems(task, scene)
    return list(dict.fromkeys(problems))


def _baseline_problems(task: Task, scene: Scene) -> list[str]:
    rounded = draws.rounded(task, scene.inputs, WORKING)
    right = reference(task, rounded)
    try:
        trusted = task.baseline(**rounded)
    except Exception as error:
        if blame(error) is Status.INFRA_ERROR:
            raise
        return [f"the baseline fails in {WORKING}: {described(error)}"]
    problems = []
    for o in task.outputs:
        want = getattr(torch, draws.output_dtype(o.dtype, WORKING))
        if o.name not in trusted:
            problems.append(f"the baseline returns no {o.name!r}")
        elif trusted[o.name].dtype is not want or trusted[o.name].shape != right[o.name].shape:
            problems.append(f"the baseline's {o.name!r} has another shape or dtype than the task says")
        elif right[o.name].numel() >= 64:  # a statistic of a few elements may cancel to anything in bf16
            off = float((trusted[o.name].double() - right[o.name]).norm() / right[o.name].norm().clamp_min(1e-300))
            if off > FAR:
                problems.append(
                    f"the baseline's {o.name!r} is not what the reference computes (off by {off:.2g} of its size)"
                )
    return problems


def _ignored_inputs(task: Task, scenes: list[Scene], seed: int) -> list[str]:
    """Inputs that no output depends on, and outputs that depend on none."""
    matter: dict[str, bool] = {i.name: False for i in task.inputs}
    moved: dict[str, bool] = {o.name: False for o in task.outputs}
    for scene in scenes:
        fresh = draws.draw(task, scene.dims, seed=draws.subseed(seed, "fresh"))
        for i in task.inputs:
            value = i.default * 1.5 + 0.1 if i.default is not None else fresh[i.name]
            changed = reference(task, {**scene.inputs, i.name: value})
            for name, x in changed.items():
                if not exact(x, scene.right[name], relative=UNMOVED).ok:
                    matter[i.name] = moved[name] = True
    problems = [
        f"no output depends on input {n!r}: a kernel that ignores it passes" for n, ok in matter.items() if not ok
    ]
    return problems + [f"output {n!r} depends on no input: a constant passes" for n, ok in moved.items() if not ok]


def _killed_exactly(mutant: Mutant, name: str, scene: Scene) -> bool | None:
    """Whether the algebra gate's comparison refuses it on this case; None where it cannot be built."""
    wrong = mutant.make(name, scene)
    if wrong is None or _cannot_differ(mutant, scene.right[name]):
        return None
    return not compare({**scene.right, name: wrong}, scene.right)[name].ok


def _cannot_differ(mutant: Mutant, right: torch.Tensor) -> bool:
    """One element rearranged or averaged is itself; nothing can be said about it."""
    return right.numel() < 2 and mutant.name not in ("zeros", "ones", "NaN", "factor 2", "sign flip")


class _Working:
    """The same through the tolerance rule in bf16; references and baselines are computed once per case."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self._known: dict[int, tuple[Scene, Tensors, Tensors, tuple[Tensors, Tensors]]] = {}

    def _case(self, scene: Scene) -> tuple[Scene, Tensors, Tensors, tuple[Tensors, Tensors]]:
        if id(scene) not in self._known:
            rounded = draws.rounded(self.task, scene.inputs, WORKING)
            wide = draws.upcast(rounded)
            right = reference(self.task, rounded)
            noise = response(lambda x: reference(self.task, x), wide, right, seed=self.seed % 2**31)
            shown = Scene(scene.dims, wide, right, scene.other)
            scattered = spreads(self.task, rounded, right, self.seed)
            self._known[id(scene)] = (shown, self.task.baseline(**rounded), noise, scattered)
        return self._known[id(scene)]

    def killed(self, mutant: Mutant, name: str, scene: Scene) -> bool | None:
        """Whether the numerics gate's rule refuses it on this case."""
        shown, trusted, noise, (own, usual) = self._case(scene)
        wrong = mutant.make(name, shown)
        right = shown.right[name]
        if wrong is None or _cannot_differ(mutant, right) or PRECISION[dtype_name(trusted[name].dtype)] < mutant.bits:
            return None
        stored = wrong.to(trusted[name].dtype)
        length = max(scene.dims.values())
        limits = {"noise": noise[name], "spread": own[name], "usual": usual[name]}
        return not within(stored, trusted[name], right, working=WORKING, length=length, **limits).ok


# worker -----------------------------------------------------------------------------------------------------------------


def lint_in_worker(task: Task, *, timeout_s: float = 120.0) -> LintReport:
    """The same in a process of its own, for task files that a person has not read yet."""
    from .subject import task_ref

    outcome = run_worker(
        "agent.verify.lint:work", {"task": task_ref(task), "seed": draws.run_seed()}, timeout_s=timeout_s
    )
    if outcome.result is not None:
        return LintReport.model_validate(outcome.result)
    message = outcome.error.message if outcome.error else str(outcome.status)
    return LintReport(
        task=task.id,
        task_digest=task.digest,
        status=Status(outcome.status),
        tried=0,
        killed=0,
        problems=(f"the lint ended with {outcome.status}: {message[:300]}",),
        seconds=round(outcome.seconds, 3),
    )


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """{"task", "seed"} -> a LintReport as JSON. No candidate is here: what fails is the task's, or the machine's."""
    from .subject import load_task

    with trusted("the lint of {id}".format(**payload["task"])):
        report = lint_task(load_task(payload["task"]), seed=payload["seed"])
    return report.model_dump(mode="json")
