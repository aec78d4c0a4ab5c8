"""`compare`: numbers only from records, ratios only within a run, equal digests as one program, and the rest said plainly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import kept_support as support
import pytest

from agent.errors import UnknownSubject
from agent.keeping import compare as comparing
from agent.keeping import measured
from agent.keeping.compare import Subject, compare, gather, of_kept, regression
from agent.keeping.measured import Measurements
from agent.keeping.shelves import read

pytestmark = pytest.mark.null


DIGEST = support.program().digest
LATER = "2026-11-30T00:00:00Z"


def subject(name: str, digest: str, *records: dict[str, Any], author: str = "llm") -> Subject:
    found = [r for r in measured.records(list(records)) if not isinstance(r, str)]
    return Subject(name, "rms_scale", author, "somebody", digest, Measurements(tuple(found)))  # type: ignore[arg-type]


def gathered(folder: Path, *texts: str) -> tuple[Subject, ...]:
    return gather(texts, folders=[folder], runs=folder / "runs")


# subjects -------------------------------------------------------------------------------------------------------------


def test_a_task_stands_for_its_example_and_every_kept_kernel(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    found = gathered(tmp_path, "rms scale")
    assert [(s.id, s.author, s.who) for s in found] == [
        ("examples_curated/rms_scale", "project", "curated here"),
        ("rms_scale/demo", "llm", "model-x"),
    ]


def test_a_lone_kernel_brings_the_example_of_its_task(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    assert [s.id for s in gathered(tmp_path, "rms_scale/demo")] == ["rms_scale/demo", "examples_curated/rms_scale"]
    assert [s.id for s in gathered(tmp_path, "rms_scale/demo", "mx_quantize")] == [
        "rms_scale/demo",
        "examples_curated/mx_quantize",
    ]


def test_a_persons_kernel_is_called_human(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    provenance = json.loads((kept.folder / "provenance.json").read_text())
    (kept.folder / "provenance.json").write_text(json.dumps({**provenance, "author": "human"}))
    assert of_kept(read(kept.folder)).author == "human"


def test_unknown_names_get_near_ones(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    with pytest.raises(UnknownSubject) as error:
        gathered(tmp_path, "rms_scale/dem")
    assert "rms_scale/demo" in error.value.near
    assert "list tasks|examples|kernels|runs" in error.value.hint


# what is said ---------------------------------------------------------------------------------------------------------


def test_equal_digests_are_the_same_program(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    found = compare(gathered(tmp_path, "rms_scale"))
    assert found.same == (("examples_curated/rms_scale", "rms_scale/demo"),)


def test_nothing_measured_is_said_and_no_number_is_shown(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    alone = [s for s in gathered(tmp_path, "rms_scale/demo") if s.id == "rms_scale/demo"]  # its example may be measured
    found = compare(alone)
    assert (found.rows, found.verdicts) == ((), ())
    assert "rms_scale/demo: no GPU benchmark of this kernel is recorded" in found.not_measured
    assert any("human-written" in line for line in found.not_measured)


def test_a_row_has_the_numbers_of_its_record() -> None:
    record = support.bench_record(
        DIGEST, peers={"compile": 125.0, "quack": 80.0, "cublas": 90.0}, absent={"liger": "not installed"}
    )
    found = compare([subject("k", DIGEST, record)])
    (row,) = found.rows
    assert (row.gpu, row.shape, row.dtype, row.us) == (
        "Test GPU",
        "M=4096 N=4096 K=4096",
        "bfloat16",
        "100 (99.0 to 101)",
    )
    assert (row.tflops, row.cublas, row.compiled, row.best_peer, row.floor, row.verdict) == (
        "1374", "90%", "×0.800", "quack ×1.250", "80%", "slower",
    )  # fmt: skip
    assert "k is slower than quack, the best measured peer (×1.250 of its time)" in found.verdicts[0]
    assert "M=4096 N=4096 K=4096: liger (not installed)" in found.not_measured
    assert (
        "a human-written kernel of the same interface: those measured are the packages' own, as peers"
        in found.not_measured
    )
    assert {p["variant"] for p in found.peers} >= {"quack (human)", "compile (tool)"}


def test_what_was_not_measured_is_one_line_per_size() -> None:
    absent = {"eager": "not asked for", "max-autotune": "not asked for", "liger": "not installed: pip install x"}
    no_kernel = "not applicable: quack-kernels has no kernel for the mathematics of rms_scale"
    small = {"dims": {"M": 512, "N": 4096, "K": 4096}}
    one = subject(
        "one",
        "1" * 64,
        support.bench_record("1" * 64, absent={**absent, "quack": no_kernel}),
        {**support.bench_record("1" * 64, absent=absent), **small},
    )
    two = subject("two", "2" * 64, support.bench_record("2" * 64, absent={**absent, "cutedsl": "crashed\n  hint: x"}))
    found = compare([one, two])
    assert found.not_measured[:2] == (
        (
            "M=4096 N=4096 K=4096: cutedsl beside two (crashed); liger (not installed: pip install x); "
            "eager, max-autotune (not asked for); quack beside one (no kernel for this task)"
        ),
        (
            "M=512 N=4096 K=4096: two (not measured here); liger (not installed: pip install x); "
            "eager, max-autotune (not asked for)"
        ),
    )
    parts = found.to_dict()["gaps"]
    assert {"where", "what", "why", "beside", "task"} == set(parts[0])
    assert no_kernel in {part["why"] for part in parts}
    other = subject(
        "two", "1" * 64, support.bench_record("1" * 64)
    )  # the same program: a record of either is one of both
    assert not any("not measured here" in line for line in compare([one, other]).not_measured)


def test_a_second_gpu_and_a_second_dtype_are_named() -> None:
    first = support.bench_record("1" * 64, absent={"liger": "not installed"})
    second = {**first, "environment": {"gpu": "Other GPU"}}
    (line,) = [x for x in compare([subject("k", "1" * 64, first, second)]).not_measured if "Other GPU" in x]
    assert line == "M=4096 N=4096 K=4096, Other GPU: liger (not installed)"
    third = {**first, "dtype": "float16"}
    assert any("K=4096, float16: " in x for x in compare([subject("k", "1" * 64, first, third)]).not_measured)


def test_two_runs_are_compared_through_a_common_peer_only() -> None:
    """The second GPU ran at half the clock: absolute times would give the wrong winner."""
    fast_clock = subject("one", "1" * 64, support.bench_record("1" * 64, us=100.0, peers={"compile": 110.0}))
    slow_clock = subject("two", "2" * 64, support.bench_record("2" * 64, us=180.0, peers={"compile": 220.0}))
    found = compare([fast_clock, slow_clock])
    assert any(
        "one is slower than two (×1.111 of its time, 1.086 to 1.137, through compile of either run)" in v
        for v in found.verdicts
    )
    lonely = subject("three", "3" * 64, support.bench_record("3" * 64, us=10.0, peers={"quack": 20.0}))
    assert not any("one is" in v and "three" in v for v in compare([fast_clock, lonely]).verdicts)


def spread(record: dict[str, Any], *, interval: float, floor: float) -> dict[str, Any]:
    """The same record with ratios known to ± `interval` and that noise floor."""
    compared = [{**c, "low": c["ratio"] - interval, "high": c["ratio"] + interval} for c in record["compared"]]
    return {**record, "compared": compared, "noise_floor": floor}


@pytest.mark.parametrize(
    ("us", "interval", "floors", "word"),
    [
        (101.0, 0.001, (0.002, 0.002), "slower than"),  # 1 % is a difference where the runs are that steady
        (99.0, 0.001, (0.002, 0.002), "faster than"),
        (101.0, 0.001, (0.002, 0.015), "not to be told from"),  # and none where one of them is not
        (101.0, 0.001, (0.015, 0.002), "not to be told from"),
        (105.0, 0.03, (0.002, 0.002), "not to be told from"),  # nor where the ratios are not known that well
        (105.0, 0.001, (0.02, 0.02), "slower than"),
    ],
)
def test_a_difference_is_one_beyond_noise_and_intervals_of_both_runs(
    us: float, interval: float, floors: tuple[float, float], word: str
) -> None:
    one, two = (
        subject(
            name,
            name[0] * 64,
            spread(
                support.bench_record(name[0] * 64, us=time, peers={"compile": 100.0}), interval=interval, floor=floor
            ),
        )
        for name, time, floor in (("a", us, floors[0]), ("b", 100.0, floors[1]))
    )
    (line,) = [v for v in compare([one, two]).verdicts if "of either run" in v]
    assert f"a is {word} b (×{us / 100:.3f} of its time" in line


def test_a_ceiling_ties_two_runs_by_its_median_and_interval() -> None:
    one, two = (
        subject(n, n * 64, support.bench_record(n * 64, us=us, peers={"cublas": 90.0}))
        for n, us in (("1", 100.0), ("2", 101.0))
    )
    (pair,) = comparing.shared(one, two)  # every median of the records is known to ±1 %
    found = pair.found
    assert (found.peer, found.word) == ("cublas", "no difference")
    assert found.ratio == pytest.approx(100 / 101)
    assert (found.low, found.high) == pytest.approx((found.ratio * 0.99**2 / 1.01**2, found.ratio * 1.01**2 / 0.99**2))


def test_a_suspicious_time_wins_nothing() -> None:
    doubtful = subject("one", "1" * 64, support.bench_record("1" * 64, us=1.0, suspicion="below the floor"))
    other = subject("two", "2" * 64, support.bench_record("2" * 64))
    found = compare([doubtful, other])
    assert found.rows[0].verdict == "SUSPECT: below the floor"
    assert not any(v.count("one is") for v in found.verdicts)


def test_a_damaged_record_is_set_aside_and_hides_no_other(tmp_path: Path) -> None:
    """As committed by somebody who edited the file: the reason is shown, and everything else as ever."""
    good = support.bench_record("1" * 64)
    damaged = [
        {**good, "verified": "no"},
        {**good, "environment": "x"},
        {**good, "dims": {"M": "a"}},
        {**good, "absent": ["a"]},
        {**good, "measured": [{**good["measured"][0], "median": math.nan}, *good["measured"][1:]]},
    ]
    path = tmp_path / "bank.json"
    path.write_text(json.dumps({"records": [*damaged, good]}))
    found = measured.of_example("1" * 64, tmp_path)
    assert len(found.records) == 1
    assert len(found.set_aside) == len(damaged)
    assert all(s.startswith("bank.json: a record that cannot be used: ") for s in found.set_aside)
    shown = compare([subject("one", "1" * 64, good), Subject("two", "rms_scale", "llm", "m", "1" * 64, found)])
    json.dumps(shown.to_dict(), allow_nan=False)


def test_records_that_do_not_count_are_set_aside(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    support.add_bench(kept, support.bench_record("f" * 64), {"format": "coda.bench/1", "task": "x"})
    found = compare([of_kept(read(kept.folder))])
    assert found.rows == ()
    assert any("a record of another program, ffffffffffff" in line for line in found.not_measured)
    assert any("a record that cannot be used" in line for line in found.not_measured)


def test_a_record_counts_once_wherever_it_lies(tmp_path: Path) -> None:
    record = support.bench_record(DIGEST)
    kept = support.keep_one(tmp_path, bench=[record])  # verdict.json and bench/<gpu>.json
    assert len(compare([of_kept(kept)]).rows) == 1


def test_records_of_the_curated_bank_are_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "h200.json").write_text(
        json.dumps([support.bench_record(DIGEST), support.bench_record("f" * 64)])
    )
    (tmp_path / "broken.json").write_text("{")
    found = measured.of_example(DIGEST, tmp_path)
    assert [r.program_digest for r in found.records] == [DIGEST]
    assert len(found.set_aside) == 1


def test_a_program_that_cannot_be_read_is_trouble_not_a_crash(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    (kept.folder / "program.json").write_text("{}")
    (only,) = [s for s in gathered(tmp_path, "rms_scale/demo") if s.author == "llm"]
    assert (only.digest, only.found.records) == ("", ())
    assert any("not a program" in line for line in compare([only]).not_measured)


@pytest.mark.parametrize("name", ["provenance.json", "bench/test-gpu.json"])
def test_one_damaged_kernel_is_trouble_and_the_others_are_compared(tmp_path: Path, name: str) -> None:
    support.add_bench(support.keep_one(tmp_path, "bad"))
    support.keep_one(tmp_path, "good", example="mx_quantize")
    (tmp_path / "rms_scale" / "bad" / name).write_text("{")
    found = {s.id: s for s in gathered(tmp_path, "rms_scale")}
    assert set(found) == {"examples_curated/rms_scale", "rms_scale/bad", "rms_scale/good"}
    assert "is not JSON" in found["rms_scale/bad"].trouble
    assert found["rms_scale/good"].digest
    assert any(line.startswith("rms_scale/bad:") for line in compare(list(found.values())).not_measured)


def test_deep_json_is_bounded() -> None:
    value: Any = support.bench_record(DIGEST)
    for _ in range(50):
        value = {"x": [value]}
    assert list(measured.records(value)) == []


def test_a_fresh_record_takes_the_place_of_the_verdicts_and_that_is_said(tmp_path: Path) -> None:
    """Even with fewer peers beside it, and wherever either lies."""
    kept = support.keep_one(tmp_path, bench=[support.bench_record(DIGEST, us=100.0)])
    support.add_bench(kept, {**support.bench_record(DIGEST, us=80.0, peers={"compile": 120.0}), "measured_at": LATER})
    found = compare([of_kept(read(kept.folder))])
    assert [row.us for row in found.rows] == ["80.0 (79.2 to 80.8)"]
    assert "rms_scale/demo: 1 older record(s) of the same settings are not shown" in found.not_measured
    assert not any("×0.833" in line for line in found.verdicts)


def test_another_protocol_is_a_row_of_its_own_and_is_compared_with_nothing() -> None:
    usual = support.bench_record(DIGEST, us=100.0)
    paper = {**support.bench_record(DIGEST, us=50.0), "protocol": {"name": "paper", "rounds": 30}, "measured_at": LATER}
    mine = subject("one", DIGEST, usual, paper)
    other = subject("two", "2" * 64, support.bench_record("2" * 64, us=100.0))
    assert [row.verdict for row in compare([mine]).rows] == ["faster", "faster, protocol paper"]
    (pair,) = comparing.shared(mine, other)
    assert pair.found.ratio == pytest.approx(1.0)
    assert list(comparing.shared(subject("three", DIGEST, paper), other)) == []


def test_an_example_is_known_by_the_id_that_tables_give_it(tmp_path: Path) -> None:
    support.keep_one(tmp_path)
    assert [s.id for s in gathered(tmp_path, "examples_curated/rms_scale")] == ["examples_curated/rms_scale"]


# threshold ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("us", "percent", "slower"), [(100.0, 3.0, 0), (103.0, 5.0, 0), (110.0, 5.0, 1)])
def test_a_regression_is_slower_by_more_than_the_threshold(us: float, percent: float, slower: int) -> None:
    mine = subject("one", "1" * 64, support.bench_record("1" * 64, us=us))
    other = subject("two", "2" * 64, support.bench_record("2" * 64, us=100.0))
    found, compared = regression([mine, other], percent)
    assert (len(found), compared) == (slower, True)


def test_without_a_common_setting_nothing_was_compared() -> None:
    assert regression([subject("one", "1" * 64), subject("two", "2" * 64)], 3.0) == ([], False)
    assert regression([subject("one", DIGEST), subject("two", DIGEST)], 3.0) == ([], True)  # the same program


def test_three_digits() -> None:
    assert [comparing._three(x) for x in (1374.4, 100.04, 12.345, 1.2345, 0.12345)] == [
        "1374",
        "100",
        "12.3",
        "1.23",
        "0.123",
    ]
