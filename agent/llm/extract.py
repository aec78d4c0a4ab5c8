"""Finds the kernel in a reply that is plain text.

The rule: the *last* fenced block that parses as Python and defines `kernel` (an assignment or a `def` at the top
level). Earlier blocks are drafts, blocks in other languages are talk. Models also send a fence that was never opened
or never closed, code on the line of the fence, a docstring that holds fences, or no fence at all; each of these is
read the way its author meant it, because a candidate text only counts if the whole of it parses. The code itself is
never altered, beyond removing an indentation that all its lines share.

When nothing is found, the four ways to fail stay apart (empty, no code, no `kernel`, does not parse), since the model
can only mend what it is told. Nothing is executed here. Neighbours: `protocol` holds `Problem` and the size limit;
the providers call `read_reply` (text) or `read_tool` (a tool call).
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .protocol import MAX_SOURCE_BYTES, Problem, ProblemKind, Submission, clean_text

MAX_FENCES = 200
"""Fence lines looked at; a text with more is searched from its end."""

MAX_READ = 4_000_000
"""Characters of candidate code parsed in one reply, about four seconds' worth."""

_FENCE = re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^\n]*?)[ \t]*$")
_NOT_PYTHON = frozenset([
    "bash", "sh", "shell", "zsh", "console", "text", "txt", "json", "yaml", "toml", "diff",
    "c", "cpp", "c++", "cuda", "cu", "ptx", "asm", "markdown", "md", "latex", "tex",
])  # fmt: skip


class _Fence(NamedTuple):
    line: int
    mark: str
    info: str

    def closes(self, opening: _Fence) -> bool:
        return not self.info and self.mark[0] == opening.mark[0] and len(self.mark) >= len(opening.mark)


class _Block(NamedTuple):
    code: str
    start: int
    end: int
    """Lines of the reply that the block covers, fences included."""
    info: str


def read_reply(text: str, *, truncated: bool = False) -> Submission | Problem:
    """The submission in a text reply, or the problem with it.

    Args:
        text: The reply.
        truncated: It was cut off by a length limit. Nothing is taken from it then: a block that is complete may be the
            draft that the missing part was about to replace.
    """
    if truncated:
        return Problem(
            kind="truncated",
            message="The reply was cut off by the length limit. Answer shorter: the kernel first, little prose.",
        )
    if not text.strip():
        return Problem(
            kind="empty_reply", message="The reply was empty. Send the kernel file as one fenced Python block."
        )
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    for block in _affordable(_candidates(lines)):
        if defines_kernel(block.code):
            return _submission(lines, block)
    return _explain(text, list(_blocks(lines)))


def read_tool(source: str, rationale: str, schedule: dict[str, object] | None) -> Submission | Problem:
    """The submission in a tool call. The source is taken as it is, but for one fence around the whole of it."""
    if not source.strip():
        return Problem(kind="empty_reply", message="`source` was empty. Put the whole kernel file into it.")
    stripped = source.strip().split("\n")
    first, last = _FENCE.match(stripped[0]), _FENCE.match(stripped[-1])
    if len(stripped) > 2 and first and last and not last["info"]:
        source = "\n".join(stripped[1:-1]) + "\n"
    return _bad_text(source) or Submission(source=source, rationale=clean_text(rationale), schedule=schedule)


def defines_kernel(source: str) -> bool:
    """Whether the source parses and defines `kernel` at its top level. Executes nothing."""
    if "kernel" not in source or len(source) > 4 * MAX_SOURCE_BYTES:
        return False
    try:
        module = _parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(_binds_kernel(statement) for statement in module.body)


def _affordable(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """The blocks until `MAX_READ` characters were handed out: a reply full of fences must not cost minutes."""
    left = MAX_READ
    for block in blocks:
        left -= len(block.code)
        if left < 0:
            return
        yield block


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Fenced blocks in the order of the text, as Markdown reads them."""
    opening: _Fence | None = None
    for fence in _fences(lines):
        if opening is None:
            opening = fence
        elif fence.closes(opening):
            yield _block(lines, opening.line, fence.line, opening.info)
            opening = None


def _candidates(lines: list[str]) -> Iterator[_Block]:
    """Every stretch of the reply that its author may have meant as the kernel, the latest end first, then the shortest.

    Markdown's own reading is among them but is not trusted alone: one fence that does not close, or one inside a
    docstring, and it pairs up the wrong ones. A wrong stretch holds prose or half a docstring, and does not parse.
    """
    fences = _fences(lines)
    for closing in [None, *reversed(fences)]:
        end = len(lines) if closing is None else closing.line
        for opening in reversed(fences):
            if opening.line < end and (closing is None or closing.closes(opening)):
                yield _block(lines, opening.line, end, opening.info)
                if opening.info:  # code on the fence's own line
                    yield _block(lines, opening.line, end, opening.info, with_info=True)
    yield _block(lines, -1, fences[0].line if fences else len(lines), "")  # never opened, or no fence at all


def _fences(lines: list[str]) -> list[_Fence]:
    found = [
        _Fence(number, match["mark"], match["info"])
        for number, line in enumerate(lines)
        if (match := _FENCE.match(line.rstrip("\r"))) and "`" not in match["info"]
    ]
    return found[-MAX_FENCES:]


def _block(lines: list[str], opening: int, closing: int, info: str, *, with_info: bool = False) -> _Block:
    body = [info, *lines[opening + 1 : closing]] if with_info else lines[opening + 1 : closing]
    code = "\n".join(body).rstrip("\n") + "\n"
    if code.lstrip("\n")[:1] in (" ", "\t"):  # a block inside a list item
        code = textwrap.dedent(code)
    return _Block(code, max(opening, 0), closing, "" if with_info else info)


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "invalid escape sequence" in a candidate is not ours to print
        return ast.parse(source)


def _binds_kernel(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef(name="kernel"):
            return True
        case ast.Assign(targets=targets):
            return any(
                isinstance(n, ast.Name) and n.id == "kernel" and isinstance(n.ctx, ast.Store)
                for t in targets
                for n in ast.walk(t)
            )
        case ast.AnnAssign(target=ast.Name(id="kernel"), value=value):
            return value is not None
        case _:
            return False


def _bad_text(source: str) -> Problem | None:
    """Text that no UTF-8 file could hold, or that is too large."""
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        return Problem(
            kind="invalid_text",
            message=f"Line {line} of the kernel holds a lone surrogate (\\u{ord(source[error.start]):04x}), "
            "which is not valid Unicode. Write plain characters.",
        )
    if size > MAX_SOURCE_BYTES:
        return Problem(
            kind="too_large", message=f"The kernel is {size} bytes; at most {MAX_SOURCE_BYTES} are accepted."
        )
    return None


def _submission(lines: list[str], block: _Block) -> Submission | Problem:
    prose = "\n".join(lines[: block.start] + lines[block.end + 1 :]).strip()
    return _bad_text(block.code) or Submission(source=block.code, rationale=clean_text(prose)[:4000])


def _explain(text: str, blocks: list[_Block]) -> Problem:
    """Why no block was taken. Speaks of the last block that claims to be Python, which is what the author meant."""
    python = [b for b in blocks if _may_be_python(b.info) and b.code.strip()]
    meant = python[-1].code if python else _unfenced_code(text)
    if meant is None:
        return _problem(
            "no_code", "The reply holds prose but no code. Send the kernel file as one fenced Python block."
        )
    if bad := _bad_text(meant):
        return bad
    try:
        _parse(meant)
    except SyntaxError as error:
        shown = (error.text or "").strip()[:120]
        return _problem(
            "syntax_error", f"The last Python block does not parse: line {error.lineno}: {error.msg}: {shown!r}."
        )
    except (ValueError, RecursionError, MemoryError) as error:
        return _problem("syntax_error", f"The last Python block does not parse: {type(error).__name__}: {error}.")
    return _problem(
        "no_kernel",
        "The code does not define `kernel`. Name the decorated function `kernel`, or end with `kernel = <its name>`.",
    )


def _may_be_python(info: str) -> bool:
    return info.split(" ")[0].lower() not in _NOT_PYTHON


def _unfenced_code(text: str) -> str | None:
    """The text after an unmatched fence, or a reply that is code without any fence; None for prose."""
    lines = text.split("\n")
    fences = _fences(lines)
    if len(fences) == 1 and _may_be_python(fences[0].info):
        after = _block(lines, fences[0].line, len(lines), "").code
        return after if after.strip() else _block(lines, -1, fences[0].line, "").code
    if not fences and re.search(r"^(import coda|from coda|@coda\.|def \w+\()", text, re.MULTILINE):
        return text
    return None


def _problem(kind: ProblemKind, message: str) -> Problem:
    return Problem(kind=kind, message=clean_text(message))
