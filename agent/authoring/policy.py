"""What a run does next: decisions as a function of what came back and what the judge said, with nothing else in between.

    Course            the state that decisions depend on: round, attempts, best so far
      .replied        a reply without a kernel, of any kind
      .repeated       a kernel that was judged before
      .judged         a verdict
    fingerprint       when two submissions are the same

`loop` drives a live run through a `Course`, `decisions` a recorded one, so a recorded decision can be derived again. Budgets are not
here (`budget`): they depend on clocks and prices.
"""

from __future__ import annotations

import hashlib
import json
from typing import assert_never

from ..llm.protocol import ProblemKind, Submission
from ..prompting.outcome import floor_fraction
from ..records import GATES, Status, Verdict
from ..runs.events import Best, Decision

MAX_UNUSABLE = 3
"""Replies without a kernel in one round, after which the run stops."""
MAX_REFUSALS = 2
"""Refusals in one round: after the first the prompt is put more plainly, once."""
MAX_REPEATS = 2
"""Repeated candidates in a row, after which the run stops."""
MAX_INFRASTRUCTURE = 2
"""Judgements of one candidate that fail for the machine's reasons."""


def fingerprint(submission: Submission) -> str:
    """Equal for the same source with the same schedule."""
    schedule = json.dumps(submission.schedule, sort_keys=True)
    return hashlib.sha256(f"{schedule}\n{submission.source}".encode()).hexdigest()


class Course:
    """The state of a run, as far as decisions depend on it."""

    def __init__(self, goal: float | None = None) -> None:
        self.goal = goal
        self.round = 0
        self.best: Best | None = None
        self.judged_calls = 0
        self._unusable = self._refusals = self._repeats = self._infrastructure = 0
        self._seen: dict[str, tuple[int, bool]] = {}

    @property
    def goal_met(self) -> bool:
        """Whether the best so far is what was asked for: a pass, and with a speed goal, that speed."""
        if self.best is None or not self.best.passed:
            return False
        return self.goal is None or (self.best.floor_fraction or 0.0) >= self.goal

    def begin_round(self) -> int:
        """Number of the new round."""
        self.round += 1
        self._unusable = self._refusals = 0
        return self.round

    def earlier(self, submission: Submission) -> tuple[int, bool] | None:
        """The call that sent the same candidate before, and whether it passed."""
        return self._seen.get(fingerprint(submission))

    # what came back -------------------------------------------------------------------------------------------
    def replied(self, problem: ProblemKind) -> Decision:
        """After a reply without a kernel."""
        match problem:
            case "refused":
                self._refusals += 1
                if self._refusals >= MAX_REFUSALS:
                    return _stop("refused", "the model declined, and again when asked more plainly")
                return Decision(action="retry_plainly", reason="the model declined")
            case (
                "empty_reply"
                | "no_code"
                | "no_kernel"
                | "syntax_error"
                | "invalid_text"
                | "too_large"
                | "bad_tool_input"
                | "truncated"
            ):
                self._unusable += 1
                if self._unusable >= MAX_UNUSABLE:
                    return _stop(
                        "no_usable_reply", f"{self._unusable} replies in a row held no kernel, lastly: {problem}"
                    )
                return Decision(action="retry", reason=f"no kernel in the reply: {problem}")
            case _:
                assert_never(problem)

    def repeated(self, submission: Submission) -> Decision:
        """After a candidate that came before; its verdict stands."""
        of, passed = self._seen[fingerprint(submission)]
        self._repeats += 1
        if self._repeats >= MAX_REPEATS:
            return _stop("stuck", f"the candidate of call {of} came again {self._repeats} times in a row")
        return Decision(action="optimise" if passed else "repair", reason=f"the same as in call {of}")

    def judged(self, call: int, submission: Submission, verdict: Verdict) -> Decision:
        """After a verdict."""
        if verdict.status is Status.INFRA_ERROR:
            return self._machine_failed(verdict)
        self._infrastructure = self._repeats = 0
        self.judged_calls += 1
        self._seen.setdefault(fingerprint(submission), (call, verdict.passed))
        self._rank(call, verdict)
        return self._next(verdict)

    def _next(self, verdict: Verdict) -> Decision:
        failed = verdict.first_failure
        match verdict.status:
            case Status.PASS | Status.NO_DIFFERENCE | Status.SLOWER:
                return self._after_pass(verdict)
            case Status.NOT_RUN:
                gates = "; ".join(f"{g.name}: {g.reason}" for g in verdict.not_run if g.name != "bench")
                return _stop("unproven", f"no candidate can pass on this machine: {gates}")
            case Status.SUSPECT:
                return _stop("suspect", f"needs a person: {verdict.gate(failed or 'bench').reason}")
            case Status.INVALID_SPEC:
                return _stop("invalid_spec", verdict.gate(failed or "algebra").reason)
            case Status.INFRA_ERROR:
                return self._machine_failed(verdict)
            case (
                Status.COMPILE_ERROR
                | Status.RUNTIME_ERROR
                | Status.TIMEOUT
                | Status.CRASH
                | Status.WRONG_SHAPE
                | Status.WRONG_DTYPE
                | Status.WRONG_DEVICE_OR_STRIDE
                | Status.WRONG_VALUES
                | Status.NONFINITE
                | Status.NONDETERMINISTIC
                | Status.INPUT_MUTATED
                | Status.POLICY
                | Status.TAMPERED
            ):
                return Decision(action="repair", reason=f"{failed} says {verdict.status}")
            case _:
                assert_never(verdict.status)

    def _after_pass(self, verdict: Verdict) -> Decision:
        bench = verdict.gate("bench")
        if self.goal is None:
            return _stop("goal", "every required gate passed")
        if not bench.status.good:
            return _stop("unproven", f"it passes, and how fast it is could not be measured: {bench.reason}")
        reached = floor_fraction(verdict)
        if reached is None:
            return _stop("unproven", "it passes, and bench recorded no floor to compare with")
        if self.goal_met:
            return _stop("goal", f"{reached:.0%} of the floor's speed, {self.goal:.0%} was asked for")
        return Decision(
            action="optimise", reason=f"right, at {reached:.0%} of the floor's speed; the goal is {self.goal:.0%}"
        )

    def _machine_failed(self, verdict: Verdict) -> Decision:
        self._infrastructure += 1
        reason = verdict.gate(verdict.first_failure or "static").reason
        if self._infrastructure >= MAX_INFRASTRUCTURE:
            return _stop("infrastructure", reason)
        return Decision(action="judge_again", reason=f"the machine failed, not the candidate: {reason}")

    def _rank(self, call: int, verdict: Verdict) -> None:
        """Keep the better one: a pass before a failure, then the faster, then the one that got further; the earlier of equals."""
        got = Best(
            call=call,
            passed=verdict.passed,
            status=verdict.status,
            gates_passed=sum(verdict.gate(name).status.good for name in GATES),
            first_failure=verdict.first_failure,
            digest=verdict.program_digest,
            floor_fraction=floor_fraction(verdict),
        )
        if self.best is None or _rank_of(got) > _rank_of(self.best):
            self.best = got


def _rank_of(best: Best) -> tuple[bool, float, int]:
    return (best.passed, best.floor_fraction or 0.0, best.gates_passed)


def _stop(stop: str, reason: str) -> Decision:
    return Decision.model_validate({"action": "stop", "stop": stop, "reason": reason})
