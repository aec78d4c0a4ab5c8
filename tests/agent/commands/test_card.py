"""`show` of a kept kernel: everything that is known of it for a person, the raw records for programs, and no record hides another."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import kept_support as support
import pytest
from typer.testing import CliRunner

import authored_kernels
import cli
from agent.commands import card as cards
from agent.keeping.reviews import FILE, Review
from agent.keeping.shelves import Kept, read

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def shelf(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = own_folders / "authored_kernels"
    folder.mkdir()
    monkeypatch.setattr(authored_kernels, "FOLDER", folder)
    return folder


def run(*args: str) -> Any:
    return CliRunner().invoke(cli.app, list(args))


def said(kept: Kept) -> dict[str, str]:
    return {name: text for name, text in cards.facts(cards.card(kept, "candidate")) if name}


def test_a_person_reads_who_when_how_and_how_fast(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    config = {"rms_scale": {"backend": "cutedsl", "tile_n": 192}}
    record = support.bench_record(support.program().digest, peers={"compile": 125.0, "quack": 80.0, "cublas": 90.0})
    record["measured"][0] |= {"config": config, "origin": "tuned"}
    support.add_bench(kept, record)
    result = run("show", "rms_scale/demo")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for line in (
        "state candidate",
        "written by model-x (llm), answering through scripted; run 2026-11-29-rms_scale-abc123, reply 1",
        "when 2026-11-29 12:00 UTC",
        "asked with prompt version 1, 1 example shown",
        "rounds passed in round 1, 1500 tokens, $0.01",
        "gates static PASS, trace PASS, algebra PASS, compile PASS, numerics PASS, bench -",
        "bench not run: no GPU",
        "error at most 0.50 of what is allowed, on interpreter",
        "schedule none was submitted; tuned at 1 size, see below",
        "files kernel.py, program.json, provenance.json, verdict.json, bench/test-gpu.json",
        "the scale commutes",
    ):
        assert line in lines, line
    (row,) = [line for line in lines if line.startswith("Test GPU")]
    for piece in ("100 (99.0 to 101)", "90%", "×0.800", "quack ×1.250", "cutedsl 128×192×64, tuned", "slower"):
        assert piece in row
    assert "seeds_commitment" not in result.stdout  # what nobody reads is in --json
    assert "{" not in "".join(lines[: lines.index("kernel rms_scale/demo: formula")])


def test_programs_get_the_raw_records(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    kernel = json.loads(run("show", "rms_scale/demo", "--json").stdout)["data"]["kernel"]
    assert kernel["provenance"] == json.loads((kept.folder / "provenance.json").read_text())
    assert [gate["name"] for gate in kernel["gates"]][:2] == ["static", "trace"]
    assert kernel["measured"] == []
    assert str(kept.folder / "kernel.py") in kernel["files"]
    assert (kernel["schedule"], kernel["trouble"]) == (None, [])


def test_a_submitted_schedule_is_told_and_one_that_cannot_be_used_is_said(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    for schedule, words in (
        ({"tile_m": 64, "split": 2}, "submitted: triton 64×128×64 e2; a call takes what"),
        ({"tile_q": 64}, "submitted, and cannot be used: Schedule: unknown field: got 'tile_q'"),
    ):
        assert words in said(dataclasses.replace(kept, schedule=schedule))["schedule"]


def test_who_looked_at_it_is_told(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    review = Review(
        kernel=kept.id,
        task=kept.task,
        refusals=(),
        recorded_digest="a",
        retraced_digest="a",
        tree_digest="b",
        verdict=support.verdict(),
        created=datetime.datetime(2026, 11, 30, 8, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    )
    (kept.folder / FILE).write_text(review.model_dump_json(by_alias=True))
    assert said(kept)["reviewed"] == "2026-11-30 06:30 UTC: accepted"
    promoted = {"created": "2026-12-01T00:00:00Z", "reviewer": "Ada", "note": "read it", "waiver": "no GPU here"}
    (kept.folder / "promotion.json").write_text(json.dumps(promoted))
    assert said(kept)["promoted"] == "2026-12-01 00:00 UTC by Ada: read it (without GPU evidence: no GPU here)"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("verdict.json", "{}", "verdict.json cannot be read: task: Field required"),
        ("bench/test-gpu.json", "{", "is not JSON"),
        ("bench/test-gpu.json", '{"format": "coda.bench/1"}', "a record that cannot be used"),
        ("review.json", "{}", "is not a review"),
        ("promotion.json", "[]", "holds a list"),
    ],
)
def test_a_record_that_cannot_be_read_is_said_and_hides_no_other(shelf: Path, name: str, text: str, words: str) -> None:
    kept = support.keep_one(shelf)
    path = kept.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    told = said(read(kept.folder))
    assert words in " ".join(told.values())
    assert told["written by"].startswith("model-x")


def test_without_provenance_nothing_is_made_up(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    told = said(dataclasses.replace(kept, provenance={}))
    assert [told[name] for name in ("written by", "when", "asked with", "rounds")] == [
        "not recorded",
        "not recorded",
        "not recorded",
        "not recorded, tokens not reported",
    ]
    odd = {"model": "m", "created": "yesterday", "usage": [3], "cost_usd": "much", "examples": 3, "prompt_version": 2}
    assert said(dataclasses.replace(kept, provenance=odd))["when"] == "not recorded"


def test_a_damaged_program_is_named_with_its_place(shelf: Path) -> None:
    kept = support.keep_one(shelf)
    (kept.folder / "program.json").write_text("{bad")
    shown = run("--json", "show", kept.id)
    error = json.loads(shown.stdout)["error"]
    assert (shown.exit_code, error["code"]) == (5, "kernel-damaged")
    assert "program.json" in error["message"]
