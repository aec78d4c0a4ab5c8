"""The extraction rule: the last block that parses and defines `kernel`, and a distinct message for each failure."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent.llm.extract import defines_kernel, read_reply, read_tool
from agent.llm.protocol import MAX_SOURCE_BYTES, Problem, Submission
from agent.verify import static

pytestmark = pytest.mark.null

GOOD = "import coda\n\n@coda.epilogue\ndef kernel(acc):\n    return {'y': acc}\n"
ALIAS = "import coda\n\n@coda.epilogue\ndef f(acc):\n    return {'y': acc}\n\nkernel = f\n"


def block(code: str, info: str = "python", mark: str = "```") -> str:
    return f"{mark}{info}\n{code}{mark}\n"


SHELL = block("pip install x\n", "bash")
USAGE = block("r = call(dy, w)\n")
BROKEN = block("kernel = (\n")

FOUND = {
    "one block": (block(GOOD), GOOD),
    "alias": (block(ALIAS), ALIAS),
    "no language": (block(GOOD, ""), GOOD),
    "tildes": (block(GOOD, mark="~~~"), GOOD),
    "draft, bash, prose, final": (
        f"First a draft:\n{block(ALIAS)}\nrun it\n{SHELL}\nFinally:\n{block(GOOD)}\nDone.",
        GOOD,
    ),
    "usage example after the kernel": (f"{block(GOOD)}\nUse it:\n{USAGE}", GOOD),
    "later block broken": (f"{block(GOOD)}\n{BROKEN}", GOOD),
    "a fence that does not close": (f"{block(ALIAS)}\n```bash\npip install x```\nFinally:\n{block(GOOD)}", GOOD),
    "draft closed, final not": (f"{block(ALIAS)}\nFinally:\n```python\n{GOOD}", GOOD),
    "only a closing fence": (f"{GOOD}```\n", GOOD),
    "never closed": (f"Here:\n```python\n{GOOD}", GOOD),
    "no fence at all": (GOOD, GOOD),
    "code on the fence line": ("```def kernel(acc): return acc\n```\n", "def kernel(acc): return acc\n"),
    "indented in a list": ("- so:\n" + "".join(f"    {x}\n" for x in block(GOOD).splitlines()), GOOD),
    "fence inside a docstring": (
        '```python\n"""Doc.\n\n```text\nx\n```\n"""\nkernel = 1\n```\n',
        '"""Doc.\n\n```text\nx\n```\n"""\nkernel = 1\n',
    ),
    "windows line ends": (block(GOOD).replace("\n", "\r\n"), GOOD),
    "non-ASCII": (block("# 📍 μ\nkernel = 1\n"), "# 📍 μ\nkernel = 1\n"),
}


@pytest.mark.parametrize("name", FOUND)
def test_finds_the_kernel_whole(name: str) -> None:
    text, code = FOUND[name]
    found = read_reply(text)
    assert isinstance(found, Submission), found
    assert found.source.strip("\n") == code.strip("\n")
    assert defines_kernel(found.source)


MISSED = {
    "nothing": ("", "empty_reply", "empty"),
    "blank": (" \n\t\n", "empty_reply", "empty"),
    "prose": ("Sorry, I cannot do that.", "no_code", "no code"),
    "only a shell block": (block("ls\n", "bash"), "no_code", "no code"),
    "only an unclosed shell block": ("```bash\nls", "no_code", "no code"),
    "other name": (block("def swiglu(acc):\n    return acc\n"), "no_kernel", "`kernel`"),
    "kernel only read": (block("kernel.x = 1\nprint(kernel)\n"), "no_kernel", "`kernel`"),
    "kernel inside a function": (block("def f():\n    kernel = 1\n"), "no_kernel", "`kernel`"),
    "annotation without value": (block("kernel: int\n"), "no_kernel", "`kernel`"),
    "does not parse": (block("x = 1\ndef kernel(:\n    pass\n"), "syntax_error", "line 2"),
    "lone surrogate": (block("x = 1\nkernel = '\udc9d'\n"), "invalid_text", "Line 2"),
    "too large": (block("kernel = 1\n#" + "x" * MAX_SOURCE_BYTES + "\n"), "too_large", str(MAX_SOURCE_BYTES)),
    "nested too deep": (block("kernel = " + "-" * 20_000 + "1\n"), "syntax_error", "parse"),
    "null byte": (block("kernel = '\0'\n"), "syntax_error", "parse"),
}


@pytest.mark.parametrize("name", MISSED)
def test_each_failure_has_its_own_message(name: str) -> None:
    text, kind, said = MISSED[name]
    problem = read_reply(text)
    assert isinstance(problem, Problem)
    assert problem.kind == kind
    assert said in problem.message
    problem.model_dump_json()


def test_failures_are_told_apart() -> None:
    kinds = ["nothing", "prose", "other name", "does not parse"]
    messages = [p.message for p in (read_reply(MISSED[k][0]) for k in kinds) if isinstance(p, Problem)]
    assert len(set(messages)) == 4


def test_prose_becomes_the_rationale_without_the_code() -> None:
    found = read_reply(f"Delays the scale.\n{block(GOOD)}\nBye.")
    assert isinstance(found, Submission)
    assert "Delays the scale." in found.rationale
    assert "Bye." in found.rationale
    assert "coda" not in found.rationale


def test_nothing_is_taken_from_a_truncated_reply() -> None:
    problem = read_reply(f"draft:\n{block(GOOD)}\nbetter:\n```python\nimport co", truncated=True)
    assert isinstance(problem, Problem)
    assert problem.kind == "truncated"


def test_the_largest_source_is_the_largest_that_the_judge_reads() -> None:
    """Providers and judge know nothing of each other: two figures, held equal here."""
    assert MAX_SOURCE_BYTES == static.MAX_BYTES


def test_a_reply_full_of_fences_is_bounded() -> None:
    text = "```python\nkernel = (\n" * 20_000
    begun = time.perf_counter()
    assert isinstance(read_reply(text), Problem)
    assert time.perf_counter() - begun < 10


def test_tool_source_is_taken_as_it_is_but_for_one_fence() -> None:
    assert read_tool("not python (", "why", None) == Submission(source="not python (", rationale="why")
    fenced = read_tool(block(GOOD), "", {"tile_m": 128})
    assert fenced == Submission(source=GOOD, schedule={"tile_m": 128})
    blank = read_tool("  ", "", None)
    assert isinstance(blank, Problem)
    assert blank.kind == "empty_reply"
    surrogate = read_tool("kernel = '\udc9d'", "\udc9d", None)
    assert isinstance(surrogate, Problem)
    assert surrogate.kind == "invalid_text"


FENCES = ["```", "```python", "````", "~~~", "  ```", "```bash", "```def kernel(): pass"]
LINES = ["prose", "kernel = 1", "def kernel(a):", "    return a", '"""', "x = (", "import coda", "kernel", "# 📍"]
PIECES = st.sampled_from([*FENCES, *LINES, "", "\udc9d", "\0", "\r"])


@given(st.lists(PIECES, max_size=14))
@hypothesis_settings(deadline=None, max_examples=300)
def test_any_reply_has_an_outcome_property(pieces: list[str]) -> None:
    """Never an exception; what is accepted is a stretch of the reply; every outcome can be written down."""
    text = "\n".join(pieces)
    outcome = read_reply(text)
    outcome.model_dump_json().encode()
    if isinstance(outcome, Submission):
        assert defines_kernel(outcome.source)
        lines = [line.strip().replace("```def", "def") for line in outcome.source.strip("\n").split("\n")]
        assert "\n".join(lines) in "\n".join(piece.strip().replace("```def", "def") for piece in pieces)
