"""The authoring loop with a scripted model and a judge that answers with real verdicts: rounds, feedback, budgets, and every way
to stop. `test_resume.py` has kills, and what a run leaves."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import authoring_support as support
import pytest

import authored_kernels
from agent.authoring.budget import Ledger, Limits, most_usd, parse_duration
from agent.errors import (
    JudgeUnavailable,
    LLMUnavailable,
    NotKept,
    PriceUnknown,
    SettingsInvalid,
    TaskRefused,
)
from agent.llm.prices import price_of
from agent.llm.protocol import Price, Reply
from agent.llm.scripted import ScriptedLLM, ScriptedReply
from agent.records import Status
from agent.runs import store
from agent.runs.events import Asked

pytestmark = pytest.mark.null

SUPPORT = pathlib.Path(__file__).with_name("authoring_support.py")


reply, source = support.reply, support.source
author, the_run, Billed, billed = support.author, support.the_run, support.Billed, support.billed


# rounds and feedback --------------------------------------------------------------------------------------------------


def test_a_pass_ends_the_run_and_is_kept(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")])
    s = done.summary
    assert (s.stop, s.exit_code, s.passed, s.goal_met, s.rounds, s.judged) == ("goal", 0, True, True, 1, 1)
    assert s.kept is not None
    kernel = authored_kernels.load(s.kept.id, tmp_path / "kept")
    assert kernel.program.digest == support.PROGRAMS["first"].digest
    assert done.kinds() == ["started", "asked", "replied", "judging", "judged", "decided", "kept", "stopped"]
    assert store.open_run(done.run.folder).summary == s
    assert {p.name for p in done.run.attempt_folder(1).iterdir()} == {"kernel.py", "program.json", "verdict.json"}


def test_a_failure_is_fed_back_and_repaired(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR"), reply("algebra WRONG_VALUES"), reply("PASS")])
    assert done.summary.passed
    assert done.summary.rounds == 3
    first, second = done.feedback
    assert "gate `trace` says COMPILE_ERROR" in first
    assert "mul: widths differ: got a and b\n  hint: unpair(v) halves a width" in first
    assert 'Line 8 of your file:\n\n```text\n    return {"z": acc}' in first
    assert "output 'z': the sign is flipped" in second


def test_the_author_sees_classes_and_neither_seeds_nor_sizes_nor_values(tmp_path: pathlib.Path) -> None:
    script = [reply("algebra WRONG_VALUES"), reply("numerics NONFINITE"), reply("static POLICY"), reply("PASS")]
    done = author(tmp_path, script)
    said = "\n".join(done.feedback)
    for hidden in (str(support.SEED), "37", "65", "0.125", "1.25"):
        assert hidden not in said
    assert "it broke at #×# with #" in said
    assert "no torch: use primitives" in said


def test_the_prefix_and_the_task_are_byte_identical_in_all_rounds_and_turns_only_grow(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("trace COMPILE_ERROR"), "sorry", reply("algebra WRONG_VALUES"), reply("PASS")])
    history = done.llm.history
    assert len({r.system for r in history}) == 1
    assert len({r.task for r in history}) == 1
    for earlier, later in itertools.pairwise(history):
        assert later.turns[: len(earlier.turns)] == earlier.turns
        assert len(later.turns) == len(earlier.turns) + 2
    assert [r.round for r in history] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty_reply"),
        ("I would multiply by r.", "no_code"),
        ("```python\nx = 1\n```", "no_kernel"),
        ("```python\ndef kernel(:\n```", "syntax_error"),
        (f"```python\n# {'x' * 70_000}\nkernel = 1\n```", "too_large"),
    ],
)
def test_each_unusable_reply_has_its_event_and_its_feedback_and_no_round_of_its_own(
    tmp_path: pathlib.Path, text: str, kind: str
) -> None:
    done = author(tmp_path, [text, reply("PASS")])
    (event,) = done.of("reply_unusable")
    assert event.problem == kind
    assert f"held no kernel ({kind})" in done.feedback[0]
    assert done.summary.rounds == 1
    assert done.summary.calls == 2
    assert done.summary.passed


def test_a_truncated_reply_is_told_to_be_shorter(tmp_path: pathlib.Path) -> None:
    cut = ScriptedReply(text=reply("PASS"), stop_reason="max_tokens").reply()
    done = author(tmp_path, [cut, reply("PASS")])
    assert done.of("reply_unusable")[0].problem == "truncated"
    assert "leave the explanation out" in done.feedback[0]
    assert len(done.judge.asked) == 1


def test_unusable_replies_are_bounded(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, ["sorry", "", "sorry", reply("PASS")])
    assert (done.summary.stop, done.summary.exit_code, done.summary.calls) == ("no_usable_reply", 3, 3)
    assert not done.judge.asked


def test_a_refusal_is_asked_again_once_plainly_and_without_history(tmp_path: pathlib.Path) -> None:
    declined = ScriptedReply(stop_reason="refusal", category="cyber").reply()
    done = author(tmp_path, [reply("trace COMPILE_ERROR"), declined, reply("PASS")])
    assert done.summary.passed
    assert done.of("reply_unusable")[0].category == "cyber"
    plain = done.llm.history[2]
    assert len(plain.turns) == 1
    assert "ordinary numerical code" in plain.turns[0].text
    assert plain.system == done.llm.history[0].system


def test_two_refusals_stop_the_run(tmp_path: pathlib.Path) -> None:
    declined = ScriptedReply(stop_reason="refusal").reply()
    done = author(tmp_path, [declined, declined, reply("PASS")])
    assert (done.summary.stop, done.summary.exit_code, done.summary.calls) == ("refused", 3, 2)


def test_an_identical_candidate_is_not_judged_again_and_is_told_so(tmp_path: pathlib.Path) -> None:
    wrong = reply("algebra WRONG_VALUES")
    done = author(tmp_path, [wrong, wrong, reply("PASS")])
    assert len(done.judge.asked) == 2
    assert done.of("repeated")[0].of == 1
    assert "same file and schedule as attempt 1, which was refused" in done.feedback[1]
    assert done.summary.passed


def test_another_schedule_makes_another_candidate(tmp_path: pathlib.Path) -> None:
    text = source("trace COMPILE_ERROR")
    script = [ScriptedReply(source=text, schedule={"tile_m": m}).reply() for m in (64, 128)]
    done = author(tmp_path, [*script, reply("PASS")])
    assert len(done.judge.asked) == 3
    assert json.loads((done.run.attempt_folder(2) / "schedule.json").read_text()) == {"tile_m": 128}


def test_repeating_oneself_stops_the_run(tmp_path: pathlib.Path) -> None:
    wrong = reply("algebra WRONG_VALUES")
    done = author(tmp_path, [wrong, wrong, wrong, reply("PASS")])
    assert (done.summary.stop, done.summary.exit_code) == ("stuck", 3)


# the goal -------------------------------------------------------------------------------------------------------------


def test_after_the_first_pass_optimise_rounds_show_the_gap_until_the_goal(tmp_path: pathlib.Path) -> None:
    script = [reply("PASS 0.5"), reply("algebra WRONG_VALUES"), reply("PASS 0.9", program="second")]
    done = author(tmp_path, script, goal=0.85)
    assert done.summary.stop == "goal"
    assert done.summary.best is not None
    assert (done.summary.best.call, done.summary.best.floor_fraction) == (3, pytest.approx(0.9))
    row = next(line for line in done.feedback[0].split("\n") if line.startswith("| M=4096 N=4096 K=4096 | 200.0 |"))
    assert row.endswith(" | 100.0 | 50 % | compile 150.0 µs | faster |")
    assert "The goal is 85 %" in done.feedback[0]
    assert str(support.SEED) not in done.feedback[0]
    assert done.summary.kept is not None
    bench = json.loads((pathlib.Path(done.summary.kept.path) / "bench" / "test-gpu.json").read_text())
    assert bench["shapes"][0]["record"]["kernel"] == "triton"


def test_an_unreached_goal_keeps_the_fastest_pass_and_exits_3(tmp_path: pathlib.Path) -> None:
    script = [reply("PASS 0.7", program="second"), reply("PASS 0.5"), reply("algebra WRONG_VALUES")]
    done = author(tmp_path, script, goal=0.95, limits=Limits(rounds=3))
    assert (done.summary.stop, done.summary.exit_code, done.summary.passed) == ("rounds", 3, True)
    assert done.summary.best is not None
    assert done.summary.best.call == 1
    assert done.summary.kept is not None


def test_no_optimise_rounds_where_bench_did_not_run(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS"), reply("PASS 0.9")], goal=0.9)
    assert (done.summary.stop, done.summary.exit_code, done.summary.calls) == ("unproven", 3, 1)
    assert "no GPU" in done.summary.reason
    assert done.summary.kept is not None


def test_without_a_goal_a_pass_is_enough_however_fast(tmp_path: pathlib.Path) -> None:
    assert author(tmp_path, [reply("PASS 0.2")]).summary.exit_code == 0


@pytest.mark.parametrize(
    ("word", "stop"), [("compile NOT_RUN", "unproven"), ("bench SUSPECT", "suspect"), ("numerics SUSPECT", "suspect")]
)
def test_what_no_author_can_mend_stops_the_run(tmp_path: pathlib.Path, word: str, stop: str) -> None:
    done = author(tmp_path, [reply(word), reply("PASS")])
    assert (done.summary.stop, done.summary.exit_code, done.summary.kept) == (stop, 3, None)


@pytest.mark.parametrize("status", [s for s in Status if s.refuses])
def test_every_refusal_has_a_next_step(tmp_path: pathlib.Path, status: Status) -> None:
    stops = {Status.SUSPECT: "suspect", Status.INVALID_SPEC: TaskRefused, Status.INFRA_ERROR: JudgeUnavailable}
    script = [reply(f"algebra {status}"), reply("PASS")]
    expected = stops.get(status, "goal")
    if isinstance(expected, str):
        assert author(tmp_path, script).summary.stop == expected
        return
    with pytest.raises(expected):
        author(tmp_path, script)
    summary = store.open_run(the_run(tmp_path)).summary
    assert summary is not None
    assert summary.error is not None
    assert summary.error["code"] == expected.code


def test_a_failure_of_the_machine_is_judged_again_and_not_held_against_the_candidate(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")], judge=support.FakeJudge(flaky=1))
    assert done.summary.passed
    assert done.summary.rounds == 1
    assert [e.status for e in done.of("judged")] == [Status.INFRA_ERROR, Status.PASS]


# budgets --------------------------------------------------------------------------------------------------------------


def test_rounds(tmp_path: pathlib.Path) -> None:
    script = [reply("trace COMPILE_ERROR", note=str(i)) for i in range(5)]
    done = author(tmp_path, script, limits=Limits(rounds=2))
    assert (done.summary.stop, done.summary.rounds, len(done.llm.history)) == ("rounds", 2, 2)
    assert done.summary.best is not None
    assert done.summary.best.gates_passed == 1


def test_tokens_are_reserved_before_the_call(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")], limits=Limits(max_tokens_total=100), max_tokens=1000)
    assert (done.summary.stop, done.llm.history) == ("tokens", [])


def test_cost_is_reserved_before_the_call_and_counted_after_it(tmp_path: pathlib.Path) -> None:
    llm = Billed([billed("trace COMPILE_ERROR", tokens=50_000), billed("PASS")])
    price = Price(input=4, output=20)
    estimate = 2 * price.input * 1e-6 * 30_000 + price.output * 1e-6 * 2000
    done = author(tmp_path, [], llm=llm, model="claude-opus-5-5", limits=Limits(max_cost=1.3), max_tokens=2000)
    assert done.summary.stop == "cost"
    assert len(llm.history) == 1
    assert done.summary.cost_usd == pytest.approx((4 * 50_000 + 20 * 50_000) / 1e6)
    asked = done.of("asked")[0]
    assert isinstance(asked, Asked)
    assert asked.reserved_usd is not None
    assert 0.04 < asked.reserved_usd < 2 * estimate
    assert "more than $1.30" in done.summary.reason


def test_a_request_is_estimated_once_and_only_before_it_is_asked(tmp_path: pathlib.Path) -> None:
    """With some providers an estimate is a call over the network."""

    class Counting(Billed):
        estimated: tuple[int, ...] = ()

        def estimate(self, request: Any) -> int:
            self.estimated += (request.round,)
            return super().estimate(request)

    limits, model = Limits(max_cost=10, max_tokens_total=1_000_000), "claude-opus-5-5"
    llm = Counting([billed("trace COMPILE_ERROR"), billed("PASS")])
    done = author(tmp_path, [], llm=llm, model=model, limits=limits)
    assert llm.estimated == (1, 2)
    assert [e.call for e in done.of("asked")] == [1, 2]
    again = Counting([])
    author(tmp_path, [], llm=again, model=model, limits=limits, run=store.resume(done.run.folder))
    assert again.estimated == ()  # both replies are on disk


def test_what_a_call_may_cost_is_the_same_wherever_it_is_said() -> None:
    """The dearest rate of its input, a cache write for an hour, and the longest reply."""
    price = price_of("claude-opus-5-5")
    assert price is not None
    assert price.write_1h > price.write_5m > 1
    wanted = (1000 * price.input * price.write_1h + 500 * price.output) / 1e6
    assert most_usd("claude-opus-5-5", 1000, 500) == pytest.approx(wanted)
    assert Ledger("anthropic", "claude-opus-5-5").reservation(1000, 500) == pytest.approx(wanted)
    assert Ledger("replay", "claude-opus-5-5").reservation(1000, 500) == 0
    assert most_usd("claude-unheard-of", 1000, 500) is None


def test_a_cost_limit_with_an_unknown_price_is_refused_before_anything_is_sent(tmp_path: pathlib.Path) -> None:
    llm = Billed([billed("PASS")])
    with pytest.raises(PriceUnknown):
        author(tmp_path, [], llm=llm, model="claude-unheard-of", limits=Limits(max_cost=1.0))
    assert not llm.history


def test_an_unknown_price_without_a_limit_is_a_warning_and_an_unknown_cost(tmp_path: pathlib.Path) -> None:
    answer = billed("PASS").model_copy(update={"model": "claude-unheard-of"})
    done = author(tmp_path, [], llm=Billed([answer]), model="claude-unheard-of")
    assert done.summary.cost_usd is None
    assert "price" in done.summary.warnings[0]


def test_free_providers_need_no_reservation(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")], limits=Limits(max_cost=1e-9))
    assert done.summary.passed
    assert done.summary.cost_usd == 0.0


def test_time(tmp_path: pathlib.Path) -> None:
    done = author(tmp_path, [reply("PASS")], limits=Limits(time_s=1e-9))
    assert (done.summary.stop, done.llm.history) == ("time", [])


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1h30m", 5400), ("0.5h", 1800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "0s", "-3m"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        parse_duration(text)


# keeping --------------------------------------------------------------------------------------------------------------


def test_a_damaged_folder_beside_it_does_not_hinder_keeping(tmp_path: pathlib.Path) -> None:
    bad = tmp_path / "kept" / "another_task" / "bad"
    bad.mkdir(parents=True)
    (bad / "program.json").write_text("{}")  # and no provenance
    done = author(tmp_path, [reply("PASS")])
    assert done.summary.kept is not None
    assert authored_kernels.load(done.summary.kept.id, tmp_path / "kept").outputs == ("z",)


def test_a_pass_that_cannot_be_kept_leaves_a_summary_and_is_kept_on_resume(tmp_path: pathlib.Path) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    with pytest.raises(NotKept, match="passed and could not be kept"):
        author(tmp_path, [reply("PASS")])
    run = store.open_run(the_run(tmp_path))
    assert run.summary is not None
    assert (run.summary.passed, run.summary.kept, run.summary.stop) == (True, None, "goal")
    assert (run.summary.error or {})["code"] == "not-kept"
    assert run.events[-1].kind == "stopped"
    (tmp_path / "kept").unlink()
    again = author(tmp_path, [], run=store.resume(run.folder))
    assert again.summary.kept is not None
    assert (again.summary.error, again.llm.history, again.judge.asked) == (None, [], [])


# ends -----------------------------------------------------------------------------------------------------------------


def test_an_interrupted_call_leaves_a_summary_and_the_run_goes_on(tmp_path: pathlib.Path) -> None:
    class Interrupted(ScriptedLLM):
        def complete(self, request: Any, on_text: Any = None) -> Reply:
            if request.round == 2:
                raise KeyboardInterrupt
            return super().complete(request, on_text)

    script: list[Any] = [reply("algebra WRONG_VALUES"), reply("PASS")]
    done = author(tmp_path, [], llm=Interrupted(script))
    assert (done.summary.stop, done.summary.exit_code, done.summary.calls) == ("interrupted", 130, 1)
    again = author(tmp_path, script[1:], run=store.resume(done.run.folder))
    assert again.summary.passed
    assert [r.round for r in again.llm.history] == [2]
    assert len(again.judge.asked) == 1


def test_an_interrupted_judge_leaves_its_candidate_to_be_judged_on_resume(tmp_path: pathlib.Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    done = author(tmp_path, [reply("PASS")], judge=interrupted)
    assert done.summary.exit_code == 130
    again = author(tmp_path, [], run=store.resume(done.run.folder))
    assert again.summary.passed
    assert not again.llm.history
    assert len(again.judge.asked) == 1


def test_a_failed_call_ends_orderly_and_its_tokens_count(tmp_path: pathlib.Path) -> None:
    failure = LLMUnavailable("overloaded", hint="later", spent={"input_tokens": 10, "output_tokens": 5})
    with pytest.raises(LLMUnavailable):
        author(tmp_path, [reply("PASS 0.5"), failure], goal=0.9)
    summary = store.open_run(the_run(tmp_path)).summary
    assert summary is not None
    assert (summary.stop, summary.passed, summary.usage.total) == ("llm_error", True, 15)
    assert summary.kept is not None
    assert summary.error == {"code": "llm-unavailable", "message": "overloaded", "hint": "later"}
    again = author(tmp_path, [reply("PASS 0.95", program="second")], run=store.resume(the_run(tmp_path)), goal=0.9)
    assert again.summary.exit_code == 0
    assert again.summary.usage.total == 15


def test_a_bug_ends_orderly_and_is_raised(tmp_path: pathlib.Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        author(tmp_path, [reply("PASS")], judge=broken)
    summary = store.open_run(the_run(tmp_path)).summary
    assert summary is not None
    assert summary.error is not None
    assert summary.error["code"] == "bug"


def test_a_verdict_about_something_else_is_never_taken(tmp_path: pathlib.Path) -> None:
    def confused(text: str, task: Any, *, schedule: Any) -> Any:
        return support.verdict_of(source("PASS", note="another file"))

    with pytest.raises(ValueError, match="another source"):
        author(tmp_path, [reply("PASS", note="this file")], judge=confused)
