"""The generated tables: losses in bold, draws marked, nothing left out."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

import examples_curated
from agent.keeping import measured, results
from agent.keeping.measured import Measurements
from coda.bench.record import BenchRecord, Compared, Measured
from coda.bench.roofline import Floor

pytestmark = pytest.mark.null


def timed(name: str, seconds: float, **more: Any) -> Measured:
    return Measured(
        name, "tool", (seconds,) * 3, seconds, seconds * 0.99, seconds * 1.01, seconds, seconds, 1e-5, **more
    )


def record(m: int = 4096, n: int = 4096, k: int = 4096, *, word: str = "slower") -> BenchRecord:
    measured_ = (
        timed("triton", 2e-4), timed("compile", 2.6e-4, peer="compile"),
        timed("compile-halves", 2.2e-4, peer="compile-halves", note="in halves"),
        timed("quack[128x256 c21]", 1.9e-4, peer="quack"), timed("cublas", 1.8e-4), timed("triton, empty epilogue", 1.85e-4),
    )  # fmt: skip
    compared = (
        Compared("compile", 2 / 2.6, 0.7, 0.8, "faster"),
        Compared("compile-halves", 2 / 2.2, 0.9, 0.92, "faster"),
        Compared("quack", 2 / 1.9, 1.04, 1.06, word, "quack[128x256 c21]"),
    )
    return BenchRecord(
        task="rms_scale", program_digest="d", dims={"M": m, "N": n, "K": k}, dtype="bfloat16", verified=True,
        kernel="triton", measured=measured_, compared=compared, noise_floor=0.005, floor=Floor(1.8e-4, "compute", 10, 10),
        bandwidth=4e12, gemm_flops=8e14, suspicion=None,
        absent={"liger": "not installed: pip install liger-kernel", "flashinfer": "not applicable: x"},
        environment={"gpu": "NVIDIA Test", "torch": "2.11"}, protocol={"name": "default"},
    )  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[BenchRecord]:
    """Records of rms_scale alone, and notes of the test's own."""
    records = [record(), record(8192, 8192, 8192, word="no difference")]
    mine = examples_curated.load("rms_scale").program.digest
    empty = Measurements()
    monkeypatch.setattr(
        measured, "of_example", lambda digest: Measurements(tuple(records)) if digest == mine else empty
    )
    monkeypatch.setattr(results, "NOTES", tmp_path / "NOTES.md")
    return records


def test_the_readme_has_a_row_per_task_with_losses_in_bold(found: list[BenchRecord]) -> None:
    results.NOTES.write_text("The row scale reads\na vector.\n\nMore.", encoding="utf-8")
    text = results.readme_table()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["| `rms_scale` | 200 | 1.10 | **0.95** | 200 | 1.10 | ≈0.95 | – | – | – |"]
    assert "quack-kernels: faster in 0, no difference in 1, slower in 1 of 2 comparisons" in text
    assert "torch.compile: faster in 2, no difference in 0, slower in 0 of 2" in text
    assert "The row scale reads a vector." in text
    assert "More." not in text
    assert "Not measured: " in text
    assert "gemm_rope" in text.rpartition("Not measured: ")[2]


def test_a_larger_vocabulary_does_not_take_the_rows_place(found: list[BenchRecord]) -> None:
    found.append(record(4096, 128256, 4096, word="faster"))
    assert "**0.95**" in results.readme_table()


def test_the_page_has_everything(found: list[BenchRecord]) -> None:
    found.append(dataclasses.replace(record(512), suspicion="below the floor"))
    found.append(dataclasses.replace(record(256), protocol={"name": "paper"}))
    results.NOTES.write_text("Why.", encoding="utf-8")
    text = results.full_page()
    assert "**0.95** (128x256 c21)" in text
    assert "| SUSPECT |" in text
    assert "256×4096" not in text  # another protocol is another table
    assert "| 1.111 | 1.081 | 90% | 10 |" in text
    assert "- liger: not installed: pip install liger-kernel (`rms_scale`)" in text
    assert "- flashinfer: not applicable (1 tasks)" in text
    assert "- compile-halves for `rms_scale`: in halves" in text
    assert "## What was lost, and why\n\nWhy." in text


def test_what_is_suspect_is_marked_and_wins_nothing(found: list[BenchRecord]) -> None:
    found.append(dataclasses.replace(record(512, word="faster"), suspicion="3.5 times faster than the best peer"))
    text = results.readme_table()
    assert "| 200⚠ | 1.10⚠ | 0.95⚠ |" in text
    assert "⚠: `SUSPECT`" in text
    assert "torch.compile: faster in 2, no difference in 0, slower in 0 of 2" in text
    assert "quack-kernels: faster in 0, no difference in 1, slower in 1 of 2" in text
    assert "(left out as `SUSPECT`: `rms_scale` at 1 sizes)" in text


def test_the_empty_epilogue_is_that_of_the_kernels_own_backend() -> None:
    """The other backend's mainloop is faster, and says nothing about this kernel's epilogue."""
    whole = dataclasses.replace(record(), measured=(*record().measured, timed("cutedsl, empty epilogue", 1.0e-4)))
    (row,) = results.table([whole])
    assert row["÷ empty epilogue"] == "1.081"
    bare = [m for m in whole.measured if m.name != "triton, empty epilogue"]
    (row,) = results.table([dataclasses.replace(whole, measured=tuple(bare))])
    assert row["÷ empty epilogue"] == "–"


def test_two_gpus_are_two_tables_and_two_sums(found: list[BenchRecord]) -> None:
    slow = dataclasses.replace(record(word="faster"), environment={"gpu": "NVIDIA Other", "torch": "2.11"})
    slow = dataclasses.replace(slow, measured=(timed("triton", 4e-4), *slow.measured[1:]))
    found.append(slow)
    text = results.readme_table()
    here, there = text.split("**NVIDIA Other**")
    assert "| `rms_scale` | 200 |" in here
    assert "| `rms_scale` | 400 |" in there
    assert "NVIDIA Test, against torch.compile: faster in 2" in text
    assert "NVIDIA Other, against torch.compile: faster in 1" in text
    page = results.full_page()
    assert page.index("## NVIDIA Test") < page.index("## NVIDIA Other")


def test_of_several_records_of_a_size_the_newest_is_shown(found: list[BenchRecord]) -> None:
    fresh = dataclasses.replace(record(), measured_at="2026-11-30T00:00:00Z")
    fresh = dataclasses.replace(fresh, measured=(timed("triton", 1e-4), *fresh.measured[1:]))
    found.insert(0, fresh)
    assert "| `rms_scale` | 100 |" in results.readme_table()
    assert "torch.compile: faster in 2, no difference in 0, slower in 0 of 2" in results.readme_table()


def test_nothing_measured_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    assert results.readme_table().startswith("Nothing yet")
    assert results.full_page().startswith("Nothing yet")


def test_variants_of_a_peer_are_named_for_what_they_are() -> None:
    slow = timed("quack[128x128pp c21]", 2.4e-4, peer="quack")
    whole = dataclasses.replace(record(), measured=(*record().measured, slow))
    said = {t.variant: (t.against, t.note) for t in measured.timings(Measurements((whole,)))}
    assert said["quack[128x256 c21]"][0].startswith("×1.053")
    assert said["quack[128x128pp c21]"][0] == "a slower configuration"
    assert said["triton, empty epilogue"][0] == "a ceiling, not a competitor"
    assert said["cublas"][0] == "a ceiling, not a competitor"
    assert said["compile-halves"][1] == "in halves"
