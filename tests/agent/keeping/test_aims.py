"""What the kernels are held to: the worst record decides, and what is doubtful or not measured is no success."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import layer_support
import pytest

import examples_curated
from agent.keeping import aims, layers, measured
from agent.keeping.measured import Measurements
from coda.bench.record import BenchRecord, Compared, Measured
from coda.bench.roofline import Floor

pytestmark = pytest.mark.null

QUACK = "`cutedsl` ÷ quack's best configuration, 4096 and 8192"
COMPILE = "÷ the best of torch.compile"
CUBLAS = "÷ cuBLAS's GEMM alone"
BACKENDS = "`triton` ÷ `cutedsl`, programs without pairs of columns"
US = {
    "triton": 210.0,
    "cutedsl": 200.0,
    "compile": 250.0,
    "compile-halves": 220.0,
    "quack[128x256 c21]": 205.0,
    "cublas": 190.0,
}


def record(task: str = "rms_scale", m: int = 4096, n: int = 4096, k: int = 4096, **us: float) -> BenchRecord:
    """Of a kernel that takes cutedsl; `us` by variant, 0 leaves one out."""
    times = {name: t for name, t in {**US, **us}.items() if t}
    variants = tuple(
        Measured(name, "tool", (t * 1e-6,) * 3, *(t * 1e-6,) * 5, 1e-5, peer=name.partition("[")[0])
        for name, t in times.items()
    )
    return BenchRecord(
        task=task, program_digest="d", dims={"M": m, "N": n, "K": k}, dtype="bfloat16", verified=True, kernel="cutedsl",
        measured=variants, compared=(), noise_floor=0.005, floor=Floor(1.8e-4, "compute", 10, 10), bandwidth=4e12,
        gemm_flops=8e14, suspicion=None, absent={}, environment={"gpu": "NVIDIA Test"}, protocol={"name": "default"},
    )  # fmt: skip


def found(*records: BenchRecord, of_layers: tuple[layers.LayerRecord, ...] = ()) -> dict[str, aims.Aim]:
    every = aims.aims(records, of_layers)
    assert len({aim.what for aim in every}) == len(every)
    return {aim.what: aim for aim in every}


def test_the_worst_record_decides() -> None:
    near, far = record(), record("gemm_rope", cutedsl=208.0)
    aim = found(near, far)[QUACK]
    assert aim.worst == (pytest.approx(208 / 205), "`gemm_rope` 4096×4096×4096")
    assert aim.word == "met"
    assert found(near)[QUACK].word == "better still"
    assert found(record(cutedsl=211.0))[QUACK].word == "**missed**"


def test_every_mode_of_torch_compile_and_every_configuration_counts() -> None:
    one = found(record(**{"quack[128x192pp c21]": 199.0}))
    assert one[QUACK].worst[0] == pytest.approx(200 / 199)
    assert one[f"{COMPILE}, from M = 128"].worst[0] == pytest.approx(200 / 220)


def test_pairs_of_the_run_go_before_medians() -> None:
    paired = dataclasses.replace(
        record(), compared=(Compared("compile-halves", 0.95, 0.94, 0.96, "faster", "compile-halves"),)
    )
    assert found(paired)[f"{COMPILE}, from M = 128"].worst[0] == 0.95


@pytest.mark.parametrize(
    ("task", "m", "k", "expected"),
    [
        ("rms_scale", 8192, 8192, {f"{CUBLAS}, forward, 8192"}),
        ("rms_backward", 8192, 8192, {f"{CUBLAS}, backward, 8192", f"{COMPILE}, backward, 8192"}),
        ("rms_scale", 4096, 4096, {f"{CUBLAS}, forward, 4096"}),
        ("rms_backward", 4096, 4096, {f"{CUBLAS}, backward, 4096", f"{COMPILE}, backward, 4096"}),
        ("rms_scale", 512, 4096, {f"{CUBLAS}, forward, M = 512"}),
        ("rms_backward", 512, 4096, {f"{CUBLAS}, backward, M = 512"}),
        ("rms_scale", 2048, 4096, set()),
        ("rms_scale", 4096, 8192, set()),
    ],
)
def test_a_record_counts_where_it_belongs(task: str, m: int, k: int, expected: set[str]) -> None:
    measured_ = {what for what, aim in found(record(task, m, k, k)).items() if aim.worst}
    assert measured_ - {QUACK, BACKENDS, f"{COMPILE}, from M = 128"} == expected
    assert (QUACK in measured_) == (m == k)
    assert f"{COMPILE}, from M = 128" in measured_


def test_few_rows_are_not_held_to_torch_compile() -> None:
    assert found(record(m=64))[f"{COMPILE}, from M = 128"].word == "not measured"


def test_what_is_doubtful_or_missing_is_not_measured() -> None:
    for other in (dataclasses.replace(record(), suspicion="too fast"), dataclasses.replace(record(), dtype="float32")):
        assert {aim.word for aim in found(other).values()} == {"not measured"}
    assert found(record(cublas=0.0))[f"{CUBLAS}, forward, 4096"].word == "not measured"


def test_pairs_of_columns_are_no_part_of_the_comparison_of_backends() -> None:
    assert found(record())[BACKENDS].worst[0] == pytest.approx(210 / 200)
    assert found(record("gemm_swiglu"))[BACKENDS].worst is None
    assert found(record("residual_rms_linear"))[BACKENDS].worst is None


def test_layers_have_time_and_memory() -> None:
    one = found(of_layers=(layer_support.record(),))
    assert [(a.worst[0], a.word) for a in list(one.values())[-3:]] == [
        (pytest.approx(10 / 11), "met"),
        (pytest.approx(10 / 9.5), "not reached"),
        (pytest.approx(3 / 4), "better still"),
    ]
    assert one["a layer, both passes, ÷ its matrix products alone"].worst[1] == "llama 4096:11008, 16384 tokens"


def test_the_page_has_a_row_for_each(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(layers, "RECORDS", tmp_path)
    monkeypatch.setattr(measured, "of_example", lambda digest: Measurements())
    assert aims.table() == ""
    mine = examples_curated.load("rms_scale").program.digest
    monkeypatch.setattr(measured, "of_example", lambda d: Measurements((record(),) if d == mine else ()))
    (tmp_path / "gpu.json").write_text(json.dumps({"records": [layer_support.record().model_dump(mode="json")]}))
    lines = aims.table().splitlines()
    assert (
        "| `cutedsl` ÷ quack's best configuration, 4096 and 8192 | 1.02 | 1.00 | 0.98 | `rms_scale` 4096×4096×4096 | better still |"
        in lines
    )
    assert "| ÷ the best of torch.compile, backward, 8192 | 0.91 | 0.83 | – |  | not measured |" in lines
