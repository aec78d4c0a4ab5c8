"""`author` and `replay` as commands: a task and flags in, a run and an `Answer` out.

    Asked      what the command line asks for besides settings
    author     find the task, choose the model, lint the task, drive `authoring.loop`, say what came of it
    replay     a run's decisions, derived again

Cheap refusals come first: an unknown task, then a missing key, before torch or anything of the model's SDK is imported.
Neighbours: `judging` and `catalogue` have the other commands, `agent.authoring` does the work, `terminal` speaks.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..authoring.budget import FREE, Limits, most_usd, parse_duration
from ..errors import (
    AgentError,
    FolderUnusable,
    JudgeUnavailable,
    LLMError,
    NotKept,
    RunMismatch,
    TaskRefused,
    UsageError,
)
from ..files import write_text
from ..keeping.keep import default_folder, slug
from ..llm.protocol import Request, estimate_tokens
from ..llm.select import asked_model, from_settings, parse
from ..records import Verdict
from ..runs import store
from ..runs.events import Event, Summary
from ..settings import Settings
from ..task import Card, Task, find, load
from . import render
from .judging import Judging, machine_failed
from .terminal import Answer, Exit, Failure, OutputLost, Terminal, json_text, write_line

if TYPE_CHECKING:
    from ..authoring.prepare import Prompt
    from ..keeping.shelves import Kept


@dataclass(frozen=True)
class Asked:
    """What the command line asks for besides settings."""

    task: str | None
    """None: that of the run to resume, or of the kernel to improve."""
    goal: float | None = None
    judging: Judging = field(default_factory=Judging)
    into: Path | None = None
    name: str | None = None
    resume: str | None = None
    improve: str | None = None
    """A kept kernel to start from. A run that goes on knows its own."""
    show_own: bool = False
    dry_run: bool = False
    events: bool = False


def author(terminal: Terminal, asked: Asked, flags: Mapping[str, Any]) -> Answer:
    """The command `author`."""
    asked.judging.check()
    if asked.goal is not None and not 0 < asked.goal <= 1:
        raise UsageError(
            f"--goal {asked.goal:g} cannot be met", hint="a fraction of the physical floor's speed: 0.9 is 90 %"
        )
    if asked.events and terminal.options.json:
        raise UsageError(
            "--events and --json exclude each other", hint="the last line of --events is the document of --json"
        )
    if asked.improve is not None and asked.resume is not None:
        raise UsageError(
            "--improve and --resume exclude each other", hint="a run goes on from the kernel that it began with"
        )
    _check_name(asked.name)
    settings = terminal.settings(**flags)
    card = find(asked.task) if asked.task is not None else None
    if card is None and asked.improve is not None:
        card = find(_improved(asked.improve, settings).task)
    folder = store.find(asked.resume, settings.runs_dir) if asked.resume is not None else None
    info = store.open_run(folder).info if folder is not None else None
    card = _task_of(info, card)
    if info is not None and settings.llm is None:
        settings = terminal.settings(**{**flags, "llm": info.llm})
    limits = _limits(settings)
    asked = _going_on(asked, info)
    if asked.dry_run:
        return _dry_run(card, settings, asked, info)
    llm = from_settings(settings, task_id=card.id, time_s=limits.time_s, announce=terminal.say)
    _check_folders(settings, asked, card, folder)
    # From here on torch is needed.
    from ..authoring import loop
    from ..authoring.prepare import new_run

    prompt = _prompt(card, settings, asked, info)
    task = prompt.task
    # after the prompt: what cannot be improved is refused without waiting for it
    _lint(terminal, task, settings)
    if folder is None:
        run = new_run(
            settings.runs_dir,
            prompt,
            llm=settings.llm or llm.name,
            limits=limits,
            goal=asked.goal,
            into=asked.into,
            name=asked.name,
            settings=settings,
            named=asked_model(settings) is not None,
        )
    else:
        key = settings.anthropic_api_key
        run = store.resume(folder, secrets=(key.get_secret_value(),) if key is not None else ())
    terminal.run_path = run.folder
    terminal.resume = f"coda-agent author {card.id} --resume {shlex.quote(run.info.id)}"
    terminal.detail(f"run: {run.folder}")
    error: AgentError | None = None
    live = terminal.live if settings.progress and not asked.events else None
    with run, render.Progress(terminal.say, live) as progress:
        told = _EventWriter(progress) if asked.events else progress
        try:
            summary = loop.author(
                prompt,
                llm,
                loop.judge_with(asked.judging.options(task), on_progress=progress.gate),
                run,
                limits=limits,
                goal=asked.goal,
                into=asked.into or default_folder(settings),
                name=asked.name,
                on_event=told,
            )
        except (LLMError, TaskRefused, JudgeUnavailable, NotKept) as stopped:
            if run.summary is None:
                raise
            summary, error = run.summary, stopped
    if not terminal.options.quiet:
        terminal.seen |= progress.shown
    if isinstance(told, _EventWriter) and told.lost is not None:
        raise told.lost
    answer = _answer(terminal, run, summary, error)
    return _as_line(terminal, answer) if asked.events else answer


def _task_of(info: store.RunInfo | None, card: Card | None) -> Card:
    """The task that is asked for, or that of the run. Raises `UsageError` or `RunMismatch`."""
    if info is None:
        if card is None:
            hint = "name a task, a run with --resume, or a kernel with --improve; `coda-agent author --help` shows what it takes"
            raise UsageError("missing argument 'TASK'", hint=hint)
        return card
    if card is not None and card.id != info.task:
        raise RunMismatch(f"the run {info.id!r} is of task {info.task!r}, not {card.id!r}", hint="start a new run")
    return card or find(info.task)


def _going_on(asked: Asked, info: store.RunInfo | None) -> Asked:
    """With what a run that goes on was told when it began; a run that improves a kernel goes on to the floor unless told otherwise."""
    into = asked.into.expanduser().absolute() if asked.into is not None else None
    if info is not None:
        into = into or (Path(info.into) if info.into is not None else None)
        return dataclasses.replace(asked, into=into, name=asked.name or info.name)
    goal = 1.0 if asked.improve is not None and asked.goal is None else asked.goal
    return dataclasses.replace(asked, into=into, goal=goal)


def _start(asked: Asked, info: store.RunInfo | None, task: Task, settings: Settings) -> store.Start | None:
    """The kernel that the run begins with, or began with. Raises `UnknownSubject`, `KernelDamaged` or `CannotImprove`."""
    if asked.improve is None:
        return info.start if info is not None else None
    from ..authoring.starting import start_from

    return start_from(_improved(asked.improve, settings), task, asked.goal, show_own=asked.show_own)


def _improved(name: str, settings: Settings) -> Kept:
    """The kernel to start from, called as it is found from everywhere. Raises `UnknownSubject` or `KernelDamaged`."""
    from ..keeping import shelves

    places = shelves.shelves(settings)
    kept = shelves.find(name, folders=places, runs=settings.runs_dir)
    known = any(kept.folder.parent.parent == place.resolve() for place in places)
    return dataclasses.replace(kept, called=kept.id if known or kept.origin == "run" else str(kept.folder))


def _check_name(name: str | None) -> None:
    """A name that is not one, before it is made into another. Raises `UsageError`."""
    if name is not None and (made := slug(name)) != name.lower():
        hint = f"letters, digits, `_`, `.` and `-`, at most 60: {made!r}"
        raise UsageError(f"--name {name!r} cannot be the name of a kernel", hint=hint)


def _check_folders(settings: Settings, asked: Asked, card: Card, folder: Path | None) -> None:
    """That there is room for what will be paid for, and nobody else works on the run. Raises `FolderUnusable`, `RunLocked` or
    `RunDamaged`."""
    source = settings.source_of("home")
    places = "set CODA_AGENT_HOME to" if source == "default" else f"{source} says where; set it to"
    hint = f"{places} a folder that you may write to"
    _require_writable(folder or settings.runs_dir, "runs are recorded", hint)
    if folder is not None:
        store.resume(folder).close()
    if asked.into is not None:
        _require_writable(asked.into / card.id, "--into keeps kernels", "name a folder that you may write to")
    else:
        _require_writable(default_folder(settings) / card.id, "kernels are kept", f"{hint}, or use --into")


def _require_writable(folder: Path, what: str, hint: str) -> None:
    """By trying, in the nearest folder that exists; nothing is left behind."""
    place = folder
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        os.rmdir(tempfile.mkdtemp(prefix=".writable-", dir=place))
    except OSError as error:
        raise FolderUnusable(
            f"{what} in {str(folder)!r}, which cannot be written: {error.strerror}", hint=hint
        ) from error


def _limits(settings: Settings) -> Limits:
    seconds = parse_duration(settings.time_limit) if settings.time_limit is not None else None
    return Limits(
        rounds=settings.rounds, max_cost=settings.max_cost, max_tokens_total=settings.max_tokens_total, time_s=seconds
    )


# before the first token -----------------------------------------------------------------------------------------------


def _prompt(card: Card, settings: Settings, asked: Asked, info: store.RunInfo | None) -> Prompt:
    """Of a new run, or of one that goes on."""
    from ..authoring.prepare import prepare

    task = load(card.id)
    return prepare(
        task,
        model=settings.model,
        max_tokens=settings.max_tokens,
        effort=settings.effort,
        budget=settings.example_tokens,
        show_own=asked.show_own,
        start=_start(asked, info, task, settings),
    )


def _dry_run(card: Card, settings: Settings, asked: Asked, info: store.RunInfo | None) -> Answer:
    """The first request and what it would take; nobody is asked."""
    prompt = _prompt(card, settings, asked, info)
    request: Request = prompt.request([], 1)
    tokens = estimate_tokens(request)
    billed = parse(settings.llm).provider not in FREE
    most = most_usd(settings.model, tokens, settings.max_tokens) if billed else 0.0
    data = {
        "task": card.id,
        "model": asked_model(settings),
        "input_tokens_at_most": tokens,
        "output_tokens_at_most": settings.max_tokens,
        "cost_usd_at_most": most,
        "prompt_sha256": request.prompt_sha,
        "examples": list(prompt.shown.ids),
        "withheld": dict(prompt.shown.withheld),
        "example_tokens": prompt.shown.tokens,
        "untaught": list(prompt.shown.untaught),
        "system": request.system,
        "task_text": request.task,
    }

    def show() -> Iterator[Any]:
        yield request.system
        yield request.task
        yield f"first request: at most {tokens} tokens in, {settings.max_tokens} out, {render.money(most)}; nothing was sent"

    start = f" --improve {shlex.quote(asked.improve)}" if asked.improve is not None else ""
    return Answer(data, show, next=f"coda-agent author {card.id}{start}")


def _lint(terminal: Terminal, task: Task, settings: Settings) -> None:
    """Refuse a task on which wrong kernels would pass. The outcome is kept for this task and judge.

    Raises `TaskRefused`, or `JudgeUnavailable` where the machine failed the lint.
    """
    from ..verify.identity import judge_digest
    from ..verify.lint import LintReport, lint_in_worker

    cached = settings.cache_dir / "lint" / f"{task.id}-{judge_digest(task.digest)[:24]}.json"
    report: LintReport | None = None
    try:
        report = LintReport.model_validate_json(cached.read_bytes())
    except (OSError, ValueError):
        terminal.say(f"task {task.id}: trying wrong programs on it")
    if report is None:
        report = lint_in_worker(task)
        if machine_failed(report):
            raise JudgeUnavailable(
                f"the task {task.id!r} cannot be linted here: {'; '.join(report.problems)[:600]}",
                hint=f"`coda-agent doctor` says what is missing here; `coda-agent lint {task.id}` tries again",
            )
        try:
            if report.tried:  # else it could not even begin, which says nothing about the task for next time
                write_text(cached, report.model_dump_json() + "\n")
        except OSError as error:
            terminal.detail(f"the lint's outcome cannot be kept: {error}")
    if not report.ok:
        found = "; ".join((*report.problems, *(f"survives: {s}" for s in report.survivors)))[:600]
        wrong = "does not refuse wrong kernels" if report.tried else "cannot be linted"
        raise TaskRefused(f"the task {task.id!r} {wrong}: {found}", hint=f"coda-agent lint {task.id}")
    terminal.say(f"task {task.id}: {report.killed} of {report.tried} wrong programs are refused")


# after the run --------------------------------------------------------------------------------------------------------


def _answer(terminal: Terminal, run: store.Run, summary: Summary, error: AgentError | None) -> Answer:
    verdict = run.verdict(summary.best.call) if summary.best is not None else None
    reply = run.reply(summary.best.call) if summary.best is not None else None
    data = {
        "run": str(run.folder),
        "kernel": summary.kept.path if summary.kept else None,
        "kernel_id": summary.kept.id if summary.kept else None,
        "same_program": summary.kept.same_program if summary.kept else None,
        "task": summary.task,
        "gates": render.gate_rows(verdict) if verdict else [],
        "verdict": str(verdict.status) if verdict else None,
        "program_digest": verdict.program_digest if verdict else None,
        "passed": summary.passed,
        "goal_met": summary.goal_met,
        "stop": summary.stop,
        "reason": summary.reason,
        "model": reply.model if reply else (summary.models[-1] if summary.models else run.info.model),
        "provider": reply.provider if reply else run.info.llm,
        "cost_usd": summary.cost_usd,
        "tokens": summary.usage.total,
        "rounds": summary.rounds,
        "seconds": summary.elapsed_s,
    }
    exit_code = Exit(error.exit_code) if error is not None else Exit(summary.exit_code)
    paths = [("run", run.folder)]
    if summary.kept is not None:
        paths.append(("kernel", Path(summary.kept.path)))
    return Answer(
        data,
        lambda: _shown(summary, verdict, data),
        exit_code,
        _failure(summary, verdict, error, exit_code),
        warnings=summary.warnings,
        paths=tuple(paths),
        next=_next(terminal, summary, run),
    )


def _shown(summary: Summary, verdict: Verdict | None, data: Mapping[str, Any]) -> Iterator[Any]:
    if verdict is None:
        yield "no candidate was judged"
    else:
        yield render.gate_table(verdict.gates)
        yield render.verdict_line(verdict)
    rounds = f"{summary.rounds} round{'' if summary.rounds == 1 else 's'}"
    spent = f"{summary.usage.total} tokens, {render.money(summary.cost_usd)}"
    yield f"{data['model'] or 'no model'} through {data['provider']}: {rounds}, {spent}, {summary.elapsed_s:.1f} s"


def _failure(summary: Summary, verdict: Verdict | None, error: AgentError | None, exit_code: Exit) -> Failure | None:
    if exit_code is Exit.OK:
        return None
    if error is not None:
        return Failure(error.code, error.what, error.hint)
    if exit_code is Exit.INTERRUPTED:
        return Failure("interrupted", "interrupted; what was paid for is kept")
    best = ""
    if verdict is not None and verdict.first_failure is not None:
        gate = verdict.gate(verdict.first_failure)
        best = f"; the best candidate ended at gate {gate.name} with {gate.status}: {render.reason_and_hint(gate)[0]}"
    elif verdict is not None and not verdict.passed:
        best = f"; not proven here: {'; '.join(f'{g.name}: {g.reason}' for g in verdict.not_run)}"
    return Failure("goal-not-met", f"{summary.reason}{best}", _advice(summary))


def _advice(summary: Summary) -> str:
    match summary.stop:
        case "rounds":
            return "allow more with --rounds, and go on with --resume"
        case "cost" | "tokens" | "time":
            return "allow more, and go on with --resume"
        case "unproven":
            return (
                "resume on a machine where every required gate can run; `coda-agent doctor` says what is missing here"
            )
        case "suspect":
            return "look at the benchmark record in the run's folder"
        case "refused" | "no_usable_reply":
            return "read the replies in the run's folder, or ask another model"
    return ""


def _next(terminal: Terminal, summary: Summary, run: store.Run) -> str:
    if summary.kept is not None:
        from ..keeping import shelves

        # a program that was kept already is reviewed, and promoted, where it lies
        name = shelves.found_as(run, summary.kept) if summary.kept.same_program else run.info.id
        return f"coda-agent review {shlex.quote(name)}"
    return terminal.resume


class _EventWriter:
    """Events as JSON lines on stdout as long as somebody reads them, and progress as ever. The run goes on either way: what it
    pays for is on disk."""

    def __init__(self, progress: Callable[[Event], None]) -> None:
        self._progress = progress
        self.lost: OutputLost | BrokenPipeError | None = None

    def __call__(self, event: Event) -> None:
        if self.lost is None:
            try:
                write_line(sys.stdout, json_text(event.model_dump(mode="json")))
            except (OutputLost, BrokenPipeError) as error:
                self.lost = error
        self._progress(event)


def _as_line(terminal: Terminal, answer: Answer) -> Answer:
    """The same answer, whose text is the document of --json in one line."""

    line = json_text(terminal.document(answer))
    return Answer(answer.data, lambda: [line], answer.exit, answer.failure, answer.warnings, answer.paths, answer.next)


# replay ---------------------------------------------------------------------------------------------------------------


def replay(terminal: Terminal, name: str) -> Answer:
    """The command `replay`."""
    from ..authoring.decisions import replay_decisions

    settings = terminal.settings()
    found = replay_decisions(store.find(name, settings.runs_dir))
    rows = [
        {
            "call": step.call,
            "round": step.round,
            "outcome": step.outcome,
            "derived": f"{step.derived.action}: {step.derived.reason}" if step.derived else None,
            "recorded": step.recorded.action if step.recorded else "not recorded",
            "agrees": "yes" if step.agrees else "NO",
        }
        for step in found.steps
    ]

    def show() -> Iterator[Any]:
        yield found.statement
        yield render.table_of(
            rows, ["call", "round", "outcome", "derived", "recorded", "agrees"], right=["call", "round"]
        )
        yield f"best call: {found.best_call or 'none'}; goal {'met' if found.goal_met else 'not met'}"
        yield f"stopped: {found.stopped or 'not recorded: the run was killed'}"

    failure = None
    if not found.consistent:
        wrong = [str(step.call) for step in found.steps if not step.agrees]
        failure = Failure(
            "inconsistent",
            f"the decisions recorded for call {', '.join(wrong)} do not follow from the evidence",
            "the run was edited, or made by another version of the rules",
        )
    data = {**found.model_dump(mode="json"), "consistent": found.consistent}
    return Answer(data, show, Exit.REFUSED if failure else Exit.OK, failure)
