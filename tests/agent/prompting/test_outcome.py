"""What an author is told, made from verdicts of the real judge: the evidence it leaves is the evidence that is read."""

from __future__ import annotations

import json
import re

import pytest

import examples_curated
from agent import task
from agent.prompting.outcome import floor_fraction, mask, passed, refused
from agent.prompting.prompt import feedback_text
from agent.records import GateRecord, Status, Verdict
from agent.verify.judge import Options, judge

pytestmark = pytest.mark.interp

TASK = task.load("rms_scale")
RIGHT = examples_curated.source("rms_scale")
CHEAP = Options(gates=("static", "trace", "algebra"), device=False)


def told(source: str, schedule: dict[str, object] | None = None) -> tuple[Verdict, str]:
    """The verdict on a source and the turn that its author reads."""
    options = CHEAP if schedule is None else CHEAP.model_copy(update={"schedule": schedule})
    verdict = judge(source, TASK, options=options)
    return verdict, feedback_text(refused(1, verdict), source)


@pytest.fixture(scope="module")
def right() -> Verdict:
    return judge(RIGHT, TASK, options=CHEAP)


def test_static_findings_in_full_with_the_line() -> None:
    verdict, text = told(RIGHT.replace("import coda\n", "import coda\nimport os\n", 1))
    assert verdict.first_failure == "static"
    assert "imports only coda" in text
    assert "[S101]" in text
    assert "```text\nimport os\n```" in text


def test_a_trace_error_in_full_with_hint_and_the_authors_line() -> None:
    verdict, text = told(RIGHT.replace("acc * rstd", "acc * (rstd if rstd > 0 else 1.0)"))
    assert verdict.first_failure == "trace"
    assert "control-flow: " in text
    assert "hint: write where(condition, a, b)" in text
    assert 'return {"z": acc * (rstd if rstd > 0 else 1.0)}' in text


def test_what_differs_from_the_tables() -> None:
    verdict, text = told(RIGHT.replace('"z"', '"zz"'))
    assert verdict.status is Status.WRONG_SHAPE
    assert "output 'z' is missing" in text


def test_a_schedule_that_no_kernel_can_have() -> None:
    verdict, text = told(RIGHT, {"tile_q": 3})
    assert verdict.first_failure == "trace"
    assert "the schedule is not valid" in text
    assert "tile_q" in text


def test_wrong_values_as_a_class_without_seeds_sizes_or_values() -> None:
    verdict, text = told(RIGHT.replace("acc * rstd", "-acc * rstd"))
    assert verdict.first_failure == "algebra"
    assert "output 'z': the sign is flipped" in text
    assert not any(str(seed) in text for seed in verdict.seeds.values())
    assert not re.search(r"\d{3,}|\d+ ?[×x] ?\d+|\b0\.\d{3}", text)


def test_numbers_of_a_numerical_gate_are_masked_and_names_are_not() -> None:
    assert mask("at 37×65 in float16, got 1.5e-3, N = 7") == "at #×# in float16, got #, N = #"


def test_no_speed_where_bench_did_not_run(right: Verdict) -> None:
    assert floor_fraction(right) is None
    assert passed(1, right, None).timings == ()


def test_free_text_of_algebra_without_a_failing_output_is_masked(right: Verdict) -> None:
    record = GateRecord(
        name="algebra", status=Status.RUNTIME_ERROR, reason="does not run: N = 4711", evidence={"failures": []}
    )
    data = json.loads(right.to_json())
    data["gates"][2] = json.loads(record.model_dump_json())
    data |= {"status": "RUNTIME_ERROR", "first_failure": "algebra"}
    text = feedback_text(refused(1, Verdict.model_validate(data)))
    assert "does not run: N = #" in text
    assert "4711" not in text
