"""Everything before the first token: the prompt of a task, and the run folder that it is recorded in.

    Prompt    prefix, task part and what was shown, without any round's history
    prepare   the prompt of a task, from the curated bank; with what is said of a kept kernel where that is the start
    new_run   a run folder for it

Neighbours: `starting` words a start, `loop.author` takes both. `--dry-run` needs `prepare` alone: `prompt.request([], 1)` is the first request.
"""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..llm.protocol import Request
from ..prompting import bank
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
    start: store.Start | None = None
    """The kept kernel that the run begins with."""

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
    start: store.Start | None = None,
) -> Prompt:
    """The prompt of a task, from the curated bank unless `examples` are given; after the task, what is said of the `start`."""
    known = bank.examples() if examples is None else examples
    interface = bank.interface_of(task, known)
    shown = bank.choose(task.id, known, budget=budget, show_own=show_own, interface=interface)
    system, text = prompting.system_text(shown.examples), prompting.task_text(task)
    if start is not None:
        text += f"\n{start.text}"
    return Prompt(task, shown, system, text, model, max_tokens, effort, start)


def new_run(
    runs: pathlib.Path,
    prompt: Prompt,
    *,
    llm: str,
    limits: Limits,
    goal: float | None = None,
    into: pathlib.Path | None = None,
    name: str | None = None,
    settings: Settings | None = None,
    named: bool = True,
) -> store.Run:
    """A new, locked run folder below `runs`. `into` and `name` are where and as what its kernel is to be kept; `named`: whether the
    prompt's model is who will answer, as far as one can ask."""
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
        start=prompt.start,
        into=str(into) if into is not None else None,
        name=name,
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
