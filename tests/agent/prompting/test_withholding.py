"""Withholding: nothing of a task's answer reaches its prompt, neither as text nor as a program, however short or whatever it is called.

The answer is the task's own example, every example that is withheld with it, and every kept kernel of the task. Two detectors read
the whole of what a model reads: `leaked_text` looks for lines and for bodies of functions, `leaked_programs` runs every block of Python
in it and looks for digests. What an allowed example says too is no leak: ingredients of a plan may be shown.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator

import pytest

import authored_kernels
import examples_curated
from agent import task
from agent.authoring import prepare
from agent.authoring.prepare import Prompt
from coda.errors import CodaError
from coda.kernel import Kernel, from_json

pytestmark = pytest.mark.null

TASKS = tuple(task.cards())
SHOWN = tuple(i for i in TASKS if i in examples_curated.catalog())
BLOCK = re.compile(r"^(`{3,})python\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def asked(id: str, *, show_own: bool = False) -> Prompt:
    return prepare.prepare(task.load(id), model="m", show_own=show_own)


def words(prompt: Prompt) -> str:
    """Everything that is sent before the first reply."""
    return f"{prompt.system}\n{prompt.task_text}"


def answers(id: str, withheld: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and source of everything that must not be seen."""
    yield from ((e, examples_curated.source(e)) for e in withheld)
    for kept in authored_kernels.catalog():
        if kept.task == id:
            yield kept.id, (kept.path / "kernel.py").read_text(encoding="utf-8")


def plain(text: str) -> str:
    """Without what a formatter may change, and without comments."""
    return re.sub(r"[\s\"'(),]+", "", re.sub(r"#.*", "", text))


def pieces(source: str) -> dict[str, str]:
    """Of a kernel file: its docstring, and the body of every function without its docstring."""
    module, lines = ast.parse(source), source.splitlines()
    found = {"the docstring": plain(ast.get_docstring(module) or "")}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            found[node.name] = plain("\n".join(lines[body[0].lineno - 1 : node.end_lineno]))
    return {name: text for name, text in found.items() if text}


def leaked_text(id: str, prompt: Prompt, withheld: Iterable[str]) -> list[str]:
    text = plain(words(prompt))
    allowed = {piece for example in prompt.shown.examples for piece in pieces(example.source).values()}
    return [
        f"{who}: {name}"
        for who, source in answers(id, withheld)
        for name, piece in pieces(source).items()
        if piece in text and piece not in allowed
    ]


@functools.cache
def programs_of(block: str) -> frozenset[str]:
    """Digests of every program that a block of Python makes, those inside a plan included; none of one that is no kernel."""
    space: dict[str, object] = {}
    try:
        exec(compile(block, "block.py", "exec"), space)
    except (CodaError, SyntaxError, NameError, TypeError):  # the guide shows mistakes, and pieces of files
        return frozenset()
    made = [value.program for value in space.values() if isinstance(value, Kernel)]
    return frozenset(p.digest for program in made for p in (program, *getattr(program, "programs", ())))


def leaked_programs(id: str, prompt: Prompt) -> list[str]:
    secret = {k.digest: k.id for k in authored_kernels.catalog() if k.task == id}
    if id in examples_curated.catalog():
        secret[examples_curated.load(id).program.digest] = id
    shown = {digest for _, block in BLOCK.findall(words(prompt)) for digest in programs_of(block)}
    return [who for digest, who in secret.items() if digest in shown]


@pytest.mark.parametrize("id", TASKS)
def test_no_text_of_an_answer_reaches_the_prompt(id: str) -> None:
    prompt = asked(id)
    assert (id in prompt.shown.withheld) == (id in examples_curated.catalog())
    assert leaked_text(id, prompt, prompt.shown.withheld) == []


@pytest.mark.parametrize("id", TASKS)
def test_no_program_with_the_digest_of_an_answer_reaches_the_prompt(id: str) -> None:
    assert leaked_programs(id, asked(id)) == []


@pytest.mark.parametrize("id", TASKS)
def test_every_round_is_asked_with_the_same_words(id: str) -> None:
    """So what holds of the first request holds of all: what comes behind it is the model's own and what the judge said of that."""
    prompt = asked(id)
    assert prompt.request([], 1).system == prompt.system
    assert prompt.request([], 1).task == prompt.task_text


# the detectors detect -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", SHOWN)
def test_an_example_that_is_shown_is_found_as_text_and_as_a_program(id: str) -> None:
    withheld, shown = asked(id).shown.withheld, asked(id, show_own=True)
    if id not in shown.shown.ids:
        pytest.skip("it does not fit into the budget")
    assert leaked_programs(id, shown) != []
    others = [e for e in shown.shown.examples if e.id not in withheld]
    seen = {piece for e in others for piece in pieces(e.source).values()}
    own = [piece for piece in pieces(examples_curated.source(id)).values() if piece not in seen]
    assert own, "something of it is its own"
    assert all(piece in plain(words(shown)) for piece in own)


def test_blocks_are_found_and_run() -> None:
    blocks = [block for _, block in BLOCK.findall(words(asked("rms_scale")))]
    made = [block for block in blocks if programs_of(block)]
    assert len(made) >= len(asked("rms_scale").shown.examples)
    for example in asked("rms_scale").shown.examples:
        assert example.program.digest in {digest for block in made for digest in programs_of(block)}, example.id


def test_another_spelling_of_the_same_program_is_found() -> None:
    """Renamed, reordered, with dead code: the digest is the program's."""
    source = examples_curated.source("rms_scale")
    spelled = source.replace("acc * rstd", "rstd * acc").replace("def rms_scale", "def other").replace("kernel = rms_scale", "kernel = other")  # fmt: skip
    assert "other" in spelled
    kept = next(k for k in authored_kernels.catalog() if k.task == "rms_scale")
    digests = programs_of(spelled) | programs_of(source)
    assert examples_curated.load("rms_scale").program.digest in digests
    assert from_json((kept.path / "program.json").read_text(encoding="utf-8")).program.digest == kept.digest
