"""Somebody else's words inside Markdown, for a model or a person: fenced so that they cannot end the quotation.

    fence    backticks that none of the texts can close
    fenced   a text as a block
    quote    a message as a block: without control characters, cut in the middle beyond a limit

Neighbours: `prompt` quotes candidates and their tools, `agent.keeping.packet` sources and rationales.
"""

from __future__ import annotations

import re

from ..llm.protocol import clean_text

MAX_QUOTED = 4_000
"""Characters of a message or log."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def fence(*texts: str) -> str:
    """More backticks than any run in the texts, and three at least."""
    longest = max((len(run) for text in texts for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)


def fenced(text: str, language: str) -> str:
    """A block that the text cannot end."""
    marks = fence(text)
    return f"{marks}{language}\n{text}\n{marks}"


def quote(text: str, limit: int = MAX_QUOTED) -> str:
    """Somebody's words as a block."""
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", clean_text(text)).rstrip("\n")
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n… {len(text) - limit} characters left out …\n{text[-(limit // 2) :]}"
    return fenced(text, "text")
