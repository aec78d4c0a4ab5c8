"""The command line through the real judge: authoring with a repaired kernel, and Ctrl-C in a process that waits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import authored_kernels
import cli
import examples_curated

pytestmark = pytest.mark.interp

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def places(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All folders of the user below tmp_path, no variable of ours."""
    for name in ("ANTHROPIC_API_KEY", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(own_folders)
    return own_folders


@pytest.mark.timeout(240)
def test_authoring_through_the_real_judge(places: Path) -> None:
    """A wrong kernel, repaired: every gate that this machine can run really runs."""
    right = examples_curated.source("swiglu_backward")
    wrong = right.replace("acc * y\n", "-acc * y\n")
    assert wrong != right
    kept = places / "kept"
    script = places / "script.json"
    script.write_text(json.dumps([{"source": wrong}, {"source": right}]))
    args = ["author", "swiglu backward", "--llm", f"scripted:{script}", "--into", str(kept), "--json"]
    result = CliRunner().invoke(cli.app, args)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    data = document["data"]
    assert document["ok"] is True
    assert data["rounds"] == 2
    status = {gate["name"]: gate["status"] for gate in data["gates"]}
    assert {status[name] for name in ("static", "trace", "algebra", "compile", "numerics")} == {"PASS"}
    assert all(gate["evidence"] for gate in data["gates"] if gate["status"] == "PASS")
    assert "round 1: WRONG_VALUES" in result.stderr
    assert authored_kernels.load("swiglu_backward/scripted", kept).program.digest == data["program_digest"]


@pytest.mark.timeout(120)
def test_ctrl_c_ends_orderly_and_leaves_nothing_running(places: Path) -> None:
    """A process that waits for a reply gets the signal that a terminal sends."""
    ask = places / "ask"
    code = "import sys, cli; sys.argv = ['coda-agent', *sys.argv[1:]]; cli.main()"
    command = [sys.executable, "-c", code, "author", "rms_scale", "--llm", f"folder:{ask}", "--json"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = places / "state" / "coda-agent" / "runs"
    deadline = time.monotonic() + 90
    while not list(runs.glob("*/requests/001.json")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 130, stderr
    assert json.loads(stdout)["error"]["code"] == "interrupted"
    assert "Traceback" not in stderr
    (folder,) = runs.iterdir()
    assert json.loads((folder / "summary.json").read_text())["stop"] == "interrupted"
