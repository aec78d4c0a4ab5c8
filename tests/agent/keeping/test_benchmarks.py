"""Records beside the kernels that were measured: each beside its own, nothing else of the file lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import board_support as board
import pytest

import examples_curated
from agent import task as tasks
from agent.errors import FolderUnusable, KernelDamaged
from agent.keeping import benchmarks, compare, leaderboard, measured
from agent.keeping.benchmarks import Target
from agent.records import Status
from agent.verify.suite import Result
from coda.bench.record import BenchRecord

pytestmark = pytest.mark.null

DIGEST = board.digest_of("rms_scale")


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The bank's folder of records, empty."""
    folder = tmp_path / "records"
    monkeypatch.setattr(benchmarks, "RECORDS", folder)
    return folder


def result(kernel: str, us: float, *, digest: str = DIGEST, **more: Any) -> Result:
    record = board.record("rms_scale", digest, {"triton": us, "compile": 120}, **more)
    return Result(key=kernel, kernel=kernel, task="rms_scale", dims=record["dims"], status=Status.PASS, record=record)


def times(path: Path) -> list[float]:
    return [round(r.of(r.kernel).median * 1e6) for r in measured.of_file(path) if isinstance(r, BenchRecord)]


def test_an_example_and_a_kept_kernel_of_one_program_keep_their_own_records(records: Path, tmp_path: Path) -> None:
    """The kept one was timed with its author's schedule: neither's time may stand for the other's."""
    kept = benchmarks.of_kept(board.keep_as(tmp_path / "kept", "rms_scale"))
    example = benchmarks.of_example("rms_scale")
    assert (kept.digest, kept.task) == (example.digest, example.task)
    paths = benchmarks.keep([example, kept], [result(example.id, 100), result(kept.id, 80)])
    assert paths == sorted([records / "test-gpu.json", kept.records / "test-gpu.json"])
    assert (times(records / "test-gpu.json"), times(kept.records / "test-gpu.json")) == ([100], [80])
    benchmarks.keep([example, kept], [result(kept.id, 70)])
    assert (times(records / "test-gpu.json"), times(kept.records / "test-gpu.json")) == ([100], [70])


def test_a_result_of_another_kernel_or_program_is_kept_nowhere(records: Path) -> None:
    example = benchmarks.of_example("rms_scale")
    assert benchmarks.keep([example], [result("rms_scale/other", 80), result(example.id, 80, digest="0" * 64)]) == []
    assert not records.exists()


def test_what_else_a_file_holds_stays(records: Path) -> None:
    path = records / "test-gpu.json"
    verdicts = {"rms_scale": {"program_digest": DIGEST, "numerics": {"device": "ü"}}, "gemm_rope": {}}
    benchmarks.write(path, [], beside={"verdicts": verdicts, "note": "by hand"})
    example = benchmarks.of_example("rms_scale")
    benchmarks.keep([example], [result(example.id, 100)])
    benchmarks.keep([example], [result(example.id, 90, dims=board.SIZES["8192"])])
    found = json.loads(path.read_text("utf-8"))
    assert (found["verdicts"], found["note"], len(found["records"])) == (verdicts, "by hand", 2)


def test_a_file_that_cannot_be_read_is_not_written_over(records: Path) -> None:
    records.mkdir()
    (records / "test-gpu.json").write_text("{torn")
    example = benchmarks.of_example("rms_scale")
    with pytest.raises(KernelDamaged, match=r"test-gpu\.json"):
        benchmarks.keep([example], [result(example.id, 100)])
    assert (records / "test-gpu.json").read_text() == "{torn"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "coda.bench/2"}, "not a benchmark record of format"),
        ({"weather": "fine"}, "weather"),
        ({"verified": "no"}, "verified is 'no'"),
        ({"format": "coda.bench/2", "compared": None}, "not a benchmark record of format"),
    ],
)
def test_records_that_cannot_be_read_are_not_lost(change: dict[str, Any], said: str, records: Path) -> None:
    """Of a newer version, say: a file written anew would hold the readable ones alone."""
    example = benchmarks.of_example("rms_scale")
    good = board.record("rms_scale", DIGEST, {"triton": 100, "compile": 120})
    path = records / "test-gpu.json"
    records.mkdir()
    path.write_text(json.dumps({"records": [good, {**good, **change}]}))
    before = path.read_bytes()
    with pytest.raises(KernelDamaged, match=rf"test-gpu\.json.*record 2 would be lost: .*{said}"):
        benchmarks.readable([example], "Test GPU")
    with pytest.raises(KernelDamaged, match="record 2"):
        benchmarks.keep([example], [result(example.id, 100, dims=board.SIZES["8192"])])
    assert path.read_bytes() == before


def test_what_is_no_record_at_all_is_not_lost_either(records: Path) -> None:
    records.mkdir()
    (records / "test-gpu.json").write_text('{"records": [{"by": "hand"}]}')
    with pytest.raises(KernelDamaged, match="record 1 would be lost"):
        benchmarks.readable([benchmarks.of_example("rms_scale")], "Test GPU")
    benchmarks.readable([benchmarks.of_example("rms_scale")], "Another GPU")


def test_records_that_cannot_go_beside_a_kernel_are_not_measured(records: Path) -> None:
    (records / "test-gpu.json").mkdir(parents=True)
    with pytest.raises(KernelDamaged, match=r"test-gpu\.json"):
        benchmarks.readable([benchmarks.of_example("rms_scale")], "Test GPU")


def test_a_log_that_is_none_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xff\xfe\x00binary\n")
    with pytest.raises(FolderUnusable, match=r"results\.jsonl' cannot be read as results") as caught:
        benchmarks.Log(path)
    assert caught.value.exit_code == 5


def test_every_error_of_a_curated_kernel_on_the_board_is_of_the_program_that_it_is() -> None:
    """From the committed verdicts; one of another program says nothing about this one."""
    known = leaderboard._example_errors()
    assert known, "the bank's verdicts are committed"
    digests = {compare.of_example(i).digest for i in examples_curated.catalog() if i in tasks.cards()}
    assert set(known) <= digests
    kernels = leaderboard.build([]).kernels.values()
    assert {k.digest for k in kernels if k.error_ratio is not None} == set(known)
    assert all(0 < k.error_ratio <= 1 for k in kernels if k.error_ratio is not None)


def test_a_target_of_a_task_is_its_example_and_every_kept_kernel(tmp_path: Path) -> None:
    board.keep_as(tmp_path, "rms_scale")
    found: tuple[Target, ...] = benchmarks.targets(["rms scale"], folders=[tmp_path], runs=tmp_path / "runs")
    assert [t.id for t in found] == ["examples_curated/rms_scale", "rms_scale/model-x"]
    assert benchmarks.targets(["examples_curated/rms_scale"], folders=[tmp_path], runs=tmp_path) == found[:1]
