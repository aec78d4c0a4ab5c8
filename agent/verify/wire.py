"""Documents that cross a process border: strict JSON, parsed as data and never as code.

What a child sends is somebody else's word. `parse` reads it with a size cap, a depth cap, no duplicate keys, no NaN and
no huge integers, and raises `BadDocument` for everything else; lone surrogates, which JSON can spell and nothing can encode,
become U+FFFD, so that whatever is read can be written. Nothing is ever unpickled. `dump` writes the parent's
side. Used by `tracer.py` and `worker.py`; the children write with plain `json.dumps`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

MAX_DEPTH = 64
"""Nesting that no honest document reaches, well below what the parser's recursion can take."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BadDocument(ValueError):
    """Bytes that are not one acceptable JSON document. The message says why."""


def dump(document: Any) -> bytes:
    """One line of ASCII JSON with its newline."""
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def depth(data: bytes, *, enough: int = sys.maxsize) -> int:
    """The deepest nesting of brackets outside strings, found without recursion; not counted on beyond `enough`."""
    deepest = level = 0
    for token in _TOKEN.finditer(data):
        first = token.group()[:1]
        if first in b"[{":
            level += 1
            deepest = max(deepest, level)
            if deepest > enough:
                break
        elif first in b"]}":
            level -= 1
    return deepest


def parse(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The one JSON object that `data` holds."""
    if len(data) > max_bytes:
        raise BadDocument(f"{len(data)} bytes, at most {max_bytes} are read")
    if depth(data, enough=max_depth) > max_depth:
        raise BadDocument(f"nested deeper than {max_depth}")
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except BadDocument:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadDocument(f"not one JSON document: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise BadDocument(f"a JSON object is expected, not {type(document).__name__}")
    found: dict[str, Any] = _encodable(document) if _SURROGATE.search(data) else document
    return found


def _encodable(value: Any) -> Any:
    """The depth is bounded by now."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(x) for x in value]
    if isinstance(value, dict):
        return _unique([(_encodable(name), _encodable(x)) for name, x in value.items()])
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise BadDocument("a key appears twice")
    return document


def _no_constant(name: str) -> Any:
    raise BadDocument(f"{name} is not JSON")
