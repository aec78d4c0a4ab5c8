"""Measuring a layer: who races, who is refused, what the record and the tables say. On the CPU, with a clock of its own."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import layer_support as support
import pytest
import torch

import coda.call
from agent.errors import BenchUnavailable, KernelDamaged
from agent.keeping import layer_race, layers
from agent.records import Status
from agent.verify.suite import Options
from coda.problem import Schedule
from examples_curated.layers import llama

pytestmark = pytest.mark.interp

WANTED = layers.Wanted(4096, 11008, 16384)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """torch.compile takes its time: here it gives back what it gets."""
    asked: list[dict[str, Any]] = []

    def compile(module: Any, **options: Any) -> Any:
        asked.append(options)
        return module

    monkeypatch.setattr(torch, "compile", compile)
    return asked


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> type[support.Session]:
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    return support.scripted(monkeypatch, tmp_path)


# the process ------------------------------------------------------------------------------------------------------------


def test_everybody_is_checked_and_raced_in_both_passes(compiled: list[dict[str, Any]]) -> None:
    found = support.raced()
    assert found["status"] == Status.PASS
    record = layers.LayerRecord.model_validate_json(json.dumps(found["record"]))
    assert compiled == [{"mode": "default", "dynamic": False}]
    everybody = [layers.OURS, layers.EAGER, layers.COMPILED, layers.GEMMS, "A/A"]
    for name in (layers.FORWARD, layers.BOTH):
        race = record.passes[name]
        assert [m.name for m in race.measured] == everybody
        assert all(len(m.samples) == 5 for m in race.measured)
        assert [c.peer for c in race.compared] == everybody[1:4]
    assert record.memory == dict.fromkeys((layers.OURS, layers.EAGER, layers.COMPILED), 1 << 30)
    assert record.dims == {"tokens": 37, "width": 64, "ffn": 40, "heads": 2, "kv_heads": 2, "head": 32}
    assert set(record.errors) == {layers.OURS, layers.EAGER, layers.COMPILED}
    assert set(record.errors[layers.OURS]) == {
        *("x2", "qkv", "d x0", "d y0", "d out", "d gate_up", "d down", "d qkv", "d mlp_gain", "d qkv_gain")
    }
    assert max(record.errors[layers.OURS].values()) < 1e-5
    (ours,) = (m for m in record.passes[layers.BOTH].measured if m.name == layers.OURS)
    assert len(ours.config) == 8
    assert all(Schedule.from_dict(s).backend == "reference" for s in ours.config.values())
    assert ours.origin == "shipped"
    assert record.environment["torch"] == torch.__version__
    assert set(record.protocol["seconds"]) == {"compiled", "checked", "raced"}


def test_a_layer_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = llama.frequencies
    monkeypatch.setattr(llama, "frequencies", lambda *a: right(*a) * 1.001)
    found = support.raced()
    assert (found["status"], found["record"]) == (Status.WRONG_VALUES, None)
    assert found["reason"].startswith("coda: qkv is off by ")


def test_a_gradient_that_is_wrong_is_found_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    make = layer_race.contestants

    def exchanged(*given: Any) -> Any:
        found = make(*given)
        x0, y0, *rest = found[layers.OURS].leaves
        return {**found, layers.OURS: dataclasses.replace(found[layers.OURS], leaves=(y0, x0, *rest))}

    monkeypatch.setattr(layer_race, "contestants", exchanged)
    found = support.raced()
    assert found["status"] == Status.WRONG_VALUES
    assert found["reason"].startswith("coda: d x0 is off by ")


def test_eager_pytorch_must_be_near_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(llama.Reference):
        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x2, qkv = super().forward(*inputs)
            return x2, qkv if qkv.dtype == torch.float64 else qkv * 1.1

    monkeypatch.setattr(llama, "Reference", Off)
    found = support.raced()
    assert found["status"] == Status.WRONG_VALUES


@pytest.mark.parametrize("what", ["fails", "is wrong"])
def test_a_compiler_that_fails_or_is_wrong_costs_itself_alone(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(module: Any, **options: Any) -> Any:
        def call(*inputs: torch.Tensor) -> Any:
            if what == "fails":
                raise RuntimeError("no\ncompiler")
            x2, qkv = module(*inputs)
            return x2 * 1.1, qkv

        return call

    monkeypatch.setattr(torch, "compile", compile)
    record = layers.LayerRecord.model_validate(support.raced()["record"])
    said = "failed: RuntimeError: no compiler" if what == "fails" else "not raced: x2 is off by 0.1 of its size"
    assert record.absent[layers.COMPILED].startswith(said)
    assert record.passes[layers.BOTH].of(layers.COMPILED) is None
    assert {row["÷ compile"] for row in layers.table([record])} == {"–"}
    assert layers.reading([record]) == ""


def test_what_is_built_ahead_is_what_a_layer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, tokens, ran = llama.Shape(96, 72, 2, 2, 32), 48, []
    choose = coda.call.choose

    def chosen(program: Any, problem: Any, *rest: Any) -> Any:
        ran.append((program, problem))
        return choose(program, problem, *rest)

    monkeypatch.setattr(coda.call, "choose", chosen)
    coda.call.forget()
    reference = llama.Reference(shape, dtype=torch.bfloat16)
    layer_race.contestants(reference, tokens, {})[layers.OURS].both()
    ahead = [(job.program, job.problem) for job in layer_race.calls(shape, tokens, torch.bfloat16, None)]
    assert ran == ahead


def test_the_products_alone_are_those_of_the_layer() -> None:
    reference = llama.Reference(support.SHAPE)
    gemms = layer_race.gemms_of(reference, 5)
    assert [tuple(x.shape) for x in gemms.forward()] == [(5, 64), (5, 80), (5, 64), (5, 192)]
    both = gemms.both()
    assert len(both) == 12
    assert [x.shape for x in both[2::3]] == [getattr(reference, name).shape for name in llama.WEIGHTS]


# the caller -------------------------------------------------------------------------------------------------------------


def test_a_layer_is_measured_in_a_process(session: type[support.Session]) -> None:
    session.results = [support.passed(support.record())]
    told: list[str] = []
    found = layers.measure(layers.Wanted(4096, 11008, 512, autotune=True), Options(rounds=7), told.append)
    assert found.record == support.record()
    assert found.status is Status.PASS
    (payload,) = session.asked
    assert payload == {
        "step": "race",
        "rounds": 7,
        "width": 4096,
        "ffn": 11008,
        "tokens": 512,
        "modes": {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"},
    }
    assert told == ["4096:11008, 512 tokens: compiling, checking and racing on NVIDIA Test"]


def test_what_became_of_the_process_is_said(session: type[support.Session]) -> None:
    wrong = {"status": "WRONG_VALUES", "reason": "coda: qkv is off", "record": None}
    session.results = [support.crashed(), support.answered(wrong)]
    first, second = (layers.measure(WANTED, Options()) for _ in range(2))
    assert (first.record, first.status, first.reason) == (None, Status.CRASH, "it died [SIGSEGV]")
    assert (second.record, second.status, second.reason) == (None, Status.WRONG_VALUES, "coda: qkv is off")


def test_without_a_gpu_nothing_is_measured(session: type[support.Session]) -> None:
    session.gpu = None
    with pytest.raises(BenchUnavailable, match="no GPU to measure on"):
        layers.measure(WANTED, Options())


# records and tables -----------------------------------------------------------------------------------------------------


def test_a_newer_record_takes_the_place_of_the_same_layer_only(session: type[support.Session]) -> None:
    small = support.record(dims={**support.record().dims, "width": 2048})
    assert layers.page() == ""
    (path,) = layers.keep([support.record(), small])
    assert path.name == "nvidia-test.json"
    newer = support.record(measured_at="2026-12-01T00:00:00Z")
    layers.keep([newer])
    assert {r.measured_at for r in layers.kept(path)} == {newer.measured_at, small.measured_at}
    assert layers.kept(path) == (small, newer)
    assert len(path.read_text().splitlines()) == 4


@pytest.mark.parametrize("text", ["[", "{}", '{"records": [{}]}', "[]", '{"records": 3}', "\udcff"])
def test_a_file_that_holds_something_else_is_left_alone(text: str, session: type[support.Session]) -> None:
    path = layers.place_of("NVIDIA Test")
    path.parent.mkdir()
    path.write_text(text, errors="surrogateescape")
    for act in (layers.readable, lambda: layers.keep([support.record()])):
        with pytest.raises(KernelDamaged, match="no record of a layer"):
            act()
    assert path.read_text(errors="surrogateescape") == text


def test_a_folder_is_no_file_of_records(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KernelDamaged, match="is a folder"):
        layers.kept(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory": {}}, "memory: none of coda, compile, eager, who were measured"),
        ({"memory": {layers.OURS: 1, layers.EAGER: 1}}, "memory: none of compile, who"),
        ({"memory": {layers.OURS: 1, layers.EAGER: 0, layers.COMPILED: 1}}, "memory: a size that is not above 0"),
        (
            {"memory": {layers.OURS: 10**400, layers.EAGER: 1, layers.COMPILED: 1}},
            "memory: a size beyond any machine's",
        ),
        ({"errors": {layers.OURS: {"x2": 0.0}}}, "errors: a distance that is not above 0"),
        ({"errors": {layers.OURS: {"x2": 1e-3}, layers.EAGER: {}}}, "errors: not of the same results"),
        ({"dims": {"width": 4096}}, "dims without ffn, tokens"),
        ({"protocol": {}}, "rounds"),
    ],
)
def test_a_record_has_what_tables_need(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        support.record(**change)
    with pytest.raises(ValueError, match="a time that is none"):
        support.record({layers.OURS: 10.0, layers.COMPILED: -1.0, layers.GEMMS: 9.0})


def test_committed_records_are_whole() -> None:
    assert layers.everything()


def test_a_record_is_of_both_passes_and_of_the_products() -> None:
    passes = support.record().passes
    with pytest.raises(ValueError, match="not both measured"):
        support.record(passes={layers.BOTH: passes[layers.BOTH]})
    with pytest.raises(ValueError, match="not both measured"):
        support.record({layers.OURS: 10.0, layers.COMPILED: 11.0})


def test_the_table_has_times_ratios_memory_and_errors() -> None:
    rows = layers.table([support.record()])
    assert [tuple(row) for row in rows] == [layers.COLUMNS] * 8
    assert rows[4] == {
        "layer": "llama 4096:11008, 16384 tokens",
        "pass": "forward + backward",
        "by": "coda",
        "ms": "10.000 ± 0.010",
        "÷ GEMMs alone": "1.053",
        "÷ compile": "0.909",
        "peak, GiB": "3.00",
        "error ÷ eager's": "0.87",
    }
    assert [row["peak, GiB"] for row in rows] == ["–"] * 4 + ["3.00", "5.00", "4.00", "–"]
    assert "torch.compile take 15.8 % (4096:11008) longer" in layers.reading([support.record()])


@pytest.mark.parametrize(("compiled", "shown"), [(9.0, "**1.111**"), (10.0, "≈1.000"), (11.0, "0.909")])
def test_losses_are_bold_and_noise_is_marked(compiled: float, shown: str) -> None:
    record = support.record({layers.OURS: 10.0, layers.COMPILED: compiled, layers.GEMMS: 9.0})
    assert layers.table([record])[0]["÷ compile"] == shown


def test_the_page_has_a_table_for_each_gpu(session: type[support.Session]) -> None:
    other = support.record(environment={"gpu": "NVIDIA Other"}, absent={"compile": "failed: x"})
    layers.keep([support.record(), other])
    page = layers.page()
    assert page.count("## Whole layers") == 1
    assert page.count("| llama 4096:11008, 16384 tokens |") == 16
    assert "4096:11008 measured on NVIDIA Test in bfloat16: torch 2, driver 1; cold L2, 25 interleaved rounds" in page
    assert "shipped schedules" in page
    assert "compile was not measured: failed: x." in page
    assert page.endswith("\n")
    layers.write(layers.place_of("NVIDIA Other"), [])
    assert "NVIDIA Other" not in layers.page()
