"""The command `bench --layer`: what is refused before anything is measured, and what comes out."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import layer_support as support
import pytest
import torch
from typer.testing import CliRunner

import cli
from agent.commands import tune
from agent.commands.terminal import Answer, Exit, Failure
from agent.keeping import layers
from coda.bench.timing import GpuBusy

pytestmark = pytest.mark.null


@pytest.fixture
def session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, own_folders: pathlib.Path
) -> type[support.Session]:
    monkeypatch.setenv("CODA_AGENT_HOME", str(tmp_path / "home"))
    return support.scripted(monkeypatch, tmp_path)


def run(*args: str) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *args])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tokens", "5"], "--tokens goes with --layer only"),
        (["rms_scale", "--autotune"], "--autotune goes with --layer only"),
        (["--layer", "128:64", "rms_scale"], "a name does not go with it"),
        (["--layer", "128:64", "--all"], "--all does not go with it"),
        (["--layer", "128:64", "--backend", "triton"], "--backend does not go with it"),
        (["--layer", "128:64", "--cache-dir", "x"], "--cache-dir does not go with it"),
        (["--layer", "128:64", "--protocol", "paper"], "--protocol does not go with it"),
        (["--layer", "128:64", "--tokens", "0"], "--tokens 0 is less than 1"),
        (["--layer", "128:64", "--rounds", "2"], "--rounds 2 is less than 3"),
        (["--layer", "128:64", "--out", "folder"], "--out 'folder' is no file"),
        (["--layer", "128"], "--layer '128' is no layer"),
        (["--layer", "128:x"], "--layer '128:x' is no layer"),
        (["--layer", "128:-1"], "--layer '128:-1' is no layer"),
        (["--layer", "128:1234567890123"], "is no layer"),
        (["--layer", "100:64"], "no whole heads of 128 columns"),
        (["--layer", "0:64"], "or no columns"),
        (["--layer", "٢٥٦:٦٤٠"], "is no layer"),
        (["--layer", "128:64", "--tokens", "99999999999999999999"], "more than any GPU holds"),
    ],
)
def test_what_cannot_be_meant_is_refused_first(args: list[str], said: str, session: type[support.Session]) -> None:
    found = run(*args)
    assert found.exit_code == 2
    assert said in found.stderr
    assert session.asked == []


def test_layers_are_measured_kept_and_shown(session: type[support.Session], tmp_path: pathlib.Path) -> None:
    small = support.record(dims={**support.record().dims, "width": 2048, "ffn": 5632})
    session.results = [support.passed(support.record()), support.passed(small)]
    found = run("--layer", "4096:11008", "--layer", "2048:5632", "--tokens", "512", "--rounds", "7", "--keep")
    assert found.exit_code == 0, found.stderr
    assert [(p["width"], p["ffn"], p["tokens"], p["rounds"]) for p in session.asked] == [
        (4096, 11008, 512, 7),
        (2048, 5632, 512, 7),
    ]
    assert "llama 4096:11008" in found.stdout
    assert "longer than the layer's matrix products alone" in found.stdout
    assert layers.kept(tmp_path / "layers" / "nvidia-test.json") == (small, support.record())
    (written,) = (tmp_path / "home" / "bench").glob("*/layers.json")
    assert layers.kept(written) == (small, support.record())


def test_one_document_and_no_file_in_the_bank(session: type[support.Session], tmp_path: pathlib.Path) -> None:
    session.results = [support.passed(support.record(absent={"compile": "failed: x"})), support.crashed()]
    out = tmp_path / "x" / "layers.json"
    args = ["--layer", "4096:11008", "--layer", "8192:22016", "--layer", "4096:11008", "--out", str(out)]
    found = CliRunner().invoke(cli.app, ["--json", "bench", *args])
    assert found.exit_code == 3
    data = json.loads(found.stdout)
    assert data["error"]["message"] == "1 of 2 layers not measured"
    assert data["data"]["failed"] == [{"layer": "8192:22016", "status": "CRASH", "reason": "it died [SIGSEGV]"}]
    assert data["data"]["records"] == [json.loads(layers.kept(out)[0].model_dump_json())]
    assert not (tmp_path / "layers").exists()


def test_what_was_measured_before_another_benchmark_came_is_written(
    session: type[support.Session], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.results, free = [support.passed(support.record())], [contextlib.nullcontext()]

    def lock(gpu: str, timeout_s: float) -> Any:
        if not free:
            raise GpuBusy("the GPU is in use")
        return free.pop()

    monkeypatch.setattr(layers, "gpu_lock", lock)
    out = tmp_path / "layers.json"
    found = run("--layer", "4096:11008", "--layer", "2048:5632", "--keep", "--out", str(out))
    assert found.exit_code == 5
    assert "the GPU is in use" in found.stderr
    assert layers.kept(out) == layers.kept(tmp_path / "layers" / "nvidia-test.json") == (support.record(),)


def test_a_file_of_layers_is_added_to_and_another_file_is_left_alone(
    session: type[support.Session], tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "layers.json"
    other = support.record(dims={**support.record().dims, "width": 2048, "ffn": 5632})
    layers.write(out, [other])
    session.results = [support.passed(support.record())]
    assert run("--layer", "4096:11008", "--out", str(out)).exit_code == 0
    assert layers.kept(out) == (other, support.record())
    out.write_text('{"records": ["precious"]}')
    found = run("--layer", "4096:11008", "--out", str(out))
    assert found.exit_code != 0
    assert "holds what is no record of a layer" in found.stderr
    assert out.read_text() == '{"records": ["precious"]}'


def test_no_gpu_is_the_same_error_as_for_kernels(session: type[support.Session]) -> None:
    session.gpu = None
    found = run("--layer", "4096:11008")
    assert found.exit_code == 5
    assert "no GPU to measure on" in found.stderr


def test_where_records_cannot_go_is_said_first(session: type[support.Session], tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    found = run("--layer", "4096:11008", "--out", str(tmp_path / "file" / "x.json"))
    assert found.exit_code == 5
    assert "cannot be written" in found.stderr
    assert session.asked == []


def test_what_the_layers_run_is_tuned_first(session: type[support.Session], monkeypatch: pytest.MonkeyPatch) -> None:
    session.results = [support.passed(support.record())]
    tuned: list[str] = []

    def measured(terminal: Any, jobs: Any, asked: Any, warnings: Any = ()) -> Answer:
        assert session.asked == []
        tuned.extend(job.program.name for job in jobs)
        assert {(job.problem.m, job.problem.arch, job.problem.dtype) for job in jobs} == {(512, "sm_90", "bfloat16")}
        return Answer({"jobs": []}, list, Exit.GOAL_NOT_MET, Failure("not-tuned", "1 of 8 not tuned", ""))

    monkeypatch.setattr(tune, "measured", measured)
    monkeypatch.setattr(tune, "arch_of", lambda asked: "sm_90")
    found = CliRunner().invoke(cli.app, ["--json", "bench", "--layer", "256:640", "--tokens", "512", "--tune"])
    assert sorted(tuned) == sorted(
        [
            *["residual_rms"] * 2,
            "rms_swiglu",
            "rms_rope_positions",
            "rope_backward",
            *["rms_backward"] * 2,
            "swiglu_backward",
        ]
    )
    assert found.exit_code == 3
    data = json.loads(found.stdout)
    assert data["data"]["tuned"] == {"jobs": []}
    assert len(data["data"]["records"]) == 1
    assert any("1 of 8 not tuned" in text for text in data["warnings"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it would be tuned")
def test_without_a_gpu_nothing_is_tuned(session: type[support.Session]) -> None:
    found = run("--layer", "256:640", "--tokens", "512", "--tune")
    assert found.exit_code == 5
    assert "tuning measures, and there is no GPU here" in found.stderr
    assert session.asked == []
