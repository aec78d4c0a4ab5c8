"""Kept kernels: one folder, at once, never over another; the same program once; read back without running its source."""

from __future__ import annotations

import datetime
import pathlib
from typing import Any

import authoring_support as support
import pytest

import authored_kernels
from agent.keeping import keep as keeping
from agent.keeping.keep import Provenance, default_folder, keep, seeds_commitment
from agent.llm.protocol import Usage
from agent.records import Verdict
from agent.settings import Settings
from coda.errors import FormatError

pytestmark = pytest.mark.null


def provenance(verdict: Verdict, **changes: Any) -> Provenance:
    values = {
        "task": verdict.task,
        "task_digest": verdict.task_digest,
        "program_digest": verdict.program_digest,
        "source_sha256": verdict.source_sha256,
        "model": "Some/Model:1",
        "provider": "scripted",
        "run": "r",
        "call": 1,
        "rounds": 1,
        "prompt_version": "1",
        "prompt_sha256": "0" * 64,
        "examples": ("one",),
        "usage": Usage(),
        "cost_usd": None,
        "seeds_commitment": seeds_commitment(verdict),
        "created": datetime.datetime.now(datetime.UTC),
    }
    return Provenance.model_validate(values | changes)


def put(into: pathlib.Path, *, program: str = "first", word: str = "PASS", name: str | None = None) -> Any:
    text = support.source(word, program=program)
    verdict = support.verdict_of(text)
    return keep(into, source=text, verdict=verdict, provenance=provenance(verdict), name=name)


def test_a_kept_kernel_loads_from_its_program_and_its_source_is_not_executed(tmp_path: pathlib.Path) -> None:
    kept = put(tmp_path)
    (pathlib.Path(kept.path) / "kernel.py").write_text("raise SystemExit('executed')\n")
    assert kept.id == "demo_scale/some-model-1"
    assert authored_kernels.load(kept.id, tmp_path).program.digest == support.PROGRAMS["first"].digest
    (entry,) = authored_kernels.catalog(tmp_path)
    assert (entry.id, entry.state, entry.model) == (kept.id, "candidate", "Some/Model:1")
    assert entry.load().outputs == ("z",)


def test_the_same_program_is_kept_once(tmp_path: pathlib.Path) -> None:
    first, second = put(tmp_path), put(tmp_path, word="PASS 0.5")
    assert (first.same_program, second.same_program, second.id) == (False, True, first.id)
    assert len(authored_kernels.catalog(tmp_path)) == 1
    assert not (pathlib.Path(first.path) / "bench").exists()


def test_a_taken_name_gets_a_number_and_is_not_touched(tmp_path: pathlib.Path) -> None:
    first = put(tmp_path, name="mine")
    before = {p: p.read_bytes() for p in pathlib.Path(first.path).rglob("*") if p.is_file()}
    second = put(tmp_path, program="second", name="mine")
    assert second.id == "demo_scale/mine-2"
    assert {p: p.read_bytes() for p in before} == before
    assert {e.id for e in authored_kernels.catalog(tmp_path)} == {"demo_scale/mine", "demo_scale/mine-2"}


def test_a_failure_while_writing_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def fails(path: pathlib.Path, text: str) -> None:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError("disk full")
        path.write_text(text)

    monkeypatch.setattr(keeping, "write_text", fails)
    with pytest.raises(OSError, match="disk full"):
        put(tmp_path)
    assert authored_kernels.catalog(tmp_path) == ()
    assert list((tmp_path / "demo_scale").iterdir()) == []


@pytest.mark.parametrize("word", ["algebra WRONG_VALUES", "compile NOT_RUN", "bench SUSPECT"])
def test_only_a_pass_is_kept(tmp_path: pathlib.Path, word: str) -> None:
    text = support.source(word)
    verdict = support.verdict_of(text)
    with pytest.raises(ValueError, match="only a pass"):
        keep(tmp_path, source=text, verdict=verdict, provenance=provenance(support.verdict_of(support.source("PASS"))))


def test_verdict_and_provenance_must_be_about_one_program(tmp_path: pathlib.Path) -> None:
    text = support.source("PASS")
    verdict = support.verdict_of(text)
    with pytest.raises(ValueError, match="different programs"):
        keep(tmp_path, source=text, verdict=verdict, provenance=provenance(verdict, program_digest="0" * 64))


def test_a_program_that_is_not_the_one_kept_does_not_load(tmp_path: pathlib.Path) -> None:
    kept = put(tmp_path)
    (pathlib.Path(kept.path) / "program.json").write_text(support.PROGRAMS["second"].to_json())
    with pytest.raises(FormatError, match="not the one that was kept"):
        authored_kernels.load(kept.id, tmp_path)


def test_an_unknown_kernel_lists_near_ones(tmp_path: pathlib.Path) -> None:
    kept = put(tmp_path)
    with pytest.raises(authored_kernels.UnknownKernel, match="did you mean") as caught:
        authored_kernels.load("demo_scale/some-model", tmp_path)
    assert kept.id in str(caught.value)


def test_half_written_folders_are_not_listed(tmp_path: pathlib.Path) -> None:
    put(tmp_path)
    (tmp_path / "demo_scale" / ".building-x").mkdir()
    (tmp_path / "demo_scale" / ".building-x" / "program.json").write_text("{}")
    assert len(authored_kernels.catalog(tmp_path)) == 1


DAMAGE = {
    "provenance.json is no JSON": ("provenance.json", "{"),
    "provenance.json is no object": ("provenance.json", "[]"),
    "provenance.json is nested too deep": ("provenance.json", "[" * 100_000),
    "promotion.json is no JSON": ("promotion.json", "\x00"),
}


@pytest.mark.parametrize(("name", "text"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_says_so_and_hides_no_other(tmp_path: pathlib.Path, name: str, text: str) -> None:
    bad, good = put(tmp_path, name="a-bad"), put(tmp_path, program="second", name="b-good")
    (pathlib.Path(bad.path) / name).write_text(text)
    entries = {e.id: e for e in authored_kernels.catalog(tmp_path)}
    assert {i: e.state for i, e in entries.items()} == {bad.id: "damaged", good.id: "candidate"}
    assert name in entries[bad.id].trouble
    assert authored_kernels.load(good.id, tmp_path).program.digest == support.PROGRAMS["second"].digest
    with pytest.raises(FormatError, match="is damaged"):
        authored_kernels.load(bad.id, tmp_path)


def test_a_damaged_folder_does_not_stand_for_its_program(tmp_path: pathlib.Path) -> None:
    bad = put(tmp_path, name="mine")
    (pathlib.Path(bad.path) / "promotion.json").write_text("{")
    again = put(tmp_path, name="mine")
    assert (again.same_program, again.id) == (False, "demo_scale/mine-2")


def test_names_cannot_leave_the_folder(tmp_path: pathlib.Path) -> None:
    kept = put(tmp_path / "into", name="../../evil")
    assert pathlib.Path(kept.path).parent == tmp_path / "into" / "demo_scale"


def test_seeds_are_committed_to_and_not_told(tmp_path: pathlib.Path) -> None:
    verdict = support.verdict_of(support.source("PASS"))
    other = verdict.model_copy(update={"seeds": {**verdict.seeds, "static": 1}})
    assert seeds_commitment(verdict) != seeds_commitment(other)
    assert str(support.SEED) not in provenance(verdict).model_dump_json()


def test_without_a_checkout_kernels_go_to_the_users_data(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home")
    package = tmp_path / "site-packages" / "authored_kernels"
    package.mkdir(parents=True)
    monkeypatch.setattr(authored_kernels, "FOLDER", package)
    assert default_folder(settings) == settings.kernels_dir
    (package.parent / "pyproject.toml").write_text("")
    assert default_folder(settings) == package


def test_what_this_checkout_keeps_loads() -> None:
    """Nothing need be kept; what is there must be listed, and load."""
    entries = authored_kernels.catalog()
    folders = {path.parent for path in authored_kernels.FOLDER.glob("*/*/program.json")}
    assert {entry.path for entry in entries} == folders
    assert [(e.id, e.trouble) for e in entries if e.state == authored_kernels.DAMAGED] == []
    for entry in entries:
        assert entry.load().program.digest == entry.digest
