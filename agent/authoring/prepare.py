"""Everything before the first token: the prompt of a task, and the run folder that it is recorded in.

    Prompt    prefix, task part and what was shown, without any round's history
    prepare   the prompt of a task, from the curated bank; with a kept kernel where that is to be made faster
    new_run   a run folder for it

Neighbours: `loop.author` takes both. `--dry-run` needs `prepare` alone: `prompt.request([], 1)` is the first request.
"""

from __future__ import annotations

import datetime
import pathlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import examples_curated

from ..errors import CannotImprove
from ..keeping import ratios
from ..keeping.measured import of_kernel
from ..keeping.shelves import Kept
from ..llm.protocol import Request
from ..prompting import bank, outcome
from ..prompting import prompt as prompting
from ..records import Environment
from ..runs import store
from ..settings import EXAMPLE_TOKENS, Effort, Settings
from ..task import Task
from .budget import Limits


@dataclass(frozen=True)
class Prompt:
    """The prompt of a task, without any round's history."""

    task: Task
    shown: bank.Shown
    system: str
    task_text: str
    model: str
    max_tokens: int
    effort: Effort | None
    improves: str | None = None
    """The kept kernel that the run starts from, as the person named it."""

    def request(self, exchanges: Sequence[prompting.Exchange], call: int, *, plainly: bool = False) -> Request:
        """The request of one model call."""
        return prompting.request(
            self.system,
            self.task_text,
            exchanges,
            call=call,
            model=self.model,
            max_tokens=self.max_tokens,
            effort=self.effort,
            plainly=plainly,
        )


def prepare(
    task: Task,
    *,
    model: str,
    max_tokens: int = 32_000,
    effort: Effort | None = None,
    examples: tuple[bank.Example, ...] | None = None,
    budget: int = EXAMPLE_TOKENS,
    show_own: bool = False,
    improve: Kept | None = None,
    goal: float | None = None,
) -> Prompt:
    """The prompt of a task, from the curated bank unless `examples` are given. `goal` is told where there is a kernel to `improve`.

    Raises `CannotImprove` where that kernel is of another task, was not kept or not measured, or is one that the task withholds.
    """
    known = bank.examples() if examples is None else examples
    interface = bank.interface_of(task, known)
    shown = bank.choose(task.id, known, budget=budget, show_own=show_own, interface=interface)
    system, text = prompting.system_text(shown.examples), prompting.task_text(task)
    if improve is not None:
        text += f"\n{_start(task, improve, goal, show_own)}"
    return Prompt(task, shown, system, text, model, max_tokens, effort, improve.handle if improve is not None else None)


def _start(task: Task, kept: Kept, goal: float | None, show_own: bool) -> str:
    """What is said of the kernel that the run starts from."""
    if kept.task != task.id:
        raise CannotImprove(
            f"{kept.id!r} is a kernel of {kept.task!r}, not of {task.id!r}", hint="name one of the task"
        )
    if kept.origin == "run":
        raise CannotImprove(
            f"{kept.id!r} is an attempt that was not kept", hint="`coda-agent list kernels` shows those"
        )
    digest = str(kept.provenance.get("program_digest", ""))
    if not show_own and any(examples_curated.load(e).program.digest == digest for e in examples_curated.catalog()):
        hint = "--show-own-example shows it all the same; recorded"
        raise CannotImprove(f"{kept.id!r} is the same program as a curated example, which is withheld", hint=hint)
    found = of_kernel(kept, None, digest)
    records = tuple(ratios.newest(found.records).values())
    if not records:
        why = f": {'; '.join(found.set_aside)}"[:400] if found.set_aside else ""
        hint = f"measure it first, on a GPU: coda-agent bench {shlex.quote(kept.handle)} --keep"
        raise CannotImprove(f"nothing was measured of {kept.id!r}, so there is nothing to go by{why}", hint=hint)
    return prompting.improve_text(kept.source, outcome.measured(records, goal))


def new_run(
    runs: pathlib.Path,
    prompt: Prompt,
    *,
    llm: str,
    limits: Limits,
    goal: float | None = None,
    settings: Settings | None = None,
    named: bool = True,
) -> store.Run:
    """A new, locked run folder below `runs`. `named`: whether the prompt's model is who will answer, as far as one can ask."""
    task = prompt.task
    info = store.RunInfo(
        id=store.new_id(task.id),
        task=task.id,
        task_digest=task.digest,
        created=datetime.datetime.now(datetime.UTC),
        llm=llm,
        model=prompt.model if named else None,
        limits=limits.model_dump(mode="json"),
        goal=goal,
        improves=prompt.improves,
        prompt_version=prompting.version(),
        system_sha256=prompting.sha256(prompt.system),
        examples=prompt.shown.ids,
        withheld=dict(prompt.shown.withheld),
        example_tokens=prompt.shown.tokens,
        untaught=prompt.shown.untaught,
        settings=store.settings_record(settings) if settings is not None else {},
        environment=Environment.here(),
    )
    key = settings.anthropic_api_key if settings is not None else None
    return store.create(runs, info, secrets=(key.get_secret_value(),) if key is not None else ())
