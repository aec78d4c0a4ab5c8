"""Gate `static`: read a candidate's source without running any of it.

`check` decodes, bounds and parses the text here, then hands the tree to `static_rules.py`. Everything that could hurt
the judge's own process comes first: size, encoding, nesting (before anything recursive looks at the text). What passes is
run by `tracer.py` in a process of its own, whose walls do not rely on this gate; this gate is what makes a refusal
precise, cheap and explainable.

Two status words. `COMPILE_ERROR`: not a kernel file, an honest mistake. `POLICY`: reaches for something that a kernel
file may not use. With findings of both, the report says `POLICY`.

| rule | status | refuses |
|---|---|---|
| S001 | COMPILE_ERROR | bytes that are not UTF-8, lone surrogates |
| S002 | COMPILE_ERROR | NUL and other control characters |
| S003 | POLICY | invisible and direction-changing characters: a reviewer must see what runs |
| S004 | POLICY | an encoding declaration other than UTF-8 |
| S005 | POLICY | more than 64 kB |
| S006 | POLICY | nesting or a tree beyond what a kernel needs |
| S007 | COMPILE_ERROR | a syntax error |
| S101 | POLICY | imports other than `coda`, `coda.primitives`, `math`, or not at the top of the file |
| S102 | POLICY | `import *` |
| S103 | COMPILE_ERROR | a name that `coda`, `coda.primitives` or `math` does not offer to kernel files |
| S104 | COMPILE_ERROR | no module docstring |
| S105 | COMPILE_ERROR | top-level statements other than docstring, imports, constants and functions |
| S106 | COMPILE_ERROR | no `kernel` |
| S107 | COMPILE_ERROR | `kernel`, or another top-level function, bound more than once |
| S108 | COMPILE_ERROR | a `kernel` that is not a decorated function |
| S109 | POLICY | a decorator other than `coda.epilogue`, `coda.pointwise`, `coda.plan`; on a nested function, any |
| S110 | POLICY | decorator arguments other than keywords with literal values |
| S111 | COMPILE_ERROR | a keyword that the decorator does not have |
| S201 | POLICY | classes |
| S202 | POLICY | `try`, `raise` |
| S203 | POLICY | `with` |
| S204 | POLICY | `global`, `nonlocal` |
| S205 | POLICY | `lambda`: a helper function has a name that the review can use |
| S206 | POLICY | `async`, `await`, `yield` |
| S207 | COMPILE_ERROR | `:=`: a binding hidden in an expression |
| S208 | COMPILE_ERROR | `while`: the steps of a program are counted by a `for` over a `range` |
| S209 | POLICY | `del`, `match`, type aliases and type parameters |
| S210 | POLICY | `@` as an operator: the GEMM is the decorator's, a second one is a plan's `coda.matmul` |
| S211 | COMPILE_ERROR | sets: their order is not defined, so neither is the program |
| S212 | POLICY | text in an annotation: it would be evaluated |
| S301 | POLICY | names with two leading underscores |
| S302 | POLICY | builtins outside the list of `vocabulary.py` |
| S303 | COMPILE_ERROR | names that nothing defines |
| S304 | POLICY | attributes with a leading underscore, and those that lead out of the vocabulary |
| S305 | POLICY | assigning to an attribute |
| S306 | POLICY | a module used as a value |
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
import unicodedata
import warnings
from typing import Literal

from .process import Frozen
from .static_rules import RULES, Finding, check_tree

MAX_BYTES = 64 * 1024
MAX_BRACKETS = 50
"""Nesting of brackets, counted on tokens before the parser sees them."""
MAX_DEPTH = 100
"""Depth of the syntax tree. A sum of 90 terms is 90 deep."""
MAX_NODES = 20_000
MAX_FINDINGS = 50

_INVISIBLE = frozenset("\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u3164\ufeff\uffa0")
_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "RULES", "Finding", "StaticReport", "check"]


class StaticReport(Frozen):
    """What the gate found. `status` is PASS exactly when there are no findings."""

    filename: str
    status: Literal["PASS", "COMPILE_ERROR", "POLICY"]
    findings: tuple[Finding, ...] = ()
    truncated: bool = False
    """More findings were left out."""
    source: str = ""
    """The text as it was judged (decoded, without a byte-order mark); empty when it could not be decoded."""
    sha256: str
    """Of that text in UTF-8, or of the raw bytes."""

    @property
    def ok(self) -> bool:
        """Whether the candidate may be traced."""
        return self.status == "PASS"


class Refused(Exception):
    """A finding after which nothing further can be looked at."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def check(source: str | bytes, *, filename: str = "kernel.py") -> StaticReport:
    """Judge the text of a kernel file. Never raises for anything in it, and never runs any of it."""
    text, findings = "", []
    try:
        text = _decode(source)
        findings = _characters(text)
        findings += check_tree(_parse(text), text)
    except Refused as refused:
        findings.append(refused.finding)
    findings = sorted(set(findings), key=lambda finding: (finding.line, finding.column, finding.rule))
    words = {finding.status for finding in findings}
    judged = text or source
    raw = judged if isinstance(judged, bytes) else judged.encode("utf-8", "surrogatepass")
    return StaticReport(
        filename=filename,
        status="POLICY" if "POLICY" in words else "COMPILE_ERROR" if words else "PASS",
        findings=tuple(findings[:MAX_FINDINGS]),
        truncated=len(findings) > MAX_FINDINGS,
        source=text,
        sha256=hashlib.sha256(raw).hexdigest(),
    )


def _decode(source: str | bytes) -> str:
    """The text, without a leading byte-order mark."""
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise Refused(Finding.of("S005", 1, 0, f"the file has {size} bytes: keep it below {MAX_BYTES}"))
    try:
        text = source.decode("utf-8") if isinstance(source, bytes) else source
        text.encode("utf-8")
    except UnicodeDecodeError as error:
        line = source[: error.start].count(b"\n") + 1 if isinstance(source, bytes) else 1
        raise Refused(Finding.of("S001", line, 0, f"byte {error.start} is not UTF-8: save the file as UTF-8")) from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise Refused(Finding.of("S001", line, 0, "a lone surrogate is not a character: remove it")) from None
    return text.removeprefix("\ufeff")


def _characters(text: str) -> list[Finding]:
    """Rules on single characters and on the encoding declaration."""
    findings = []
    for number, line in enumerate(text.split("\n"), 1):
        for column, character in enumerate(line):
            if (character < " " and character not in "\t\r\f") or character == "\x7f":
                raise Refused(
                    Finding.of("S002", number, column, f"control character U+{ord(character):04X}: remove it")
                )
            if character > "\x7f" and (
                unicodedata.category(character) in ("Cf", "Cc", "Zl", "Zp") or character in _INVISIBLE
            ):
                message = f"invisible character U+{ord(character):04X}: remove it, a reviewer must see what runs"
                findings.append(Finding.of("S003", number, column, message))
        cookie = _COOKIE.match(line) if number <= 2 else None
        if cookie and cookie.group(1).lower().replace("_", "-") not in ("utf-8", "utf8"):
            findings.append(Finding.of("S004", number, 0, "kernel files are UTF-8: remove the encoding declaration"))
    return findings


def _parse(text: str) -> ast.Module:
    """The syntax tree, bounded before and after parsing."""
    _bound_brackets(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError):
        raise Refused(Finding.of("S006", 1, 0, "an expression is nested too deeply: split it into steps")) from None
    except (SyntaxError, ValueError) as error:
        line, column = getattr(error, "lineno", None) or 1, max((getattr(error, "offset", None) or 1) - 1, 0)
        reason = getattr(error, "msg", None) or str(error)
        raise Refused(Finding.of("S007", line, column, f"not valid Python: {reason}")) from None
    _bound_tree(tree)
    return tree


def _bound_brackets(text: str) -> None:
    """Nesting of brackets, on tokens: an iterative look at what would be recursion in the parser."""
    level = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.OP and token.string in "([{":
                level += 1
                if level > MAX_BRACKETS:
                    message = f"brackets are nested deeper than {MAX_BRACKETS}: split the expression into steps"
                    raise Refused(Finding.of("S006", *token.start, message))
            elif token.type == tokenize.OP and token.string in ")]}":
                level = max(level - 1, 0)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return  # the parser says it better


def _bound_tree(tree: ast.Module) -> None:
    """Depth and size of the tree, without recursion."""
    count = 0
    waiting: list[tuple[ast.AST, int, int]] = [(tree, 0, 1)]
    while waiting:
        node, depth, line = waiting.pop()
        line = getattr(node, "lineno", line)
        count += 1
        if depth > MAX_DEPTH:
            raise Refused(
                Finding.of("S006", line, 0, f"nested deeper than {MAX_DEPTH}: split it into steps or helpers")
            )
        if count > MAX_NODES:
            raise Refused(
                Finding.of("S006", line, 0, f"more than {MAX_NODES} syntax nodes: a kernel is a short function")
            )
        waiting.extend((child, depth + 1, line) for child in ast.iter_child_nodes(node))
