"""Wrong input of every kind that a person gets wrong: refused before anything slow, in one sentence that names the flag, with one hint,
near names where there are some, no traceback, and the same in a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kept_support as support
import pytest
from typer.testing import CliRunner

import authored_kernels
import cli
import examples_curated
from agent.verify import judge as judging

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def places(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of the test's own, one kept kernel, files of every wrong kind, and a judge that must not be asked."""
    shelf = own_folders / "kept"
    shelf.mkdir()
    monkeypatch.setattr(authored_kernels, "FOLDER", shelf)
    support.keep_one(shelf)
    (own_folders / "good.py").write_text(examples_curated.source("rms_scale"))
    (own_folders / "file").write_text("")
    for name, text in {
        "broken": "{",
        "list": "[1]",
        "typed": '{"tile_m": "x"}',
        "unknown": '{"tile_q": 64}',
        "warps": '{"warps": 3}',
    }.items():
        (own_folders / f"{name}.json").write_text(text)
    monkeypatch.chdir(own_folders)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be judged")

    monkeypatch.setattr(judging, "judge", never)
    return own_folders


VERIFY = ["verify", "good.py", "--task", "rms_scale"]
HUGE = "9" * 20 + "x4096x4096"


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        # names, with near ones
        ([*VERIFY, "--peers", "quak"], "--peers 'quak' is no peer", "did you mean 'quack'? there are: eager"),
        ([*VERIFY, "--backend", "tritn"], "--backend 'tritn' is no fused backend", "did you mean 'triton'?"),
        ([*VERIFY, "--arch", "sm90"], "--arch 'sm90' is no architecture", "did you mean 'sm_90'"),
        (["tune", "rms_scale", "--dtype", "bf16"], "--dtype 'bf16' is no dtype", "'bfloat16'"),
        (["tune", "rms_scale", "--weights", "cols"], "--weights 'cols' is no layout", "did you mean 'col'?"),
        (["bench", "rms_scale", "--protocol", "papr"], "--protocol 'papr' is no protocol", "did you mean 'paper'?"),
        (["list", "task"], "list 'task' is no list", "did you mean 'tasks'? there are: tasks"),
        (["show", "rms_scal"], "is called 'rms_scal'", "'rms_scale'"),
        (["bench", "rms_scal3"], "no task, example, kernel or run is called 'rms_scal3'", "did you mean 'rms_scale"),
        (["tune", "rms_scale/demmo", "--dry-run"], "is called 'rms_scale/demmo'", "'rms_scale/demo'"),
        (["review", "rms_scale/demmo"], "is called 'rms_scale/demmo'", "'rms_scale/demo'"),
        (["compar", "rms_scale"], "no such command 'compar'. Did you mean 'compare'?", "--help"),
        # sizes
        ([*VERIFY, "--shapes", "1x2"], "--shapes '1x2' is no shape of rms_scale", "write it as MxNxK, in numbers"),
        ([*VERIFY, "--shapes", "0x64x64"], "--shapes '0x64x64' is no shape of rms_scale", "MxNxK"),
        ([*VERIFY, "--shapes", "-1x64x64"], "--shapes '-1x64x64' is no shape of rms_scale", "MxNxK"),
        ([*VERIFY, "--shapes", "٣x64x64"], "--shapes '٣x64x64' is no shape of rms_scale", "MxNxK"),
        ([*VERIFY, "--shapes", "1.5x64x64"], "--shapes '1.5x64x64' is no shape of rms_scale", "MxNxK"),
        ([*VERIFY, "--shapes", HUGE], f"--shapes '{HUGE}' is larger than any matrix", "lengths below 10^9"),
        (["tune", "rms_scale", "--dry-run", "--shapes", HUGE], "is larger than any matrix", "lengths below 10^9"),
        (["tune", "good.py", "--dry-run", "--shapes", HUGE], "is larger than any matrix", "lengths below 10^9"),
        (["bench", "rms_scale", "--shapes", HUGE], "is larger than any matrix", "lengths below 10^9"),
        # numbers
        (["bench", "rms_scale", "--rounds", "1"], "--rounds 1 is less than 3", "25 is usual"),
        (["bench", "rms_scale", "--parallel", "-1"], "--parallel -1 is less than 0", "by processors"),
        (["bench", "rms_scale", "--budget", "0"], "--budget 0 is not positive", "leave it out"),
        (["bench", "rms_scale", "--budget", "nan"], "--budget nan is no number", "leave it out"),
        (["tune", "rms_scale", "--budget", "nan", "--dry-run"], "--budget nan is no number", "leave it out"),
        (["tune", "rms_scale", "--workers", "0", "--dry-run"], "--workers 0 is not positive", "leave it out"),
        (["compare", "rms_scale", "--threshold", "-1"], "--threshold -1 is no percentage", "0 or more"),
        (["verify", "--all", "--jobs", "-2"], "--jobs -2 is less than 1", "leave it out"),
        (["author", "rms_scale", "--rounds", "x"], "invalid value for '--rounds'", "--help"),
        # files
        (["verify", "nofile.py", "--task", "rms_scale"], "'nofile.py' cannot be read: No such file", "a kernel file"),
        (["verify", ".", "--task", "rms_scale"], "'.' cannot be read: Is a directory", "a kernel file"),
        (
            [*VERIFY, "--schedule", "none.json"],
            "--schedule 'none.json' cannot be read: No such file or directory",
            "JSON",
        ),
        ([*VERIFY, "--schedule", "broken.json"], "--schedule 'broken.json' cannot be read: Expecting", "JSON"),
        ([*VERIFY, "--schedule", "list.json"], "--schedule 'list.json' holds a list", "JSON"),
        ([*VERIFY, "--schedule", "typed.json"], "'typed.json' is none: Schedule.tile_m: got 'x'", "JSON"),
        (
            [*VERIFY, "--schedule", "unknown.json"],
            "'unknown.json' is none: Schedule: unknown field",
            "did you mean 'tile_",
        ),
        ([*VERIFY, "--schedule", "warps.json"], "'warps.json' is none: Schedule.warps: got 3", "JSON"),
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else "",
)
def test_it_is_usage_in_one_sentence_with_one_hint(args: list[str], message: str, hint: str) -> None:
    result = CliRunner().invoke(cli.app, args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    first, blank, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert blank == ""
    assert second.startswith("hint: ")
    assert hint in second
    found = json.loads(CliRunner().invoke(cli.app, [*args, "--json"]).stdout)
    assert found["ok"] is False
    assert message in found["error"]["message"]
    assert hint in found["error"]["hint"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([*VERIFY, "--record", "file/x.json"], "file/x.json"),
        (["review", "rms_scale/demo", "--into", "file/x"], "file/x"),
        (["compare", "--all", "--html", "file/x.html"], "file/x.html"),
        (["bench", "rms_scale", "--out", "file/x"], "file/x"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_place_that_cannot_be_written_is_said_before_anything_is_worked_for(args: list[str], named: str) -> None:
    result = CliRunner().invoke(cli.app, args)
    assert result.exit_code == 5, result.output
    assert f"'{named}" in result.stderr
    assert "Traceback" not in result.stderr
    found = json.loads(CliRunner().invoke(cli.app, [*args, "--json"]).stdout)
    assert found["error"]["code"] in ("file", "folder-unusable")
