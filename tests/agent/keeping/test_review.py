"""`review`: judged from scratch, held against what the folder claims, and written down for a person."""

from __future__ import annotations

import dataclasses
import html.parser
import json
from pathlib import Path
from typing import Any

import jinja2
import kept_support as support
import pytest

from agent.errors import KernelDamaged, UnknownSubject
from agent.keeping import packet, reviews
from agent.keeping import review as reviewing
from agent.keeping.shelves import find, read, tree_digest
from agent.records import Status
from agent.verify.identity import ROOT

pytestmark = pytest.mark.null


CONTENT = packet.Packet.__dataclass_fields__


def reviewed(kept: Any, judge: Any = None, **options: Any) -> Any:
    return reviewing.review(kept, support.task(), judge or support.FakeJudge(), now=lambda: support.NOW, **options)


class Page(html.parser.HTMLParser):
    """Tags, text outside of style, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


# what is decided ------------------------------------------------------------------------------------------------------


def test_an_honest_kernel_is_accepted_and_judged_from_its_source(tmp_path: Path) -> None:
    kept, judge = support.keep_one(tmp_path), support.FakeJudge()
    found = reviewed(kept, judge).review
    assert judge.asked == [(kept.source, "rms_scale", None)]
    assert (found.accepted, found.refusals) == (True, ())
    assert found.recorded_digest == found.retraced_digest == support.program().digest
    assert found.tree_digest == tree_digest(kept, support.task().digest)


def test_the_submitted_schedule_is_judged_too(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    (kept.folder / "schedule.json").write_text('{"tile_m": 64}')
    judge = support.FakeJudge()
    reviewed(read(kept.folder), judge)
    assert judge.asked[0][2] == {"tile_m": 64}


def test_a_program_that_is_not_the_source_is_refused(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    (kept.folder / "program.json").write_text(support.program("gemm_swiglu").to_json())
    found = reviewed(read(kept.folder)).review
    assert not found.accepted
    assert not found.unproven
    assert "kernel.py traces to" in found.refusals[0]
    assert "provenance.json is about" in found.refusals[1]


def test_a_program_file_that_is_none_is_refused(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    (kept.folder / "program.json").write_text('{"format": "coda.program/1"}')
    assert "program.json is not a program" in reviewed(read(kept.folder)).review.refusals[0]


@pytest.mark.parametrize("word", [Status.WRONG_VALUES, Status.SUSPECT])
def test_a_refusing_gate_refuses_the_review(tmp_path: Path, word: Status) -> None:
    written = reviewed(support.keep_one(tmp_path), support.FakeJudge(fails=("algebra", word, "the sign is flipped")))
    assert written.review.refusals == (f"gate algebra: {word}: the sign is flipped",)
    assert not written.review.unproven
    assert f"**{word}**" in written.markdown.read_text()


def test_a_machine_that_cannot_run_a_required_gate_proves_nothing(tmp_path: Path) -> None:
    found = reviewed(
        support.keep_one(tmp_path), support.FakeJudge(not_run={"numerics": "no fused backend can run here"})
    ).review
    assert found.unproven
    assert found.refusals == ("gate numerics could not run: no fused backend can run here",)


# what is written ------------------------------------------------------------------------------------------------------


def test_the_packet_says_everything(tmp_path: Path) -> None:
    written = reviewed(support.keep_one(tmp_path))
    text = written.markdown.read_text("utf-8")
    for expected in (
        "rms_scale/demo for task `rms_scale`: **PASS** (bench not run)\n\n| | |",
        "llm, model-x through scripted",
        "$0.0123",
        "| tokens | 1500 |",
        "def rms_scale(",
        "formula",
        "Same program as the curated example rms_scale: equal digests, and the same text.",
        "| numerics | PASS | 0.25 |",
        "| bench | not run: no GPU |  |",
        "| triton | float16 | z | 0.01 | 0.011 | 0.02 | 0.5 | 0/32 | ragged sizes, heavy values |",
        "not measured: no GPU",
        "| triton | sm_90 | rms_scale | smoke | 93 | 0 | 65560 |",
        "- gate bench: no GPU",
        "races, memory faults, bf16 and hardware rounding are untested",
        "- dtypes: no numerics in bfloat16, float32",
        "Seeds: algebra 7",
    ):
        assert expected in text
    assert json.loads((written.markdown.parent / "review.json").read_text())["schema"] == "coda-agent/review/1"


def test_measured_times_are_shown_with_the_peers(tmp_path: Path) -> None:
    record = support.bench_record(support.program().digest)
    text = reviewed(support.keep_one(tmp_path), support.FakeJudge(bench=[record])).markdown.read_text("utf-8")
    assert (
        "| Test GPU | M=4096 N=4096 K=4096 | bfloat16 | triton (llm) | 100.0 (99.0 to 101.0) | 80% of the floor's speed |"
        in text
    )
    assert "| compile (tool) | 120.0 (118.8 to 121.2) | ×0.833 (0.823 to 0.843), faster |" in text
    assert "a ceiling, not a competitor" in text


def test_the_page_is_one_file_for_phones_and_both_colour_schemes(tmp_path: Path) -> None:
    text = reviewed(support.keep_one(tmp_path)).html.read_text("utf-8")
    page = Page(text)
    assert not [
        tag for tag, attributes in page.tags if tag in ("script", "link", "img", "iframe") or "src" in attributes
    ]
    assert "http" not in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert "prefers-color-scheme: dark" in text
    assert "def rms_scale(" in page.text


def test_what_comes_from_outside_cannot_leave_its_place(tmp_path: Path) -> None:
    """Source, rationale and messages are an author's text: they may hold markup and fences."""
    kept = support.keep_one(tmp_path)
    attack = "</pre><script>alert(1)</script>\n````\n# Approved by everyone\n"
    kept = dataclasses.replace(
        kept, source=f'"""{attack}"""\n', provenance={**kept.provenance, "rationale": attack, "model": "a|b<i>"}
    )
    judge = support.FakeJudge(fails=("static", Status.POLICY, "line 1: <b>|no</b>"))
    written = reviewed(kept, judge, into=tmp_path)
    page, text = Page(written.html.read_text("utf-8")), written.markdown.read_text("utf-8")
    assert not [tag for tag, _ in page.tags if tag in ("script", "b")]
    assert "<script>alert(1)</script>" in page.text
    assert "`````python\n" in text  # longer than any fence inside
    assert "\\|no&lt;/b&gt;" in text
    assert "a\\|b&lt;i&gt;" in text


def test_templates_are_strict() -> None:
    """A name that the packet lacks is an error, never an empty string."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)
    for name in ("REVIEW.md.j2", "review.html.j2"):
        source = (packet.TEMPLATES / name).read_text("utf-8")
        used = {part.split("}}")[0].split("%}")[0] for part in source.split("p.")[1:]}
        fields = {text.split()[0].split(".")[0].split("|")[0].split(")")[0].split("}")[0] for text in used}
        assert {f for f in fields if f.isidentifier() and f not in CONTENT} == set()
        environment.parse(source)


def test_the_packet_can_go_elsewhere(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path / "shelf")
    written = reviewed(kept, into=tmp_path / "packet")
    assert {p.name for p in (tmp_path / "packet").iterdir()} == {"REVIEW.md", "review.html", "review.json"}
    assert written.html.parent == tmp_path / "packet"
    assert not (kept.folder / "REVIEW.md").exists()


# the record and the digest --------------------------------------------------------------------------------------------


def test_the_record_survives_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    assert reviews.latest(kept) is None
    found = reviewed(kept).review
    assert reviews.latest(kept) == found
    (kept.folder / "review.json").write_text('{"schema": "coda-agent/review/1"}')
    with pytest.raises(KernelDamaged, match="is not a review"):
        reviews.latest(kept)
    (kept.folder / "review.json").write_text("[")
    with pytest.raises(KernelDamaged, match="is not JSON"):
        reviews.latest(kept)


@pytest.mark.parametrize("name", ["kernel.py", "program.json", "schedule.json"])
def test_the_tree_digest_covers_the_kernels_files(tmp_path: Path, name: str) -> None:
    kept = support.keep_one(tmp_path)
    before = tree_digest(kept, "t")
    (kept.folder / name).write_text("other")
    assert tree_digest(kept, "t") != before
    assert tree_digest(kept, "another task") != tree_digest(kept, "t")


def test_the_tree_digest_covers_the_judge_and_the_library_but_no_documents(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path)
    root = tmp_path / "root"
    for name in ("coda/numerics.py", "agent/verify/judge.py", "agent/commands/render.py", "README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1")
    before = tree_digest(kept, "t", root)
    (root / "README.md").write_text("2")
    (root / "agent/commands/render.py").write_text("2")
    (kept.folder / "REVIEW.md").write_text("2")
    assert tree_digest(kept, "t", root) == before
    for name in ("coda/numerics.py", "agent/verify/judge.py"):
        (root / name).write_text("2")
        assert tree_digest(kept, "t", root) != before
        (root / name).write_text("1")
    assert (ROOT / "agent" / "verify" / "judge.py").is_file()


# finding --------------------------------------------------------------------------------------------------------------


def test_kernels_are_found_by_id_name_task_and_path(tmp_path: Path) -> None:
    kept = support.keep_one(tmp_path / "shelf")
    for text in ("rms_scale/demo", "demo", "rms_scale", str(kept.folder)):
        found = find(text, folders=[tmp_path / "shelf"], runs=tmp_path / "runs")
        assert (found.id, found.folder, found.origin) == ("rms_scale/demo", kept.folder, "kernel")
        assert found.handle in (text, found.id)


def test_an_ambiguous_or_unknown_name_is_never_guessed(tmp_path: Path) -> None:
    support.keep_one(tmp_path, "one")
    support.keep_one(tmp_path, "two", example="gemm_swiglu")
    with pytest.raises(UnknownSubject) as several:
        find("rms_scale", folders=[tmp_path], runs=tmp_path / "runs")
    assert several.value.near == ("rms_scale/one", "rms_scale/two")
    with pytest.raises(UnknownSubject) as unknown:
        find("rms_scale/tow", folders=[tmp_path], runs=tmp_path / "runs")
    assert "rms_scale/two" in unknown.value.near
