"""The curated bank as text: ladder, cards, docstrings, vocabulary, and the judge's static gate. No tensors."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

import coda
import examples_curated
from agent import task as tasks
from agent.verify import static
from coda.primitives import NAMES, ColVector, Tile, pair, row_sum, unpair
from examples_curated import idioms, index

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
    "expected_improvement",
    "gemm_cross_entropy",
    "rms_cross_entropy",
    "softcap_cross_entropy",
    "policy_loss",
    "qk_norm_rope",
    "retention_gate",
    "mx_quantize",
    "expert_scores",
    "symlog_codes",
    "spectral_mask",
    "swiglu_backward",
    "gelu_backward",
    "rms_backward",
    "rope_backward",
    "residual_rms_linear",
    "lora_linear",
    "neighbour_softmax",
)
"""Simple first: maps, vectors and tiles (1 to 6), reductions (7 to 10), stateful transforms and the finisher (11 to 14),
segments (15 to 18), rounding in between (19), pairs of an operand and backward passes (20 to 24), plans (25 to 27)."""

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


def test_every_idiom_is_shown_and_every_example_shows_one() -> None:
    shown = {i: idioms.found(examples_curated.load(i).program) for i in LADDER}
    assert frozenset().union(*shown.values()) == set(idioms.IDIOMS)
    assert all(shown.values())


def test_an_idiom_is_found_in_the_graph_and_not_in_the_text() -> None:
    """The same formula under other names and in another order; and one without it."""

    @coda.epilogue
    def turned(acc: Any, t: Tile, f: ColVector) -> dict[str, Any]:  # type: ignore[valid-type]
        p, q = unpair(t)
        x, y = unpair(acc * f)
        return {"v": pair(x * p - q * y, q * x + y * p)}

    @coda.epilogue
    def swapped(acc: Any) -> dict[str, Any]:
        x, y = unpair(acc)
        return {"v": pair(y, x)}

    assert {"pair-rotation", "row-scale", "tile-beside", "column-pairs"} <= idioms.found(turned.program)
    assert idioms.found(swapped.program) == {"column-pairs"}


def test_a_statistic_passed_on_is_told_from_a_vector_that_was_there() -> None:
    @coda.epilogue
    def total(acc: Any) -> dict[str, Any]:
        return {"y": acc, "s": row_sum(acc)}

    @coda.epilogue
    def scaled(acc: Any, r: ColVector) -> dict[str, Any]:  # type: ignore[valid-type]
        return {"z": acc * r}

    @coda.plan
    def passed(x: Any, w: Any, v: Any) -> dict[str, Any]:
        t = total(x, w)
        return {"z": scaled(t.y, v, r=t.s).z}

    @coda.plan
    def given(x: Any, w: Any, v: Any, r: Any) -> dict[str, Any]:
        return {"z": scaled(total(x, w).y, v, r=r).z}

    assert "plan-statistic" in idioms.found(passed.program)
    assert "plan-statistic" not in idioms.found(given.program)
    assert "plan-repeated-gemm" not in idioms.found(passed.program)


def test_the_index_names_every_example_idiom_and_primitive() -> None:
    text = (examples_curated.FOLDER / "README.md").read_text(encoding="utf-8")
    for table in (index.ladder(), index.idiom_table(), index.primitive_table()):
        assert table in text, "run `make fix`"
        assert "none" not in table
    assert all(f"[`{i}`]({i}.py)" in index.ladder() for i in LADDER)
    assert all(f"| `{i}` |" in index.idiom_table() for i in idioms.IDIOMS)
    assert all(f"| `{name}` |" in index.primitive_table() for name in NAMES)
