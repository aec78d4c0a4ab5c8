"""Records: round trips, the prompt's hash, usage arithmetic, prices."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent.errors import PriceUnknown
from agent.llm import prices
from agent.llm.protocol import Message, Price, Problem, Reply, Request, StopDetails, Submission, Usage, estimate_tokens

pytestmark = pytest.mark.null

REQUEST = Request(
    system="guide μ",
    task="write it 📍",
    turns=(Message(role="assistant", text="x"), Message(role="user", text="no")),
    round=2,
    model="m",
    max_tokens=100,
    effort="high",
)
REPLY = Reply(
    text="t",
    submission=Submission(source="kernel = 1\n", rationale="r", schedule={"tile_m": 128}),
    stop_reason="tool_use",
    stop_details=StopDetails(category="cyber"),
    model="claude-opus-5-5",
    usage=Usage(input_tokens=1, output_tokens=2),
    billed=True,
    request_id="req",
    provider="anthropic",
    notes=("n",),
)


@pytest.mark.parametrize("record", [REQUEST, REPLY], ids=["request", "reply"])
def test_json_round_trip(record: Request | Reply) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record


def test_records_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError):
        REQUEST.task = "other"
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "text": "x", "extra": 1})


def test_prompt_sha_is_over_what_the_model_reads() -> None:
    same = REQUEST.model_copy(update={"model": "other", "round": 9, "max_tokens": 5, "effort": None})
    assert same.prompt_sha == REQUEST.prompt_sha
    changes: list[dict[str, Any]] = [
        {"system": "guide"},
        {"task": "other"},
        {"turns": ()},
        {"turns": (Message(role="user", text="x"), Message(role="user", text="no"))},
    ]
    hashes = {REQUEST.model_copy(update=change).prompt_sha for change in changes}
    assert len(hashes | {REQUEST.prompt_sha}) == 5
    # Fixed for ever: recordings are compared by it.
    pinned = Request(system="s", task="t", model="m").prompt_sha
    assert pinned == "1ec797b240b3df098306621e717503e87a0b02aacc21af6eb8875d8805ae0756"


@pytest.mark.parametrize("field", ["system", "task"])
def test_surrogates_stop_at_the_border(field: str) -> None:
    values = {"system": "s", "task": "t", "model": "m", field: "x\udc9d"}
    with pytest.raises(ValidationError, match="surrogate"):
        Request.model_validate(values)


def test_the_last_turn_is_the_users() -> None:
    with pytest.raises(ValidationError, match="last turn"):
        Request(system="s", task="t", model="m", turns=(Message(role="assistant", text="x"),))


def test_a_reply_has_one_outcome() -> None:
    with pytest.raises(ValidationError, match="either"):
        Reply(text="", provider="x")
    problem = Problem(kind="no_code", message="m")
    with pytest.raises(ValidationError, match="either"):
        Reply(text="", provider="x", problem=problem, submission=Submission(source="kernel = 1"))
    assert Reply(text="", provider="x", problem=problem, stop_reason="model_context_window_exceeded").truncated
    assert Reply(text="", provider="x", problem=problem, stop_reason="refusal").refused


def test_cost_uses_all_four_classes() -> None:
    usage = Usage(input_tokens=1000, cache_write_5m=200, cache_write_1h=3000, cache_read=50_000, output_tokens=700)
    assert usage.total_input == 54_200
    assert usage.total == 54_900
    # 4 · (1000 + 1.25·200 + 2·3000 + 0.1·50000) + 20 · 700 = 4 · 12250 + 14000 = 63000 micro-dollars
    assert usage.cost_usd(Price(input=4, output=20)) == pytest.approx(0.063, rel=1e-12)
    assert usage.cost_usd(None) is None
    assert usage + usage == Usage(
        input_tokens=2000, cache_write_5m=400, cache_write_1h=6000, cache_read=100_000, output_tokens=1400
    )


def test_prices() -> None:
    assert prices.price_of("claude-opus-5-5") == Price(input=4, output=20)
    assert prices.price_of("claude-opus-5-5-20261101") == Price(input=4, output=20)
    for unknown in ("claude-opus-5-55", "claude-haiku-5-5", "claude-opus-5", "", "unknown"):
        assert prices.price_of(unknown) is None
        assert prices.warn_unpriced(unknown) is not None
    assert prices.warn_unpriced("claude-sonnet-5-5") is None
    million = Usage(output_tokens=1_000_000)
    assert prices.cost_usd(million, "claude-sonnet-5-5", requested="claude-opus-5-5") == 10
    assert prices.cost_usd(million, "renamed", requested="claude-opus-5-5") == 20
    assert prices.cost_usd(million, "renamed") is None


def test_a_limit_without_a_price_is_refused() -> None:
    assert prices.require_price("who-knows", None) is None
    assert prices.require_price("claude-opus-5-5", 1.0) is not None
    with pytest.raises(PriceUnknown, match="cannot be enforced") as caught:
        prices.require_price("who-knows", 1.0)
    assert caught.value.exit_code == 2


def test_estimate_is_on_the_high_side_and_grows() -> None:
    small, large = (Request(system="x" * n, task="t", model="m") for n in (0, 30_000))
    assert estimate_tokens(large) - estimate_tokens(small) >= 30_000 // 3
