"""`promote`: what it needs, all named at once; what it records; and how a promotion decays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import kept_support as support
import pytest

import authored_kernels
from agent.errors import KernelDamaged, PromotionRefused, UsageError
from agent.keeping import promote as promoting
from agent.keeping import review as reviewing
from agent.keeping.promote import State, minor, prepare, state_of, write
from agent.keeping.reviews import latest
from agent.keeping.shelves import Kept, of_run, read
from agent.records import Status

pytestmark = pytest.mark.null


WORDS = {"reviewer": "Ann Example", "note": "read the source and the errors"}


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What seems to be installed."""
    here = dict(support.PACKAGES)
    monkeypatch.setattr(promoting, "installed", here.get)
    return here


def kept(folder: Path, *, bench: bool = True, judge: Any = None, **record: Any) -> Kept:
    """A kept kernel with a fresh review and, unless told otherwise, a GPU benchmark."""
    made = support.keep_one(folder)
    if bench:
        support.add_bench(made, support.bench_record(support.program().digest, **record))
    reviewing.review(made, support.task(), judge or support.FakeJudge(), now=lambda: support.NOW)
    return read(made.folder)


def ask(found: Kept, **more: Any) -> promoting.Promotion:
    return prepare(found, support.task(), latest(found), now=support.NOW, **{**WORDS, **more})


def refusal(found: Kept, **more: Any) -> str:
    with pytest.raises(PromotionRefused) as error:
        ask(found, **more)
    return error.value.what


# needs ----------------------------------------------------------------------------------------------------------------


def test_with_a_fresh_review_and_a_benchmark_it_is_promoted(tmp_path: Path) -> None:
    found = kept(tmp_path)
    promotion = ask(found)
    path = write(found, promotion)
    record = json.loads(path.read_text())
    assert (record["schema"], record["state"], record["reviewer"]) == (
        "coda-agent/promotion/1",
        "promoted",
        "Ann Example",
    )
    assert record["waiver"] is None
    assert record["program_digest"] == support.program().digest
    assert record["benchmarks"][0]["us"] == 100.0
    assert record["benchmarks"][0]["against"] == {"compile": "0.833 (0.823 to 0.843), faster"}
    assert promotion.trailers == ("Assisted-by: model-x", "Reviewed-by: Ann Example")
    assert authored_kernels.catalog(tmp_path)[0].state == "promoted"
    assert not [p for p in found.folder.iterdir() if p.name.startswith(".")]


def test_the_envelope_is_what_the_evidence_covers(tmp_path: Path) -> None:
    held = ask(kept(tmp_path)).envelope
    assert (held.arch, held.dtypes, held.toolchain, held.torch) == (
        ("sm_90",),
        ("float16",),
        {"triton": "3.9"},
        "2.13.0",
    )
    assert set(held.multiple_of) | set(held.equal) == set(support.task().shapes[0].dims)


def test_without_a_benchmark_it_is_refused_or_waived_on_the_record(tmp_path: Path) -> None:
    found = kept(tmp_path, bench=False)
    assert "no GPU benchmark of this kernel is recorded" in refusal(found)
    promotion = ask(found, waiver="no GPU in this office")
    assert (promotion.waiver, promotion.benchmarks) == ("no GPU in this office", ())
    assert promotion.envelope.arch == ("sm_90",)  # compiled for


def test_a_waiver_is_not_recorded_where_it_is_not_needed(tmp_path: Path) -> None:
    assert ask(kept(tmp_path), waiver="lazy").waiver is None


def test_records_of_another_program_or_of_wrong_outputs_are_no_evidence(tmp_path: Path) -> None:
    found = kept(tmp_path, bench=False)
    support.add_bench(
        found, support.bench_record("f" * 64), support.bench_record(support.program().digest, verified=False)
    )
    what = refusal(found)
    assert "a record of another program, ffffffffffff" in what
    assert "a record whose outputs were not right" in what


def test_a_suspicious_time_is_never_promoted(tmp_path: Path) -> None:
    assert "50 µs is below the floor" in refusal(
        kept(tmp_path, suspicion="50 µs is below the floor"), waiver="trust me"
    )


def test_without_a_review_it_is_refused(tmp_path: Path) -> None:
    found = support.keep_one(tmp_path)
    with pytest.raises(PromotionRefused, match="never reviewed") as error:
        ask(found)
    assert error.value.hint == "coda-agent review rms_scale/demo"
    assert error.value.exit_code == 4


def test_a_refused_review_refuses(tmp_path: Path) -> None:
    found = kept(tmp_path, judge=support.FakeJudge(fails=("algebra", Status.WRONG_VALUES, "factor 2")))
    assert "its review refused it: gate algebra: WRONG_VALUES: factor 2" in refusal(found)


def test_a_review_of_an_older_file_is_not_fresh(tmp_path: Path) -> None:
    found = kept(tmp_path)
    (found.folder / "kernel.py").write_text(found.source + "\n# one more line\n")
    assert "its review is out of date" in refusal(read(found.folder))


def test_a_review_of_another_toolchain_is_not_fresh(tmp_path: Path, versions: dict[str, str]) -> None:
    found = kept(tmp_path)
    versions["triton"] = "3.10.0"
    assert "its review ran with triton 3.9.0, here is 3.10.0" in refusal(found)
    versions["triton"] = "3.9.7"
    ask(found)


def test_a_copied_review_of_another_kernel_does_not_count(tmp_path: Path) -> None:
    one = kept(tmp_path)
    other = support.keep_one(tmp_path / "elsewhere", "other")
    (other.folder / "review.json").write_bytes((one.folder / "review.json").read_bytes())
    assert "its review is out of date" in refusal(read(other.folder), waiver="w")


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    found = kept(tmp_path, bench=False, judge=support.FakeJudge(fails=("trace", Status.CRASH, "SIGSEGV")))
    what = refusal(found, reviewer="MODEL-X")
    for part in ("is the model that wrote it", "its review refused it", "no GPU benchmark"):
        assert part in what


@pytest.mark.parametrize("words", [{"reviewer": " "}, {"note": ""}, {"waiver": " "}])
def test_empty_words_are_a_usage_error(tmp_path: Path, words: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        ask(support.keep_one(tmp_path), **words)


def test_a_promotion_is_not_replaced_by_accident(tmp_path: Path) -> None:
    found = kept(tmp_path)
    write(found, ask(found))
    assert "promoted already" in refusal(found)
    with pytest.raises(PromotionRefused) as stopped:
        ask(found)
    assert "--replace" in (stopped.value.hint or "")
    assert ask(found, replace=True, note="again").note == "again"


def test_an_attempt_that_was_not_kept_is_not_promoted(tmp_path: Path) -> None:
    found = dataclasses.replace(kept(tmp_path), origin="run")
    assert "it was not kept" in refusal(found)


# decay ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def promoted(tmp_path: Path) -> Kept:
    found = kept(tmp_path)
    write(found, ask(found))
    return found


def test_states(tmp_path: Path, promoted: Kept) -> None:
    assert state_of(promoted, support.task()) == State("promoted", "by Ann Example")
    assert state_of(support.keep_one(tmp_path / "new"), support.task()) == State("candidate")


def test_another_program_makes_it_stale(promoted: Kept) -> None:
    (promoted.folder / "program.json").write_text(support.program("gemm_swiglu").to_json())
    assert state_of(read(promoted.folder), support.task()) == State("stale", "the program is another one")


def test_another_source_makes_it_stale(promoted: Kept) -> None:
    (promoted.folder / "kernel.py").write_text("# changed")
    assert state_of(read(promoted.folder), support.task()).reason == "kernel.py was changed"


def test_another_task_makes_it_stale(promoted: Kept) -> None:
    from agent.task import load

    assert state_of(promoted, load("gemm_swiglu")).reason == "its task was changed"
    assert state_of(promoted, None).reason == "its task is gone"


def test_another_toolchain_makes_it_stale_and_another_torch_does_not(promoted: Kept, versions: dict[str, str]) -> None:
    versions["torch"] = "2.14.0"
    assert state_of(promoted, support.task()).word == "promoted"
    versions["triton"] = "4.0.0"
    assert state_of(promoted, support.task()) == State("stale", "it was promoted with triton 3.9, here is 4.0.0")


def test_a_damaged_promotion_is_an_error(promoted: Kept) -> None:
    (promoted.folder / "promotion.json").write_text('{"state": "promoted"}')
    with pytest.raises(KernelDamaged, match="is not a promotion"):
        state_of(promoted, support.task())


def test_minor_versions() -> None:
    assert [minor(v) for v in ("3.9.0", "2.13.0+cpu", "0.6.5", "4")] == ["3.9", "2.13", "0.6", "4"]


def test_of_run_needs_a_run(tmp_path: Path) -> None:
    from agent.errors import UnknownRun

    with pytest.raises(UnknownRun):
        of_run(tmp_path)
