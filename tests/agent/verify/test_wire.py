"""Documents between processes: what is read, and what is not."""

from __future__ import annotations

import pytest

from agent.verify import wire

pytestmark = pytest.mark.null


def test_a_document_goes_there_and_back() -> None:
    document = {"a": [1, 2.5, None, True], "text": "μ 📍 \x1b"}
    line = wire.dump(document)
    assert line.endswith(b"\n")
    assert line.isascii()
    assert wire.parse(line, max_bytes=1000) == document


def test_lone_surrogates_are_replaced_so_that_what_is_read_can_be_written() -> None:
    line = wire.dump({"a": ["\ud800x", {"\udc9d": "📍"}], "b": "\ude00\ud83d"})
    read = wire.parse(line, max_bytes=1000)
    assert read == {"a": ["\ufffdx", {"\ufffd": "📍"}], "b": "\ufffd\ufffd"}
    assert str(read).encode("utf-8")
    with pytest.raises(wire.BadDocument, match="twice"):
        wire.parse(rb'{"\ud800": 1, "\ud801": 2}', max_bytes=1000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not one JSON document"),
        (b"{} {}", "not one JSON document"),
        (b"[1]", "an object|a JSON object"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not one JSON document"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "nested"),
        (b"[" * 500_000, "nested"),
        (b"\xff", "not one JSON document"),
        (b"\x80\x04N.", "not one JSON document"),
        (b'{"a": "' + b"x" * 2_000_000 + b'"}', "at most"),
    ],
)
def test_everything_else_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(wire.BadDocument, match=reason):
        wire.parse(data, max_bytes=1 << 20)


def test_brackets_in_strings_are_not_nesting() -> None:
    assert wire.depth(b'{"a": "[[[[\\"[[["}') == 1
    assert wire.parse(b'{"a": "' + b"[" * 1000 + b'"}', max_bytes=1 << 20)["a"] == "[" * 1000


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        wire.dump({"a": float("nan")})
