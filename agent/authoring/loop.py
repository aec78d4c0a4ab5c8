"""The authoring loop: prompt → model → candidate → judge → feedback → next round, until the goal, a limit or Ctrl-C.

    author       drive a run to its end; also goes on with one that was interrupted
    Judge        what the loop needs of the judge
    judge_with   the real judge, with options

**Nothing paid for is lost.** The loop is deterministic in replies and verdicts, and every one is on disk before it is used.
Going on after a kill starts at the first round again and takes from disk what is there: a reply with its number, a verdict for
the same source and task. **Every end is orderly**: the best passing kernel is kept and `summary.json` written, on a limit, an
interrupt, and an error alike. Errors for the person are raised afterwards; feedback for the model never is one.

Neighbours: `prepare` makes the prompt and the run folder; `policy` decides, `budget` limits, `decisions` re-derives;
`agent.runs` writes, `agent.prompting` words, `agent.keeping.keep` keeps.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from ..errors import AgentError, JudgeUnavailable, LLMError, NotKept, RunDamaged, RunMismatch, TaskRefused
from ..keeping.keep import Provenance, keep, seeds_commitment
from ..llm.prices import warn_unpriced
from ..llm.protocol import LLM, OnText, Reply, Request, Submission, Usage
from ..prompting import feedback, outcome
from ..prompting.prompt import Exchange, sha256
from ..records import Status, Verdict
from ..runs import store
from ..runs.events import (
    Asked,
    CallFailed,
    Decided,
    Decision,
    Event,
    Judged,
    Judging,
    Kept,
    KeptKernel,
    Repeated,
    Replied,
    ReplyUnusable,
    Resumed,
    Started,
    Stopped,
    StopReason,
    Summary,
    Warned,
)
from ..task import Task
from .budget import Ledger, Limits, lost_calls_usd
from .policy import Course
from .prepare import Prompt

if TYPE_CHECKING:
    from ..verify.judge import Limits as JudgeLimits
    from ..verify.judge import Options, Progress

OnEvent = Callable[[Event], None]


class Judge(Protocol):
    """What the loop needs of the judge."""

    def __call__(self, source: str, task: Task, *, schedule: dict[str, JsonValue] | None) -> Verdict:
        """The verdict on a source. Never raises for anything in it."""


def judge_with(
    options: Options | None = None,
    limits: JudgeLimits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Judge:
    """The judge of `agent.verify`, with these options; the author's schedule is added per candidate."""
    from ..verify.judge import Options as _Options
    from ..verify.judge import judge

    base = options or _Options()

    def call(source: str, task: Task, *, schedule: dict[str, JsonValue] | None) -> Verdict:
        chosen = base if schedule is None else base.model_copy(update={"schedule": schedule})
        return judge(source, task, options=chosen, limits=limits, on_progress=on_progress)

    return call


def author(
    prompt: Prompt,
    llm: LLM,
    judge: Judge,
    run: store.Run,
    *,
    limits: Limits,
    goal: float | None = None,
    into: pathlib.Path | None = None,
    name: str | None = None,
    on_event: OnEvent | None = None,
    on_text: OnText | None = None,
) -> Summary:
    """Drive a run to its end and return its last word; `exit_code` is in there.

    Args:
        run: From `prepare.new_run`, or from `store.resume` to go on.
        goal: Fraction of the floor's speed to reach: the run's own, and only repeated here. A run without one is content
            with a pass.
        into: Where passing kernels are kept; None keeps none.
        name: Of the kept kernel.
        on_event: Told everything that happens; what is read from disk on resume says so (`reused`).
        on_text: Told the reply as it streams.

    Raises:
        PriceUnknown: A cost limit that could not be enforced; nothing was sent.
        RunMismatch: The run is of another task or has another goal, or the task has changed since.
        LLMError: No reply could be had. The summary is written and the best so far kept.
        TaskRefused: The judge found the task at fault.
        JudgeUnavailable: The machine failed the judge twice.
        NotKept: The best kernel passed and its folder could not be written. The summary is written.
    """
    if goal is not None and goal != run.info.goal:
        was = "none" if run.info.goal is None else f"{run.info.goal:g}"
        raise RunMismatch(f"the goal of the run {run.info.id!r} is {was}, not {goal:g}", hint="start a new run")
    session = _Session(prompt, llm, judge, run, limits, on_event, on_text)
    session.check()
    error: BaseException | None = None
    try:
        stop, reason = session.drive()
    except KeyboardInterrupt:
        stop, reason = "interrupted", "interrupted from the keyboard"
    except LLMError as failure:
        stop, reason, error = "llm_error", failure.what, failure
    except Exception as failure:  # a bug of ours: the run still ends orderly
        stop, reason, error = "infrastructure", f"{type(failure).__name__}: {failure}", failure
    if stop == "invalid_spec":
        error = TaskRefused(f"the task {prompt.task.id!r} is at fault: {reason}", hint="mend the task, then start anew")
    elif stop == "infrastructure" and error is None:
        hint = f"mend the machine, then resume: --resume {run.info.id}"
        error = JudgeUnavailable(f"the judge cannot work here: {reason}", hint=hint)
    kept, not_kept = session.keep_best(into, name)
    error = error or not_kept
    summary = session.finish(stop, reason, error, kept)
    if error is not None:
        raise error
    return summary


@dataclass(frozen=True)
class _Spent:
    """The ledger and the round as they were when a call was answered."""

    usage: Usage
    cost_usd: float | None
    round: int


class _Session:
    """One process's work on a run."""

    def __init__(
        self,
        prompt: Prompt,
        llm: LLM,
        judge: Judge,
        run: store.Run,
        limits: Limits,
        on_event: OnEvent | None,
        on_text: OnText | None,
    ) -> None:
        self.prompt, self.llm, self.judge, self.run = prompt, llm, judge, run
        self.limits, self.on_event, self.on_text = limits, on_event, on_text
        self.course = Course(run.info.goal)
        self.ledger = Ledger(llm.name, prompt.model)
        self.exchanges: list[Exchange] = []
        self.spent: dict[int, _Spent] = {}
        self.models: list[str] = []
        self.warnings: list[str] = []
        self.calls = 0

    # before anything is spent ---------------------------------------------------------------------------------
    def check(self) -> None:
        """Everything that can be refused before a token is spent; then the first events."""
        info, task = self.run.info, self.prompt.task
        if info.task != task.id:
            raise RunMismatch(f"the run {info.id!r} is of task {info.task!r}, not {task.id!r}", hint="start a new run")
        if info.task_digest != task.digest:
            raise RunMismatch(f"the task {task.id!r} has changed since the run {info.id!r}", hint="start a new run")
        self.ledger.require_price(self.limits)
        going_on = bool(self.run.events)
        for failed in [e for e in self.run.events if isinstance(e, CallFailed)]:
            self.ledger.add_failed(failed.spent)
        self.ledger.at_risk_usd = lost_calls_usd(self.run.events, self.run.replies)
        shown = self.prompt.shown
        self._tell(
            Started(
                task=task.id,
                llm=info.llm,
                model=info.model,
                shown=shown.ids,
                withheld=tuple(sorted(shown.withheld)),
            )
        )
        if going_on:
            self._tell(Resumed(replies=len(self.run.replies), verdicts=len(self.run.verdicts)))
        if sha256(self.prompt.system) != info.system_sha256:
            self._warn(
                "the guide or the examples have changed since the run began; replies on disk answer the older prompt"
            )
        if info.model is not None and self.prompt.model != info.model:
            self._warn(f"the run began with the model {info.model!r} and goes on with {self.prompt.model!r}")
        unpriced = warn_unpriced(self.prompt.model) if self.ledger.billed else None
        if unpriced is not None:
            self._warn(unpriced)

    # rounds ---------------------------------------------------------------------------------------------------
    def drive(self) -> tuple[StopReason, str]:
        """Calls and judgements until something stops the run."""
        decision = Decision(action="ask", reason="the first round")
        while True:
            match decision.action:
                case "ask" | "repair" | "optimise":
                    if self.course.round >= self.limits.rounds:
                        allowed = self.limits.rounds
                        return "rounds", f"the limit of {allowed} round{'' if allowed == 1 else 's'} is reached"
                    self.course.begin_round()
                case "retry" | "retry_plainly":
                    pass  # within the round
                case "judge_again" | "stop":
                    raise AssertionError(decision)  # settled in _answer
            call = self.calls + 1
            request = self.prompt.request(self.exchanges, call, plainly=decision.action == "retry_plainly")
            reply = self._reply(request)
            if not isinstance(reply, Reply):
                return reply
            decision = self._answer(call, reply)
            if decision.action == "stop":
                assert decision.stop is not None
                return decision.stop, decision.reason

    def _reply(self, request: Request) -> Reply | tuple[StopReason, str]:
        """The reply to a request: from disk where it was paid for already, else from the model, or why it may not be asked."""
        call = request.round
        reply = self.run.reply(call)
        reused = reply is not None
        if reply is None:
            tokens = self.llm.estimate(request)  # may be a call over the network
            refusal = self._ask_allowed(request, tokens)
            if refusal is not None:
                return refusal
            reply = self._ask(request, tokens)
        elif (asked := self.run.request(call)) is not None and asked.prompt_sha != request.prompt_sha:
            self._warn(f"call {call}: the reply on disk answers another prompt than the present one", call)
        self.calls = call
        cost = self.ledger.add_reply(reply)
        self.spent[call] = _Spent(self.ledger.usage, self.ledger.cost_usd, self.course.round)
        if reply.model not in self.models:
            self.models.append(reply.model)
        self._tell(
            Replied(
                call=call,
                round=self.course.round,
                model=reply.model,
                stop_reason=reply.stop_reason,
                usage=reply.usage,
                billed=reply.billed,
                cost_usd=cost,
                reused=reused,
            )
        )
        for note in reply.notes:
            self._warn(note, call)
        return reply

    def _ask_allowed(self, request: Request, tokens: int) -> tuple[StopReason, str] | None:
        return self.ledger.refusal(
            self.limits,
            elapsed_s=self.run.elapsed_s,
            input_tokens=tokens,
            max_tokens=request.max_tokens,
        )

    def _ask(self, request: Request, tokens: int) -> Reply:
        call = request.round
        self.run.write_request(call, request)
        self._tell(
            Asked(
                call=call,
                round=self.course.round,
                prompt_sha=request.prompt_sha,
                input_tokens=tokens,
                reserved_usd=self.ledger.reservation(tokens, request.max_tokens),
            )
        )
        try:
            reply = self.llm.complete(request, self.on_text)
        except LLMError as error:
            spent = Usage(**error.spent)
            self.ledger.add_failed(spent)
            self._tell(CallFailed(call=call, code=error.code, message=error.what, spent=spent))
            raise
        self.run.write_reply(call, reply)
        return reply

    def _answer(self, call: int, reply: Reply) -> Decision:
        """What a reply leads to."""
        if reply.submission is None:
            return self._unusable(call, reply)
        earlier = self.course.earlier(reply.submission)
        if earlier is not None:
            return self._repeated(call, reply, *earlier)
        return self._judged(call, reply, reply.submission)

    def _unusable(self, call: int, reply: Reply) -> Decision:
        problem = reply.problem
        assert problem is not None
        category = reply.stop_details.category if reply.stop_details else None
        where: dict[str, Any] = {"call": call, "round": self.course.round}
        self._tell(ReplyUnusable(**where, problem=problem.kind, message=problem.message, category=category))
        if not reply.refused:  # a refusal is not argued with: the prompt is put differently, once
            said = feedback.UnusableReply(problem=problem.kind, message=problem.message)
            self.exchanges.append(Exchange(reply, said))
        return self._decided(call, self.course.replied(problem.kind))

    def _repeated(self, call: int, reply: Reply, of: int, passed: bool) -> Decision:
        assert reply.submission is not None
        self._tell(Repeated(call=call, round=self.course.round, of=of))
        self.exchanges.append(Exchange(reply, feedback.RepeatedSource(of=of, passed=passed)))
        return self._decided(call, self.course.repeated(reply.submission))

    def _judged(self, call: int, reply: Reply, submission: Submission) -> Decision:
        self.run.write_candidate(call, submission)
        sha = store.source_sha256(submission.source)
        try:
            found = self.run.verdict_for(call, sha)
        except RunDamaged as damage:  # what was paid for is the reply; a verdict can be had again
            self._warn(f"{damage.what}; the candidate is judged again", call)
            found = None
        if found is not None and found.status in (Status.INFRA_ERROR, Status.NOT_RUN):
            found = None  # said about the machine, which may be another one now
        while True:
            self._tell(Judging(call=call, round=self.course.round, source_sha256=sha))
            verdict = found or self._judge(call, submission, sha)
            self._tell(
                Judged(
                    call=call,
                    round=self.course.round,
                    status=verdict.status,
                    gates=tuple((g.name, g.status) for g in verdict.gates),
                    first_failure=verdict.first_failure,
                    digest=verdict.program_digest,
                    floor_fraction=outcome.floor_fraction(verdict),
                    reused=found is not None,
                )
            )
            decision = self._decided(call, self.course.judged(call, submission, verdict))
            if decision.action != "judge_again":
                break
        if decision.action != "stop":
            said = outcome.passed(call, verdict, self.course.goal) if verdict.passed else outcome.refused(call, verdict)
            self.exchanges.append(Exchange(reply, said))
        return decision

    def _judge(self, call: int, submission: Submission, sha: str) -> Verdict:
        verdict = self.judge(submission.source, self.prompt.task, schedule=submission.schedule)
        if (verdict.source_sha256, verdict.task_digest) != (sha, self.run.info.task_digest):
            raise ValueError("the judge answered about another source or task than it was asked about")
        self.run.write_verdict(call, verdict)
        return verdict

    def _decided(self, call: int, decision: Decision) -> Decision:
        self._tell(Decided(call=call, round=self.course.round, decision=decision))
        return decision

    # the end --------------------------------------------------------------------------------------------------
    def keep_best(self, into: pathlib.Path | None, name: str | None) -> tuple[KeptKernel | None, NotKept | None]:
        """Keep the best pass. A failure is returned: the summary is written first, and the run holds the kernel anyway."""
        best = self.course.best
        if best is None or not best.passed or into is None:
            return None, None
        try:
            kept = self._keep(best.call, into, name)
        except Exception as error:  # whatever a folder of other people's files can do
            what = f"the kernel of call {best.call} passed and could not be kept in {str(into)!r}: {error}"
            self._warn(what, best.call)
            failure = NotKept(what, hint=f"mend the folder, then --resume {self.run.info.id}: nothing is asked again")
            failure.__cause__ = error
            return None, failure
        self._tell(Kept(call=best.call, **kept.model_dump()))
        return kept, None

    def finish(self, stop: StopReason, reason: str, error: BaseException | None, kept: KeptKernel | None) -> Summary:
        """Write the last word."""
        best = self.course.best
        told = None
        if error is not None:
            what = error.what if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
            code = error.code if isinstance(error, AgentError) else "bug"
            told = {"code": code, "message": what, "hint": getattr(error, "hint", "")}
        summary = Summary(
            run=self.run.info.id,
            task=self.prompt.task.id,
            stop=stop,
            reason=reason,
            passed=best is not None and best.passed,
            goal_met=self.course.goal_met,
            best=best,
            kept=kept,
            rounds=self.course.round,
            calls=self.calls,
            judged=self.course.judged_calls,
            usage=self.ledger.usage,
            cost_usd=self.ledger.cost_usd,
            at_risk_usd=lost_calls_usd(self.run.events, self.run.replies),
            elapsed_s=round(self.run.elapsed_s, 3),
            models=tuple(self.models),
            warnings=tuple(self.warnings),
            error=told,
        )
        self.run.write_summary(summary)
        self._tell(Stopped(stop=stop, reason=reason))
        return summary

    def _keep(self, call: int, into: pathlib.Path, name: str | None) -> KeptKernel:
        reply, verdict, request = self.run.reply(call), self.run.verdict(call), self.run.request(call)
        assert reply is not None
        assert reply.submission is not None
        assert verdict is not None
        assert verdict.program_digest is not None
        spent, info = self.spent[call], self.run.info
        provenance = Provenance(
            task=info.task,
            task_digest=info.task_digest,
            program_digest=verdict.program_digest,
            source_sha256=verdict.source_sha256,
            model=reply.model,
            provider=reply.provider,
            run=info.id,
            call=call,
            rounds=spent.round,
            prompt_version=info.prompt_version,
            prompt_sha256=request.prompt_sha if request is not None else "",
            examples=info.examples,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            improves=info.start.kernel if info.start is not None else None,
            seeds_commitment=seeds_commitment(verdict),
            rationale=reply.submission.rationale,
            created=datetime.datetime.now(datetime.UTC),
        )
        return keep(
            into,
            source=reply.submission.source,
            verdict=verdict,
            provenance=provenance,
            schedule=verdict.schedule,
            name=name,
        )

    def _warn(self, message: str, call: int | None = None) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            self._tell(Warned(call=call, message=message))

    def _tell(self, event: Event) -> None:
        dated = self.run.record(event)
        if self.on_event is not None:
            with contextlib.suppress(BrokenPipeError):
                self.on_event(dated)
