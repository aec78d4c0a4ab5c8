"""The static gate: every rule with a file that breaks it and a neighbour that does not."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coda
from agent.verify import static
from agent.verify.static import MAX_BYTES, RULES, StaticReport, check

pytestmark = pytest.mark.null

HEAD = '"""Scaled accumulator."""\nimport math\n\nimport coda\nfrom coda.primitives import Tile, pair, row_sum, sigmoid, unpair\n\n'
FUNCTION = '@coda.epilogue\ndef kernel(acc, z: Tile):\n    """y = acc * z"""\n    return {"y": acc * z}\n'
HONEST = HEAD + FUNCTION


def body(statements: str, *, before: str = "") -> str:
    """A kernel file with these statements in the kernel."""
    inside = "".join(f"    {line}\n" for line in statements.splitlines())
    return f"{HEAD}{before}\n@coda.epilogue\ndef kernel(acc, z: Tile):\n{inside}    return {{'y': acc}}\n"


def rules(report: StaticReport) -> set[str]:
    return {finding.rule for finding in report.findings}


# rule, a file that breaks it, the nearest file that does not
CASES: list[tuple[str, str | bytes, str | bytes]] = [
    ("S001", HONEST.encode() + b"# \xff\n", HONEST.encode() + "# μ 📍\n".encode()),
    ("S001", HONEST + "# \udc9d\n", HONEST + "# μ\n"),
    ("S002", HONEST + "# \0\n", HONEST + "#\t\n"),
    ("S002", HONEST + "# \x1b[31m\n", HONEST + "# [31m\n"),
    ("S003", HONEST + "# \u202e reversed\n", HONEST + "# é\n"),
    ("S003", HONEST + "x = 'a\u200bb'\n", HONEST + "x = 'ab'\n"),
    ("S003", HONEST + "\ufeff", "\ufeff" + HONEST),
    ("S004", "# -*- coding: latin-1 -*-\n" + HONEST, "# -*- coding: utf-8 -*-\n" + HONEST),
    ("S005", HONEST + "#" * MAX_BYTES, HONEST + "#" * (MAX_BYTES - len(HONEST))),
    ("S006", HONEST + "X = " + "(" * 60 + "1" + ")" * 60 + "\n", HONEST + "X = " + "(" * 20 + "1" + ")" * 20 + "\n"),
    ("S006", HONEST + "X = " + "+".join("1" * 200) + "\n", HONEST + "X = " + "+".join("1" * 80) + "\n"),
    ("S006", HONEST + "X = [" + "1, " * 20001 + "]\n", HONEST + "X = [" + "1, " * 2000 + "]\n"),
    ("S007", HONEST + "def f(:\n", HONEST + "def f():\n    return 1\n"),
    ("S101", HONEST.replace("import math", "import os"), HONEST.replace("import math", "import math as m")),
    ("S101", HONEST.replace("import math", "import torch.nn.functional as F"), HONEST),
    (
        "S101",
        HONEST.replace("import math", "from . import other"),
        HONEST.replace("import math", "from math import pi"),
    ),
    (
        "S101",
        HONEST.replace("import math", "import coda.backends"),
        HONEST.replace("import math", "import coda.primitives"),
    ),
    ("S101", HONEST.replace("coda.primitives import", "coda.primitives.map import"), HONEST),
    ("S101", body("import math"), HONEST),
    (
        "S101",
        HONEST.replace("import math", "import __future__"),
        HONEST.replace("import math", "from __future__ import annotations"),
    ),
    ("S102", HONEST.replace("import Tile, pair, row_sum, sigmoid, unpair", "import *"), HONEST),
    ("S103", HONEST.replace("sigmoid", "sigmiod"), HONEST),
    ("S103", HEAD + "from coda import ops\n" + FUNCTION, HEAD + "from coda import primitives\n" + FUNCTION),
    ("S103", body("y = coda.ops.swiglu(acc)"), body("y = coda.primitives.sigmoid(acc)")),
    ("S103", HONEST + "X = math.tau2\n", HONEST + "X = math.tau\n"),
    ("S103", body("y = coda.primitives.value"), body("y = coda.primitives.exp(acc)")),
    ("S104", HONEST.replace('"""Scaled accumulator."""', ""), HONEST),
    ("S105", HONEST + "for i in range(3):\n    X = i\n", HONEST + "X = [i for i in range(3)]\n"),
    ("S105", HONEST + "if True:\n    X = 1\n", HONEST + "X = 1 if True else 2\n"),
    ("S105", HONEST + "sum([1])\n", HONEST + "X = sum([1])\n"),
    (
        "S106",
        HONEST.replace("def kernel", "def my_kernel"),
        HONEST.replace("def kernel", "def my_kernel") + "kernel = my_kernel\n",
    ),
    ("S107", HONEST + "kernel = kernel\n", HONEST + "other = kernel\n"),
    (
        "S107",
        HONEST + "def f():\n    return 1\ndef f():\n    return 2\n",
        HONEST + "def f():\n    return 1\ndef g():\n    return 2\n",
    ),
    ("S108", HEAD + "kernel = 3\n", HEAD + FUNCTION.replace("def kernel", "def f") + "g = f\nkernel = g\n"),
    ("S108", HONEST.replace("@coda.epilogue\n", ""), HONEST),
    ("S109", HONEST.replace("@coda.epilogue", "@staticmethod"), HONEST.replace("@coda.epilogue", "@coda.pointwise")),
    ("S109", HONEST.replace("@coda.epilogue", "@coda.matmul"), HONEST.replace("@coda.epilogue", "@coda.plan")),
    ("S109", body("@coda.epilogue\ndef inner(acc):\n    return acc"), body("def inner(acc):\n    return acc")),
    (
        "S110",
        HONEST.replace("@coda.epilogue", "@coda.epilogue(True)"),
        HONEST.replace("@coda.epilogue", "@coda.epilogue(fast_math=True)"),
    ),
    (
        "S110",
        HONEST.replace("@coda.epilogue", "@coda.epilogue(**{})"),
        HONEST.replace("@coda.epilogue", "@coda.epilogue()"),
    ),
    (
        "S111",
        HONEST.replace("@coda.epilogue", '@coda.epilogue(name="x")'),
        HONEST.replace("@coda.epilogue", "@coda.epilogue(fast_math=False)"),
    ),
    (
        "S111",
        HONEST.replace("@coda.epilogue", "@coda.plan(fast_math=True)"),
        HONEST.replace("@coda.epilogue", "@coda.plan"),
    ),
    ("S201", HEAD + "class A:\n    pass\n" + FUNCTION, HONEST),
    ("S202", body("try:\n    y = acc\nexcept ValueError:\n    y = z"), body("y = acc")),
    ("S202", body("raise ValueError"), body("assert 1 == 1, 'shape'")),
    ("S203", body("with open('f') as f:\n    pass"), body("y = 1")),
    ("S204", body("global X\nX = 1", before="X = 0"), body("X = 1", before="X = 0")),
    ("S205", body("f = lambda v: v"), body("def f(v):\n    return v")),
    ("S206", body("yield acc"), body("y = [v for v in (acc, z)]")),
    ("S206", HEAD + "async def f():\n    return 1\n" + FUNCTION, HEAD + "def f():\n    return 1\n" + FUNCTION),
    ("S207", body("y = (w := acc) * w"), body("w = acc\ny = w * w")),
    ("S208", body("while True:\n    pass"), body("for i in range(3):\n    pass")),
    ("S209", body("y = 1\ndel y"), body("y = 1\ny = 2")),
    ("S209", body("match 1:\n    case 1:\n        pass"), body("if 1 == 1:\n    pass")),
    ("S210", body("y = acc @ z"), body("y = acc * z")),
    ("S210", body("y = acc\ny @= z"), body("y = acc\ny *= z")),
    ("S211", body("y = {1, 2}"), body("y = (1, 2)")),
    ("S211", body("y = {v for v in (1, 2)}"), body("y = {v: v for v in (1, 2)}")),
    ("S212", HONEST.replace("z: Tile", "z: 'Tile'"), HONEST.replace("z: Tile", "z: Tile(width=1)")),
    (
        "S212",
        HONEST + "def g(z: 'int'):\n    return z\n",
        HONEST.replace("z: Tile", "z: ColVector(dtype='int')").replace("import Tile", "import ColVector, Tile"),
    ),
    ("S212", HONEST + "X: 'int' = 1\n", HONEST + "X: int = 1\n"),
    ("S301", body("y = __import__('os')"), body("_y = 1")),
    ("S301", body("__class__ = 1"), body("_ = 1")),
    ("S301", HONEST + "X = __file__\n", HONEST + "file = 'x'\n"),
    ("S302", body("y = eval('acc')"), body("y = abs(-1)")),
    ("S302", body("y = getattr(acc, 'mat' + 'mul')"), body("y = max(1, 2)")),
    ("S302", body("print(acc)"), body("y = len((acc, z))")),
    (
        "S302",
        HEAD + "def f(open):\n    return open\nX = open('f')\n" + FUNCTION,
        HEAD + "def f(open):\n    return open\n" + FUNCTION,
    ),
    ("S302", HONEST + "X = [open for open in open('f')]\n", HONEST + "X = [open for open in (1, 2)]\n"),
    ("S302", HONEST + "def f(x=open):\n    return x\n", HONEST + "def f(x=abs):\n    return x\n"),
    ("S302", HONEST.replace("z: Tile", "z: Tile, n: type(1)"), HONEST.replace("z: Tile", "z: Tile, n: int = 1")),
    ("S303", body("y = exp(acc)"), body("y = exp(acc)").replace("Tile, pair", "Tile, exp, pair")),
    ("S304", body("y = acc.__class__"), body("y = acc.dtype")),
    ("S304", body("y = acc._graph"), body("y = acc.graph")),
    ("S304", body("y = '{0.x}'.format(acc)"), body("y = f'h{1}'")),
    ("S304", body("y = f'{acc.__class__}'"), body("y = f'{1:03d}'")),
    ("S304", body("y = (v for v in ()).gi_frame"), body("y = tuple(v for v in ())")),
    ("S305", body("coda.epilogue = 1"), body("y = {}\ny['a'] = 1")),
    ("S305", body("for acc.x in (1, 2):\n    pass"), body("for x in (1, 2):\n    pass")),
    ("S306", body("y = math"), body("y = math.pi")),
    ("S306", body("y = coda.primitives"), body("y = coda.primitives.sigmoid")),
    ("S306", body("y = [coda]"), body("y = [1]")),
]


@pytest.mark.parametrize(("rule", "bad", "good"), CASES, ids=[f"{rule}-{i}" for i, (rule, _, _) in enumerate(CASES)])
def test_each_rule_refuses_its_case_and_passes_the_neighbour(rule: str, bad: str | bytes, good: str | bytes) -> None:
    report = check(bad)
    assert rule in rules(report), report.findings
    assert report.status == ("POLICY" if any(RULES[found] == "POLICY" for found in rules(report)) else RULES[rule])
    assert rule not in rules(check(good)), check(good).findings


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in 3.12")
def test_type_parameters_are_refused() -> None:
    assert "S209" in rules(check(HONEST + "def f[T](x: T):\n    return x\n"))


def test_neighbours_pass_outright_where_they_are_whole_files() -> None:
    clean = [good for rule, _, good in CASES if not rule.startswith("S10") and check(good).ok]
    assert len(clean) > 45


def test_every_rule_has_a_case_and_a_row_in_the_table() -> None:
    assert {rule for rule, _, _ in CASES} == set(RULES)
    rows = dict(re.findall(r"^\| (S\d+) \| (\w+) \|", static.__doc__ or "", re.MULTILINE))
    assert rows == RULES


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        ('@coda.epilogue(name="x")', "@coda.epilogue takes only fast_math=…, not name="),
        (
            "@coda.pointwise(fastmath=True)",
            "@coda.pointwise takes only fast_math=…, not fastmath=; did you mean fast_math?",
        ),
        ("@coda.plan(fast_math=True)", "@coda.plan takes no keywords, not fast_math="),
        ("@coda.plan()", "@coda.plan is written without parentheses"),
    ],
)
def test_a_keyword_that_a_decorator_lacks_is_an_honest_mistake(decorator: str, message: str) -> None:
    report = check(HONEST.replace("@coda.epilogue", decorator))
    assert report.status == "COMPILE_ERROR"
    assert [(f.rule, f.message) for f in report.findings] == [("S111", message)]


def test_a_decorators_keywords_are_those_that_it_has() -> None:
    """Also under another name."""
    from agent.verify.vocabulary import DECORATOR_OPTIONS, DECORATORS

    assert DECORATOR_OPTIONS.keys() == set(DECORATORS)
    for name, options in DECORATOR_OPTIONS.items():
        parameters = inspect.signature(getattr(coda, name)).parameters.values()
        assert tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) == options
    renamed = HONEST.replace("import coda\n", "import coda\nfrom coda import epilogue as e\n").replace(
        "@coda.epilogue", "@e(x=1)"
    )
    assert "S111" in rules(check(renamed))


def test_an_honest_file_of_every_shape_passes() -> None:
    source = '''# comment first
"""SwiGLU backward with two helpers."""
from __future__ import annotations

import math
import coda
from coda import plan
from coda import primitives as P
from coda.primitives import ColVector, RowVector, Tile, pair, row_sum, sigmoid as sig, unpair

LOG2E, HALF = 1 / math.log(2), 0.5
SCALE: float = 1 / math.sqrt(64)
NAMES = tuple(f"h{i}" for i in range(2))


def _gate(g, *, scale=SCALE):
    """Helper."""
    def inner(v):
        return v * HALF
    return inner(sig(g)) if scale > 0 else g


@coda.epilogue(fast_math=True)
def swiglu_backward(acc, z: Tile(width=2), rstd: ColVector, gamma: RowVector, *, eps: float = 1e-6, n: int = 2):
    """dZ."""
    g, u = unpair(z)
    outs = {name: _gate(g) for name in NAMES}
    for i in range(n):
        if i % 2 == 0 and i >= 0:
            outs[f"s{i}"] = row_sum(g * u + i)
    return {"dz": pair(g, u), **outs}


@plan
def whole(x, w, *, eps: float = 1e-6):
    r = swiglu_backward(x[:, 0:128], w.mT, z=x.view(1, 2), eps=eps)
    first, *rest = [r.dz, r.h0]
    return {"y": coda.matmul(first, w), "n": x.rows + P.exp(x.columns)}


kernel = whole
'''
    report = check(source)
    assert report.findings == ()
    assert report.status == "PASS"
    assert report.source == source


def test_str_and_bytes_and_a_byte_order_mark_are_the_same_file() -> None:
    plain, data, marked = check(HONEST), check(HONEST.encode()), check(b"\xef\xbb\xbf" + HONEST.encode())
    assert plain == data == marked
    assert plain.ok
    assert not marked.source.startswith("\ufeff")


def test_messages_say_what_to_change() -> None:
    named = check(HONEST.replace("def kernel", "def my_kernel")).findings[0]
    assert "add `kernel = my_kernel`" in named.message
    two = HONEST.replace("def kernel", "def one") + FUNCTION.replace("def kernel", "def two")
    assert "kernel = one or two" in check(two).findings[0].message
    assert "decorate f" in check(HEAD + "def f(acc):\n    return acc\n").findings[0].message
    assert "did you mean sigmoid" in check(HONEST.replace("sigmoid", "sigmiod")).findings[0].message
    missing = check(body("y = exp(acc)")).findings[0]
    assert "from coda.primitives import exp" in missing.message
    assert missing.line == 10
    assert "coda.matmul(a, b) in a @coda.plan" in check(body("y = acc @ z")).findings[0].message
    assert (
        "backends generate the device code" in check(HONEST.replace("import math", "import torch")).findings[0].message
    )


def test_a_syntax_error_has_its_line_and_never_a_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    (finding,) = check(HONEST + "def f(:\n").findings
    assert (finding.rule, finding.line) == ("S007", len(HONEST.splitlines()) + 1)


DEEP = {
    "brackets": "X = " + "(" * 20_000,
    "closed brackets": "X = " + "(" * 10_000 + ")" * 10_000,
    "sum": "X = " + "+".join("1" * 20_000),
    "signs": "X = " + "-" * 50_000 + "1",
    "not": "X = " + "not " * 15_000 + "1",
    "attributes": "X = a" + ".b" * 20_000,
    "calls": "X = a" + "()" * 20_000,
    "subscripts": "X = a" + "[0]" * 20_000,
    "powers": "X = " + "**".join("1" * 20_000),
    "comparisons": "X = " + "<".join("1" * 20_000),
    "conditionals": "X = " + "1 if 1 else " * 5_000 + "1",
    "lambdas": "X = " + "lambda:" * 9_000 + "1",
    "f-strings": "X = " + "f'{" * 5_000,
    "blocks": "".join(" " * i + "if 1:\n" for i in range(300)),
    "elif": "if 1:\n  pass\n" + "elif 1:\n  pass\n" * 4_000,
    "digits": "X = " + "9" * 60_000,
    "stars": "X = " + "*" * 60_000,
    "backslashes": "X = " + "\\\n" * 30_000,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_or_odd_text_is_refused_quickly_and_never_raises(name: str) -> None:
    started = time.perf_counter()
    report = check('"""Deep."""\n' + DEEP[name])
    assert not report.ok
    assert report.findings
    assert time.perf_counter() - started < 3


def test_a_deep_recursion_limit_of_the_caller_does_not_let_deep_trees_in() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert rules(check(HONEST + "X = " + "+".join("1" * 3_000) + "\n")) == {"S006"}
    finally:
        sys.setrecursionlimit(limit)


def test_many_findings_are_cut() -> None:
    report = check(body("\n".join("eval(1)" for _ in range(100))))
    assert len(report.findings) == static.MAX_FINDINGS
    assert report.truncated


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=300))
def test_any_text_gets_a_report(text: str) -> None:
    assert check(text).status in ("POLICY", "COMPILE_ERROR")


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_get_a_report(data: bytes) -> None:
    assert check(data).status in ("POLICY", "COMPILE_ERROR")


TOKENS = [
    "acc",
    "z",
    "(",
    ")",
    ".",
    "__class__",
    "lambda",
    ":",
    "=",
    "\n",
    "    ",
    "coda",
    "eval",
    "{",
    "}",
    "'",
    "f'",
    "@",
    "if",
    "1",
]


STATEMENTS = [
    "x = acc * 2",
    "x = sigmoid(z)",
    "w = math.pi",
    "v = acc if 1 else z",
    "t = tuple(range(3))",
    "for i in range(2): x = acc",
    "x = acc.__class__",
    "e = eval",
    "x = eval('1')",
    "u = z._private",
    "f = f'{acc.__class__}'",
    "n = coda.__builtins__",
]


def test_nothing_that_passes_reads_a_dunder_or_an_unlisted_builtin() -> None:
    passed: set[str] = set()

    @settings(deadline=None, max_examples=400, derandomize=True)
    @given(
        st.lists(st.sampled_from(TOKENS), max_size=40).map(" ".join)
        | st.lists(st.sampled_from(STATEMENTS), max_size=4, unique=True).map("\n".join)
    )
    def search(text: str) -> None:
        report = check(body(text))
        if not report.ok:
            return
        passed.add(report.source)
        for node in ast.walk(ast.parse(report.source)):
            assert not (isinstance(node, ast.Attribute) and node.attr.startswith("_"))
            assert not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == "eval")

    search()
    assert len(passed) >= 20
