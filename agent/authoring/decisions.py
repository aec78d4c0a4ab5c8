"""Derives a run's decisions again from its recorded evidence: `coda-agent replay RUN`.

Replies and verdicts are read, fed to the same `policy.Course` that drove the run, and the decisions compared with those that were
recorded. Nothing is asked, nothing is judged again, nothing is written: this checks that the loop did what its rules say,
not that the kernels are right. (`--llm replay:RUN` is the other thing: recorded replies, judged afresh.)
"""

from __future__ import annotations

import pathlib

from ..llm.protocol import Submission
from ..records import Record, Verdict
from ..runs import store
from ..runs.events import Decided, Decision, Stopped
from .policy import Course

STATEMENT = "re-derived from recorded replies and verdicts; no model was asked and nothing was judged again"


class Step(Record):
    """One call of the run."""

    call: int
    round: int
    outcome: str
    """What came back: a problem, a repetition, a verdict's status word, or that it was not judged."""
    derived: Decision | None
    recorded: Decision | None
    """None where the run was killed before it was written."""

    @property
    def agrees(self) -> bool:
        """Whether the recorded decision follows from the evidence; an unrecorded one contradicts nothing."""
        if self.recorded is None or self.derived is None:
            return True
        return (self.recorded.action, self.recorded.stop) == (self.derived.action, self.derived.stop)


class Replayed(Record):
    """A run, derived again."""

    statement: str = STATEMENT
    run: str
    task: str
    steps: tuple[Step, ...]
    best_call: int | None
    goal_met: bool
    stopped: str | None
    """How the run's last session ended, as recorded; limits depend on clocks and prices and are not derived."""

    @property
    def consistent(self) -> bool:
        """Whether every recorded decision follows from the evidence."""
        return all(step.agrees for step in self.steps)


def replay_decisions(folder: pathlib.Path) -> Replayed:
    """Derive the decisions of a run folder. Raises `UnknownRun` or `RunDamaged`."""
    run = store.open_run(folder)
    course = Course(run.info.goal)
    recorded = {e.call: e.decision for e in run.events if isinstance(e, Decided)}
    steps: list[Step] = []
    within = False
    for call in run.replies:
        reply = run.reply(call)
        assert reply is not None
        if not within:
            course.begin_round()
        if reply.submission is None:
            assert reply.problem is not None
            outcome, decision = f"reply: {reply.problem.kind}", course.replied(reply.problem.kind)
        elif course.earlier(reply.submission) is not None:
            outcome, decision = "repeated", course.repeated(reply.submission)
        elif (verdict := run.verdict(call)) is None:
            steps.append(
                Step(call=call, round=course.round, outcome="not judged", derived=None, recorded=recorded.get(call))
            )
            break
        else:
            outcome, decision = str(verdict.status), _settle(course, call, reply.submission, verdict)
        steps.append(
            Step(call=call, round=course.round, outcome=outcome, derived=decision, recorded=recorded.get(call))
        )
        within = decision.action in ("retry", "retry_plainly")
        if decision.action == "stop":
            break
    ended = [e for e in run.events if isinstance(e, Stopped)]
    return Replayed(
        run=run.info.id,
        task=run.info.task,
        steps=tuple(steps),
        best_call=course.best.call if course.best else None,
        goal_met=course.goal_met,
        stopped=f"{ended[-1].stop}: {ended[-1].reason}" if ended else None,
    )


def _settle(course: Course, call: int, submission: Submission, verdict: Verdict) -> Decision:
    """The decision on a verdict; where the machine failed, on the failure of the second attempt as well."""
    decision = course.judged(call, submission, verdict)
    while decision.action == "judge_again":
        decision = course.judged(call, submission, verdict)
    return decision
