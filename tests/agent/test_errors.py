"""The tree of errors that stop a command: documented, stable codes, exit codes of the command line."""

from __future__ import annotations

import pytest

from agent import errors
from agent.errors import AgentError, LLMError

pytestmark = pytest.mark.null

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, AgentError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_each_class_is_documented_and_drawn(kind: type[AgentError]) -> None:
    assert kind.__doc__
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__
    assert kind.exit_code in range(2, 8)
    assert "code" in vars(kind)


def test_codes_are_distinct() -> None:
    assert len({c.code for c in CLASSES}) == len(CLASSES)


def test_message_and_hint() -> None:
    error = LLMError("what", hint="do", spent={"input_tokens": 3})
    assert (error.what, error.hint, str(error)) == ("what", "do", "what\nhint: do")
    assert error.spent == {"input_tokens": 3}
    assert str(AgentError("alone")) == "alone"
