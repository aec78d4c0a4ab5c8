"""What an author hears: classes, and never what would let a wrong kernel fit the test."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from agent.records import GATES, Environment, GateRecord, Status, Verdict, overall
from agent.verify.feedback import MAX_CHARS, digest, told

pytestmark = pytest.mark.null


def verdict(*gates: GateRecord) -> Verdict:
    failed = next((g.name for g in gates if g.status.refuses), None)
    rest = [GateRecord.not_run(g, f"{failed} failed" if failed else "no GPU") for g in GATES[len(gates) :]]  # type: ignore[arg-type]
    every = (*gates, *rest)
    return Verdict(
        task="t", task_digest="d", source_sha256="s", program_digest="p", program_json="{}", kind="epilogue", gates=every,
        status=overall(every), first_failure=failed, seeds={"algebra": 123456789}, environment=Environment.here(),
        created=datetime.datetime.now(datetime.UTC),
    )  # fmt: skip


def passed(name: Any) -> GateRecord:
    return GateRecord(name=name, status=Status.PASS, evidence={"x": 1})


def failure(output: str, pattern: str, text: str = "", **more: Any) -> dict[str, Any]:
    known = {
        "status": "WRONG_VALUES",
        "magnitude": "about 1e-2",
        "fraction": 0.5,
        "where": "smoke",
        "distribution": "normal",
    }
    return {"output": output, "pattern": pattern, "text": text or pattern, **known, **more}


def algebra(*failures: dict[str, Any], reason: str = "output 'y' differs") -> GateRecord:
    return GateRecord(name="algebra", status=Status.WRONG_VALUES, reason=reason, evidence={"failures": list(failures)})


def test_one_line_per_output_with_the_commonest_named_pattern() -> None:
    found = digest(
        verdict(
            passed("static"),
            passed("trace"),
            algebra(
                failure("dz", "values"),
                failure("dz", "sign", "the sign is flipped"),
                failure("dz", "sign", "the sign is flipped"),
                failure("h", "factor 2"),
            ),
        )
    )
    assert found.gate == "algebra"
    assert found.passed == ("static", "trace")
    assert found.findings == (
        "output 'dz': the sign is flipped, error about 1e-2 of its size",
        "output 'h': factor 2, error about 1e-2 of its size",
    )
    assert found.text.startswith("WRONG_VALUES at gate algebra (passed: static, trace).")


def test_kinds_of_inputs_are_told_and_sizes_are_not() -> None:
    large = [failure("y", "values", distribution="large"), failure("y", "values", distribution="heavy")]
    assert told(large) == ["output 'y': values, error about 1e-2 of its size (with heavy-tailed values, large values)"]
    ragged = [failure("y", "values", where="ragged"), failure("y", "values", where="near")]
    assert told(ragged)[0].endswith("(with sizes that do not fill whole tiles)")
    assert told([failure("y", "values", where="tiny")])[0].endswith("(with tiny sizes)")
    assert told([failure("y", "values", dtype="float16")])[0].endswith("(with in float16)")


def test_a_librarys_message_loses_its_sizes() -> None:
    record = GateRecord(
        name="algebra", status=Status.RUNTIME_ERROR, evidence={"failures": []},
        reason="the kernel does not run at near sizes: got 33 columns, a (37, 129) is no 64x32 and N = 131",
    )  # fmt: skip
    (line,) = digest(verdict(passed("static"), passed("trace"), record)).findings
    assert line == "the kernel does not run at near sizes: got # columns, a (#, #) is no # and N = #"


@pytest.mark.parametrize(
    ("said", "told_"),
    [
        ("64x32, 64 × 32", "#, #"),
        ("got -0.4967e-3 at row 17 of sm_90 in float32", "got -# at row # of sm_90 in float32"),
        ("index 129 is out of bounds", "index # is out of bounds"),
        ("M=37", "M=#"),
    ],
)
def test_no_number_of_a_librarys_message_is_told(said: str, told_: str) -> None:
    """As strict as what prompts are made with."""
    from agent.prompting.outcome import mask
    from agent.verify.feedback import _without_numbers

    assert _without_numbers(said) == told_
    assert mask(_without_numbers(said)) == told_


def test_where_a_mistake_has_no_name_it_is_told_what_is_right() -> None:
    lines = told(
        [failure("dz", "values", "wrong values", right=["h", "zdz"]), failure("zdz", "zeros", right=["h", "dz"])]
    )
    assert lines[-1] == "right so far: 'h'; check the formula of 'dz' and of 'zdz' term by term"
    assert told([failure("y", "values", right=[])])[-1] == "no output is right; check the formula of 'y' term by term"
    assert len(told([failure("y", "sign", right=["z"])])) == 1


def test_what_is_wrong_in_long_shapes_only_is_told_without_a_length() -> None:
    (line,) = told([failure("y", "trailing columns", where="long")])
    assert line.endswith("(with many rows or columns only: no position and no size may be special)")


def test_no_seed_and_no_log_is_told() -> None:
    record = GateRecord(
        name="numerics", status=Status.CRASH, reason="the process was ended by SIGSEGV [SIGSEGV]",
        evidence={"log_tail": "secret path /home", "error": {"code": "SIGSEGV", "message": "m"}},
    )  # fmt: skip
    text = digest(verdict(*(passed(g) for g in GATES[:4]), record)).text
    assert "SIGSEGV" in text
    assert "secret" not in text
    assert "123456789" not in text


def test_numerics_names_the_backend() -> None:
    said = {
        "status": "WRONG_VALUES",
        "reason": "r",
        "failures": [failure("y", "last partial tile of rows", dtype="bfloat16")],
    }
    record = GateRecord(
        name="numerics", status=Status.WRONG_VALUES, reason="r", evidence={"backends": {"triton": said}}
    )
    (line,) = digest(verdict(*(passed(g) for g in GATES[:4]), record)).findings
    assert line.startswith("triton: output 'y': last partial tile of rows")


def test_static_lists_every_finding_and_compile_every_backend() -> None:
    findings: Any = [{"line": i, "message": f"m{i}", "rule": "S101"} for i in range(3)]
    record = GateRecord(name="static", status=Status.POLICY, reason="r", evidence={"findings": findings})
    empty = verdict(record).model_copy(update={"program_json": None, "program_digest": None})
    assert digest(empty).findings == ("line 0: m0 [S101]", "line 1: m1 [S101]", "line 2: m2 [S101]")
    backends: Any = {
        "triton": {"status": "COMPILE_ERROR", "reason": "no registers"},
        "other": {"status": "NOT_RUN", "reason": "absent"},
    }
    compiled = GateRecord(name="compile", status=Status.COMPILE_ERROR, reason="r", evidence={"backends": backends})
    assert digest(verdict(*(passed(g) for g in GATES[:3]), compiled)).findings == (
        "triton: COMPILE_ERROR: no registers",
    )


def test_interface_messages_are_told_in_full() -> None:
    wrong: Any = [{"name": "y", "status": "WRONG_SHAPE", "message": "return it"}]
    record = GateRecord(name="trace", status=Status.WRONG_SHAPE, reason="r", evidence={"interface": wrong})
    assert digest(verdict(passed("static"), record)).findings == ("return it",)


def test_after_a_pass_the_times_and_what_did_not_run_are_told() -> None:
    record = {
        "kernel": "triton", "dims": {"M": 4096, "N": 64}, "measured": [{"name": "triton", "median": 1.5e-4}],
        "floor": {"seconds": 1e-4, "bound": "compute"},
        "compared": [{"peer": "compile", "ratio": 0.9, "word": "faster"}, {"peer": "eager", "ratio": 1.0, "word": "no difference"}],
    }  # fmt: skip
    shapes: Any = [{"dims": {}, "status": "PASS", "record": record}]
    bench = GateRecord(name="bench", status=Status.PASS, evidence={"shapes": shapes})
    found = digest(verdict(*(passed(g) for g in GATES[:5]), bench))
    assert found.gate is None
    assert found.findings == (
        "M=4096 N=64: 150.0 µs, floor 100.0 µs (compute); faster than compile (0.900×), as fast as eager (1.000×)",
    )
    assert digest(verdict(*(passed(g) for g in GATES[:5]))).findings == ("bench did not run: no GPU",)


def test_long_texts_are_cut() -> None:
    record = GateRecord(name="trace", status=Status.RUNTIME_ERROR, reason="x" * 5000, evidence={"error": {}})
    assert len(digest(verdict(passed("static"), record)).findings[0]) == MAX_CHARS
