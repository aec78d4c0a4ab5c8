"""The exception tree: drawn, documented, coded."""

from __future__ import annotations

import inspect

import pytest

from coda import errors

pytestmark = pytest.mark.null

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.CodaError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_class_is_documented_drawn_and_has_its_own_code(cls):
    assert cls.__doc__
    assert "code" in vars(cls)
    assert f" {cls.__name__}" in errors.__doc__
    assert [c for c in CLASSES if c.code == cls.code] == [cls]


def test_a_message_has_what_got_expected_hint_and_where():
    error = errors.ShapeMismatch("z", got=(1, 2), expected=(1, 4), hint="declare it", where="kernel.py:3")
    assert str(error) == "kernel.py:3: z: got (1, 2), expected (1, 4)\n  hint: declare it"
    assert error.to_dict() == {
        "code": "shape",
        "what": "z",
        "got": "(1, 2)",
        "expected": "(1, 4)",
        "hint": "declare it",
        "where": "kernel.py:3",
    }
