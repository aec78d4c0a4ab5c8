"""The curated bank as text: ladder, cards, docstrings, vocabulary, and the judge's static gate. No tensors."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import examples_curated
from agent import task as tasks
from agent.verify import static
from coda.primitives import NAMES

pytestmark = pytest.mark.null

LADDER = (
    "rms_scale",
    "ssm_gates",
    "gemm_swiglu",
    "gemm_rope",
    "rms_swiglu",
    "rms_rope",
    "residual_rms",
    "bias_gelu_fp8",
    "residual_layernorm",
    "gemm_cross_entropy",
    "rms_cross_entropy",
    "softcap_cross_entropy",
    "qk_norm_rope",
    "mx_quantize",
    "expert_scores",
    "symlog_codes",
    "swiglu_backward",
    "gelu_backward",
    "rms_backward",
    "residual_rms_linear",
)
"""Simple first: maps, vectors and tiles (1 to 6), reductions (7 to 9), stateful transforms (10 to 12), segments (13 to 15),
rounding in between (16), backward passes (17 to 19), plans (20)."""
"""Primitives that no example uses. Take a name out with the example that shows it."""

SECTIONS = ("Computes", "Shapes", "Fusion", "Numerics", "Constraints", "Lesson")


def _tree(example_id: str) -> ast.Module:
    return ast.parse(examples_curated.source(example_id))


def test_the_ladder_has_this_order_and_no_gap() -> None:
    assert examples_curated.catalog() == LADDER
    assert [examples_curated.card(i).rung for i in LADDER] == list(range(1, len(LADDER) + 1))


def test_every_rung_adds_an_idea_of_its_own() -> None:
    ideas = [examples_curated.card(i).idea for i in LADDER]
    assert len(set(ideas)) == len(ideas)
    assert all(20 <= len(idea) <= 110 for idea in ideas)


def test_the_kernel_suite_has_an_example_of_every_task() -> None:
    suite = """gemm_rope gemm_swiglu gemm_cross_entropy residual_rms rms_scale rms_swiglu rms_rope rms_cross_entropy
    rms_backward swiglu_backward residual_rms_linear"""
    assert set(suite.split()) <= set(examples_curated.catalog())
    assert set(suite.split()) <= set(tasks.cards())


def test_listing_and_reading_import_no_torch_and_no_kernel() -> None:
    code = (
        "import sys, examples_curated as e\n"
        "for i in e.catalog(): e.card(i), e.source(i)\n"
        "sys.exit(int('torch' in sys.modules or any(m.startswith('examples_curated.') for m in sys.modules)))"
    )
    root = pathlib.Path(examples_curated.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_an_unknown_example_names_near_ones() -> None:
    for ask in (examples_curated.load, examples_curated.source, examples_curated.card):
        with pytest.raises(examples_curated.UnknownExample, match="swiglu_backward"):
            ask("swiglu_bakward")
    with pytest.raises(examples_curated.UnknownExample):
        examples_curated.load("__init__")


@pytest.mark.parametrize(
    "text",
    [
        'RUNG = 1\nIDEA = "no docstring"\n',
        '"""Doc."""\nIDEA = "no rung"\n',
        '"""Doc."""\nRUNG = 1 + 1\nIDEA = "not literal"\n',
    ],
)
def test_a_file_without_a_card_is_an_error(text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(examples_curated, "FOLDER", tmp_path)
    with pytest.raises(examples_curated.InvalidExample, match=r"broken\.py"):
        examples_curated.catalog()


def test_a_new_example_is_one_new_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rung, name in ((2, "first_by_name"), (1, "second_by_name")):
        (tmp_path / f"{name}.py").write_text(
            f'"""T of {name}.\n\nMore."""\nRUNG = {rung}\nIDEA = "x"\n', encoding="utf-8"
        )
    monkeypatch.setattr(examples_curated, "FOLDER", tmp_path)
    assert examples_curated.catalog() == ("second_by_name", "first_by_name")
    assert examples_curated.card("first_by_name").title == "T of first_by_name."


@pytest.mark.parametrize("example_id", LADDER)
def test_the_docstring_has_every_section_in_order(example_id: str) -> None:
    doc = ast.get_docstring(_tree(example_id)) or ""
    title, blank, *body = doc.splitlines()
    assert title.endswith(".")
    assert not blank
    heads = [match[1] for line in body if (match := re.match(r"([A-Z][a-z]+): ", line))]
    assert tuple(heads) == SECTIONS
    for text in re.split(r"^(?:%s): " % "|".join(SECTIONS), "\n".join(body), flags=re.M)[1:]:  # noqa: UP031
        assert text.strip()


@pytest.mark.parametrize("example_id", LADDER)
def test_the_file_reads_in_the_order_of_a_kernel_file(example_id: str) -> None:
    text = examples_curated.source(example_id)
    tree, lines = _tree(example_id), text.splitlines()
    order = [type(s).__name__ for s in tree.body[1:]]
    assert re.fullmatch(r"(Import )+(ImportFrom )+(Assign )+(FunctionDef )+Assign", " ".join(order))
    last = tree.body[-1]
    assert isinstance(last, ast.Assign)
    assert ast.unparse(last) == f"kernel = {example_id}"
    for function in (s for s in tree.body if isinstance(s, ast.FunctionDef)):
        assert ast.get_docstring(function)
        for arg in function.args.args:
            assert "  # (" in lines[arg.lineno - 1], f"{function.name}: {arg.arg} has no shape"


@pytest.mark.parametrize("example_id", LADDER)
def test_the_static_gate_accepts_it(example_id: str) -> None:
    report = static.check(examples_curated.source(example_id), filename=f"{example_id}.py")
    assert report.ok, report.findings


def test_every_primitive_is_shown() -> None:
    used: set[str] = set()
    for example_id in LADDER:
        imported = {
            alias.name
            for node in _tree(example_id).body
            if isinstance(node, ast.ImportFrom) and node.module == "coda.primitives"
            for alias in node.names
        }
        called = {node.id for node in ast.walk(_tree(example_id)) if isinstance(node, ast.Name)}
        assert imported <= called, f"{example_id} imports what it does not use"
        used |= imported
    assert set(NAMES) - used == set()
