"""Authoring runs as small committed records: what a model needed for a task, and where it failed before.

    Authoring   one run: rounds with the gate and class of each failure, tokens, model, prompt, examples
    Round       one reply and what became of it
    of_run      an Authoring from a run's folder, read and not derived again
    collect     writes the records of a campaign: `authored_kernels/campaigns/<campaign>/<task>.json`
    read_all    every committed record

A run's folder holds requests and replies and stays with whoever ran it; this is what is published of it, failed runs included. A
campaign is a set of runs under one name, such as "2026-11-30-claude-opus-5-5", with at most one run of a task, so that the best of several is
never taken for the only one. Neighbours: `agent.runs.store` wrote the folder, `leaderboard` tabulates the records.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from ..errors import CampaignConflict, CampaignDamaged, RunUnfinished
from ..files import write_text
from ..llm.protocol import UNKNOWN_MODEL, Usage
from ..records import Record, Verdict
from ..runs import store
from ..runs.events import Judged, Repeated, Replied, ReplyUnusable, StopReason

FOLDER = "campaigns"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")


class Round(Record):
    """One reply and what became of it."""

    call: int
    round: int
    passed: bool
    gate: str | None
    """That refused; "reply" where there was no kernel in the reply; None after a pass, or where a gate could not run."""
    status: str
    """The verdict's word, or what was wrong with the reply."""
    failure: str = ""
    """Class of the failure: a rule, an error's code, an output with its pattern. Empty after a pass."""

    @property
    def told(self) -> str:
        """In a table."""
        more = f" ({self.failure})" if self.failure not in ("", self.status) else ""
        return f"{self.gate or 'not proven'} {self.status}{more}"


class Authoring(Record):
    """`campaigns/<campaign>/<task>.json`."""

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["coda-agent/authoring/1"] = Field(default="coda-agent/authoring/1", alias="schema")
    campaign: str
    task: str
    task_digest: str
    run: str
    created: datetime.datetime
    model: str
    """Who answered, as reported; several are separated by commas."""
    provider: str
    prompt_version: str
    system_sha256: str
    """Of the part of the prompt that is the same in every round."""
    examples: tuple[str, ...]
    """Shown."""
    withheld: dict[str, str]
    """Not shown -> why."""
    improves: str | None = None
    """Id of the kept kernel that the run started from."""
    rounds_allowed: int | None
    rounds: tuple[Round, ...]
    passed: bool
    stop: StopReason
    kept: str | None
    """Id of the kept kernel."""
    digest: str | None
    """Of the best program."""
    lines: int | None
    """Of its code, without blank lines, comments and docstrings."""
    usage: Usage
    """Zero where the provider reports none."""
    cost_usd: float | None
    elapsed_s: float

    @property
    def rounds_used(self) -> int:
        """Until the first pass, or all of them."""
        return next((r.round for r in self.rounds if r.passed), max((r.round for r in self.rounds), default=0))

    @property
    def first_time(self) -> bool:
        """Whether the first reply passed."""
        return bool(self.rounds) and self.rounds[0].passed

    @property
    def failures(self) -> tuple[Round, ...]:
        """What was refused before the first pass, in order."""
        before = []
        for one in self.rounds:
            if one.passed:
                break
            before.append(one)
        return tuple(before)


# from a run -----------------------------------------------------------------------------------------------------------


def of_run(folder: Path, campaign: str = "") -> Authoring:
    """The record of a run that has ended; without a name the campaign is called after its day and its model.

    Raises `UnknownRun`, `RunDamaged`, or `RunUnfinished`.
    """
    run = store.open_run(folder)
    summary = run.summary
    if summary is None:
        hint = f"`coda-agent author {run.info.task} --resume {folder.name}` ends it"
        raise RunUnfinished(f"the run {folder.name!r} has not ended: it has no summary", hint=hint)
    model = ", ".join(dict.fromkeys(summary.models)) or run.info.model or UNKNOWN_MODEL
    day = run.info.created.strftime("%Y-%m-%d")
    best = summary.best.call if summary.best is not None else None
    source = run.attempt_folder(best) / "kernel.py" if best is not None else None
    allowed = run.info.limits.get("rounds")
    return Authoring(
        campaign=campaign or f"{day}-{_UNSAFE.sub('-', model.lower()).strip('-.')}"[:80],
        task=run.info.task,
        task_digest=run.info.task_digest,
        run=run.info.id,
        created=run.info.created,
        model=model,
        provider=run.info.llm.partition(":")[0],
        prompt_version=run.info.prompt_version,
        system_sha256=run.info.system_sha256,
        examples=run.info.examples,
        withheld=run.info.withheld,
        improves="/".join(Path(run.info.start.kernel).parts[-2:]) if run.info.start is not None else None,
        rounds_allowed=allowed if isinstance(allowed, int) else None,
        rounds=tuple(_rounds(run)),
        passed=summary.passed,
        stop=summary.stop,
        kept=summary.kept.id if summary.kept is not None else None,
        digest=summary.best.digest if summary.best is not None else None,
        lines=code_lines(source.read_text("utf-8", "replace")) if source is not None and source.is_file() else None,
        usage=summary.usage,
        cost_usd=summary.cost_usd,
        elapsed_s=summary.elapsed_s,
    )


def _rounds(run: store.Run) -> Iterator[Round]:
    """One per reply, in order; a candidate that was judged twice counts by its last verdict."""
    judged = {e.call: e for e in run.events if isinstance(e, Judged)}
    unusable = {e.call: e for e in run.events if isinstance(e, ReplyUnusable)}
    repeated = {e.call: e for e in run.events if isinstance(e, Repeated)}
    for reply in (e for e in run.events if isinstance(e, Replied)):
        call, at = reply.call, reply.round
        if call in unusable:
            problem = unusable[call].problem
            yield Round(call=call, round=at, passed=False, gate="reply", status=problem, failure=problem)
        elif call in judged:
            found = judged[call]
            verdict = run.verdict(call)
            failure = failure_class(verdict) if verdict is not None and not found.status.good else ""
            yield Round(
                call=call,
                round=at,
                passed=found.status.good,
                gate=found.first_failure,
                status=str(found.status),
                failure=failure,
            )
        elif call in repeated:
            said = f"the candidate of call {repeated[call].of} again"
            yield Round(call=call, round=at, passed=False, gate="reply", status="repeated", failure=said)


def failure_class(verdict: Verdict) -> str:
    """What a refusal is about, in a few words and without the run's numbers: "S101", "width", "dz: factor 2"."""
    if verdict.first_failure is None:
        return "; ".join(f"{g.name} not run" for g in verdict.not_run if g.name != "bench")
    gate = verdict.gate(verdict.first_failure)
    evidence = gate.evidence
    if isinstance(found := evidence.get("findings"), list) and found:
        return ", ".join(dict.fromkeys(str(f["rule"]) for f in found if isinstance(f, dict) and "rule" in f))
    if isinstance(wrong := evidence.get("interface"), list) and wrong:
        return "interface: " + ", ".join(dict.fromkeys(str(w["name"]) for w in wrong if isinstance(w, dict)))
    if isinstance(error := evidence.get("error"), dict) and error.get("code"):
        return str(error["code"])
    patterns = [*_patterns(evidence.get("failures"))]
    if isinstance(backends := evidence.get("backends"), dict):
        for name, said in backends.items():
            if isinstance(said, dict) and said.get("status") not in ("PASS", "NOT_RUN"):
                patterns += [f"{name} {text}" for text in _patterns(said.get("failures"))] or [
                    f"{name} {said.get('status')}"
                ]
    return "; ".join(dict.fromkeys(patterns)) or str(gate.status)


def _patterns(failures: object) -> Iterator[str]:
    for failure in failures if isinstance(failures, list) else ():
        if isinstance(failure, dict):
            pattern = str(failure.get("pattern") or failure.get("status") or "")
            yield f"{failure['output']}: {pattern}" if failure.get("output") else pattern


def code_lines(source: str) -> int | None:
    """Lines of code: without blank lines, comments and docstrings. None for a text that is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    words: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
            words |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for at, line in lines if at not in words and line.strip() and not line.strip().startswith("#"))


# the committed records ------------------------------------------------------------------------------------------------


def collect(runs: Iterable[Path], into: Path, *, campaign: str = "") -> tuple[tuple[Authoring, Path], ...]:
    """Write `into/<campaign>/<task>.json` for each run; all are read and checked before the first is written.

    Raises what `of_run` raises, or `CampaignConflict` where the campaign has another run of a task.
    """
    if campaign and not _NAME.fullmatch(campaign):
        hint = "lower case letters, digits, '_', '.' and '-', as in 2026-11-30-some-model"
        raise CampaignConflict(f"{campaign!r} is no name for a campaign", hint=hint)
    found: dict[Path, Authoring] = {}
    for folder in runs:
        record = of_run(folder, campaign)
        path = into / record.campaign / f"{record.task}.json"
        before = found.get(path) or (_read(path) if path.is_file() else None)
        if before is not None and before.run != record.run:
            raise CampaignConflict(
                f"the campaign {record.campaign!r} has a run of {record.task!r} already: {before.run}",
                hint="--campaign gives another name: a campaign has one run of a task, whatever came of it",
            )
        found[path] = record
    for path, record in found.items():
        write_text(path, record.model_dump_json(by_alias=True, indent=2) + "\n")
    return tuple((record, path) for path, record in found.items())


def read_all(folder: Path) -> tuple[Authoring, ...]:
    """Every record below `campaigns/`, by campaign and task. Raises `CampaignDamaged`."""
    return tuple(_read(path) for path in sorted(folder.glob("*/*.json")))


def _read(path: Path) -> Authoring:
    try:
        return Authoring.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = (
            error.errors(include_url=False, include_input=False)[0]["msg"]
            if isinstance(error, ValidationError)
            else error
        )
        raise CampaignDamaged(
            f"{str(path)!r} is no record of an authoring run: {first}",
            hint="collect the run again, or restore the file",
        ) from error
