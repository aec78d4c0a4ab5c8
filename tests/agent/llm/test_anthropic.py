"""The Anthropic provider against a fake transport: payload, streams, accounting, failures, and the key."""

from __future__ import annotations

import json
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from agent.errors import (
    AgentError,
    LLMBadRequest,
    LLMError,
    LLMPaymentRequired,
    LLMRefusedCredentials,
    LLMUnavailable,
    MissingKey,
)
from agent.llm import anthropic as provider
from agent.llm.anthropic import AnthropicLLM, check_key
from agent.llm.protocol import Message, Reply, Request, Submission, Usage

pytestmark = pytest.mark.null

KEY = "sk-ant-test-5ecre7"
CODE = "def kernel(acc):\n    return {'y': acc}  # μ\n"
USAGE = {
    "input_tokens": 11,
    "output_tokens": 1,
    "cache_creation_input_tokens": 700,
    "cache_read_input_tokens": 5000,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 500},
}
REQUEST = Request(
    system="guide and examples",
    task="swiglu backward",
    turns=(Message(role="assistant", text=""), Message(role="user", text="wrong by a factor 2")),
    round=2,
    model="claude-opus-5-5",
    max_tokens=4096,
    effort="high",
)

Event = dict[str, Any]


def sse(*events: Event) -> bytes:
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def start(usage: Event = USAGE) -> Event:
    message: Event = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5-5-20261101"}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return {"type": "message_start", "message": message}


def block(index: int, opening: Event, deltas: list[Event], *, closed: bool = True) -> list[Event]:
    events: list[Event] = [{"type": "content_block_start", "index": index, "content_block": opening}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}] if closed else events


def text_block(index: int, *parts: str) -> list[Event]:
    return block(index, {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in parts])


def tool_block(index: int, raw: str, *, name: str = "submit_kernel", closed: bool = True) -> list[Event]:
    opening = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
    pieces = [raw[i : i + 7] for i in range(0, len(raw), 7)]
    deltas: list[Event] = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, opening, deltas, closed=closed)


def end(reason: str, output: int = 321, details: Event | None = None) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]


def stream(*events: Event) -> httpx2.Response:
    headers = {"content-type": "text/event-stream", "request-id": "req_42"}
    return httpx2.Response(200, headers=headers, content=sse(*events))


class Drops(httpx2.SyncByteStream):
    """A body that breaks after its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        raise httpx2.ReadError("peer went away")


def dropped(*events: Event) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Drops(sse(*events)))


def refused(status: int, kind: str, message: str = "no", **headers: str) -> httpx2.Response:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return httpx2.Response(status, headers={"request-id": "req_err", **headers}, json=body)


class Server:
    """Answers in order and keeps what it was asked."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[Event] = []
        self.headers: list[httpx2.Headers] = []
        self.paths: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        self.headers.append(request.headers)
        self.paths.append(request.url.path)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def llm(self, **options: Any) -> AnthropicLLM:
        return AnthropicLLM(
            SecretStr(KEY), transport=httpx2.MockTransport(self), base_url="http://fake.invalid", **options
        )


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits are recorded, not waited."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    return waited


def tool_input(**changes: Any) -> str:
    return json.dumps({"source": CODE, "rationale": "because", "schedule": None, **changes})


def complete(*events: Event) -> Reply:
    return Server(stream(start(), *events)).llm().complete(REQUEST)


# ---- success ---------------------------------------------------------------------------------------------------------


def test_submission_through_the_tool() -> None:
    server = Server(stream(start(), *text_block(0, "Here ", "it is."), *tool_block(1, tool_input()), *end("tool_use")))
    seen: list[str] = []
    reply = server.llm().complete(REQUEST, seen.append)
    assert reply.submission == Submission(source=CODE, rationale="because")
    assert reply.text == "Here it is."
    assert (reply.stop_reason, reply.model, reply.request_id) == ("tool_use", "claude-opus-5-5-20261101", "req_42")
    assert (reply.provider, reply.billed, reply.notes) == ("anthropic", True, ())
    assert "".join(seen) == "Here it is." + tool_input()
    assert Reply.model_validate_json(reply.model_dump_json()) == reply


def test_submission_through_text() -> None:
    reply = complete(*text_block(0, "Like so:\n``", f"`python\n{CODE}```"), *end("end_turn"))
    assert reply.submission == Submission(source=CODE, rationale="Like so:")


def test_thinking_and_unknown_events_do_no_harm() -> None:
    deltas: list[Event] = [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "s"},
    ]
    thinking = block(0, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
    thinking += [{"type": "ping"}, {"type": "something_new", "x": 1}]
    reply = complete(*thinking, *tool_block(1, tool_input()), *end("tool_use"))
    assert reply.submission is not None
    assert reply.text == ""


def test_usage_and_cost_from_all_fields() -> None:
    from agent.llm.prices import cost_usd

    reply = complete(*tool_block(0, tool_input()), *end("tool_use", output=321))
    assert reply.usage == Usage(
        input_tokens=11, cache_write_5m=200, cache_write_1h=500, cache_read=5000, output_tokens=321
    )
    # 4 · (11 + 1.25·200 + 2·500 + 0.1·5000) + 20 · 321 = 4 · 1761 + 6420
    assert cost_usd(reply.usage, reply.model) == pytest.approx(13_464e-6, rel=1e-12)


def test_cache_writes_without_a_split_count_at_the_dearer_rate() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 700}
    reply = Server(stream(start(usage), *text_block(0, "x"), *end("end_turn"))).llm().complete(REQUEST)
    assert (reply.usage.cache_write_5m, reply.usage.cache_write_1h) == (0, 700)


def test_payload() -> None:
    server = Server(*(stream(start(), *text_block(0, "x"), *end("end_turn")) for _ in range(2)))
    llm = server.llm()
    llm.complete(REQUEST)
    llm.complete(REQUEST.model_copy(update={"round": 3, "turns": (), "effort": None}))
    first, second = server.bodies
    assert first["stream"] is True
    assert (first["model"], first["max_tokens"]) == ("claude-opus-5-5", 4096)
    assert first["system"] == [
        {"type": "text", "text": "guide and examples", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    task, earlier, feedback = first["messages"]
    assert task["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}
    assert (earlier["role"], feedback["role"]) == ("assistant", "user")
    assert earlier["content"][0]["text"].strip()  # blank text is refused by the API
    assert "cache_control" not in feedback["content"][0]
    assert first["output_config"] == {"effort": "high"}
    assert "output_config" not in second
    assert not {"temperature", "top_p", "top_k"} & set(first)
    assert first["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    for part in ("tools", "system"):  # what the cache covers is the same in all rounds
        assert json.dumps(first[part]) == json.dumps(second[part])
    assert first["messages"][0] == second["messages"][0]


def test_the_tool_is_within_the_strict_subset() -> None:
    schema = provider.TOOL["input_schema"]
    assert provider.TOOL["strict"] is True
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])


@pytest.mark.parametrize(
    ("schedule", "read", "noted"),
    [
        ('{"tile_m": 128}', {"tile_m": 128}, False),
        ({"tile_m": 128}, {"tile_m": 128}, False),
        (None, None, False),
        ("", None, False),
        ("{}", None, False),
        ("fast please", None, True),
        ("[1]", None, True),
        ("[" * 5000, None, True),
    ],
)
def test_schedule(schedule: object, read: object, noted: bool) -> None:
    reply = complete(*tool_block(0, tool_input(schedule=schedule)), *end("tool_use"))
    assert reply.submission is not None
    assert reply.submission.schedule == read
    assert bool(reply.notes) == noted


# ---- replies without a kernel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ('{"source": "x"', "bad_tool_input"),
        ('{"rationale": "x"}', "bad_tool_input"),
        ('{"source": 3}', "bad_tool_input"),
        ("[" * 100_000, "bad_tool_input"),
        (json.dumps({"source": " "}), "empty_reply"),
        ('{"source": "kernel = \'\\udc9d\'"}', "invalid_text"),
        (json.dumps({"source": "#" * 70_000}), "too_large"),
    ],
)
def test_bad_tool_input_is_the_models_problem_and_paid_for(raw: str, kind: str) -> None:
    reply = complete(*tool_block(0, raw), *end("tool_use"))
    assert reply.problem is not None
    assert reply.problem.kind == kind
    assert reply.usage.output_tokens == 321
    reply.model_dump_json()


def test_a_lone_surrogate_in_prose_can_be_recorded() -> None:
    reply = complete(*text_block(0, "sorry \udc9d"), *end("end_turn"))
    assert reply.text == "sorry \\udc9d"
    reply.model_dump_json().encode()


def test_refusal() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "looks like an exploit"}
    reply = complete(*text_block(0, f"```python\n{CODE}```"), *end("refusal", details=details))
    assert reply.refused
    assert reply.submission is None
    assert reply.problem is not None
    assert reply.problem.kind == "refused"
    assert "cyber" in reply.problem.message
    assert reply.stop_details is not None
    assert (reply.stop_details.category, reply.stop_details.explanation) == ("cyber", "looks like an exploit")


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize(
    "events",
    [
        tool_block(0, tool_input()[:40], closed=False),
        tool_block(0, tool_input()[:40]),
        text_block(0, f"```python\n{CODE}```\nbetter:\n```python\nde"),
    ],
    ids=["open tool", "closed partial tool", "text"],
)
def test_truncation(reason: str, events: list[Event]) -> None:
    reply = complete(*events, *end(reason))
    assert reply.truncated
    assert reply.problem is not None
    assert reply.problem.kind == "truncated"


def test_a_tool_call_that_was_complete_before_the_cut_counts() -> None:
    reply = complete(*tool_block(0, tool_input()), *text_block(1, "and"), *end("max_tokens"))
    assert reply.submission is not None


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", LLMBadRequest),
        (401, "authentication_error", LLMRefusedCredentials),
        (402, "billing_error", LLMPaymentRequired),
        (403, "permission_error", LLMRefusedCredentials),
        (404, "not_found_error", LLMBadRequest),
        (413, "request_too_large", LLMBadRequest),
        (422, "invalid_request_error", LLMBadRequest),
    ],
)
def test_hopeless_requests_are_sent_once(status: int, kind: str, error: type[LLMError], naps: list[float]) -> None:
    server = Server(refused(status, kind, "the reason"))
    with pytest.raises(error, match="the reason") as caught:
        server.llm().complete(REQUEST)
    assert len(server.bodies) == 1
    assert naps == []
    assert (caught.value.exit_code, caught.value.request_id) == (6, "req_err")
    assert caught.value.hint


@pytest.mark.parametrize("status", [401, 402, 403])
def test_account_errors_name_the_variable(status: int) -> None:
    with pytest.raises(LLMError) as caught:
        Server(refused(status, "x")).llm().complete(REQUEST)
    assert "ANTHROPIC_API_KEY" in caught.value.hint


def test_rate_limit_waits_as_long_as_asked(naps: list[float]) -> None:
    server = Server(
        refused(429, "rate_limit_error", **{"retry-after": "7"}),
        stream(start(), *tool_block(0, tool_input()), *end("tool_use")),
    )
    assert server.llm().complete(REQUEST).submission is not None
    assert naps == [7.0]


def test_retry_after_zero_does_not_spin(naps: list[float]) -> None:
    server = Server(*(refused(429, "rate_limit_error", **{"retry-after": "0"}) for _ in range(3)))
    with pytest.raises(LLMUnavailable, match="429"):
        server.llm().complete(REQUEST)
    assert len(server.bodies) == 3  # the first and the SDK's two
    assert len(naps) == 2
    assert min(naps) > 0.2


@pytest.mark.parametrize("header", [{"retry-after": "86400"}, {"retry-after-ms": "86400000"}])
def test_silly_waits_are_refused(header: dict[str, str], naps: list[float]) -> None:
    server = Server(refused(429, "rate_limit_error", **header))
    with pytest.raises(LLMUnavailable, match="86400 s"):
        server.llm().complete(REQUEST)
    assert (len(server.bodies), naps) == (1, [])


@pytest.mark.parametrize("answer", [refused(529, "overloaded_error"), httpx2.ConnectError("no route")])
def test_outage_is_infrastructure(answer: httpx2.Response | Exception) -> None:
    with pytest.raises(LLMUnavailable) as caught:
        Server(answer).llm(max_retries=0).complete(REQUEST)
    assert "resume" in caught.value.hint
    assert caught.value.spent == {}


BROKEN = (start(), *text_block(0, "x" * 300)[:2])


@pytest.mark.parametrize(
    "broken",
    [
        lambda: dropped(*BROKEN),
        lambda: stream(*BROKEN),
        lambda: stream(*BROKEN, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        lambda: httpx2.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=sse(*BROKEN) + b"event: message_delta\ndata: {oops\n\n",
        ),
    ],
    ids=["read error", "ends early", "error event", "not JSON"],
)
def test_a_broken_stream_is_restarted_once_and_paid_for(broken: Callable[[], httpx2.Response]) -> None:
    good = stream(start(), *tool_block(0, tool_input()), *end("tool_use", output=50))
    server = Server(broken(), good)
    reply = server.llm().complete(REQUEST)
    assert reply.submission is not None
    assert reply.text == ""  # nothing of the lost attempt
    # 300 characters were received before the break: about 100 tokens
    assert reply.usage == Usage(
        input_tokens=22, cache_write_5m=400, cache_write_1h=1000, cache_read=10_000, output_tokens=150
    )
    assert len(reply.notes) == 1
    assert "restarted" in reply.notes[0]

    server = Server(broken(), broken(), good)
    with pytest.raises(LLMUnavailable, match="broke twice") as caught:
        server.llm().complete(REQUEST)
    assert len(server.bodies) == 2
    assert Usage(**caught.value.spent).output_tokens == 200


def test_an_invalid_request_in_the_stream_is_not_restarted() -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}
    server = Server(stream(*BROKEN, error))
    with pytest.raises(LLMBadRequest) as caught:
        server.llm().complete(REQUEST)
    assert len(server.bodies) == 1
    assert caught.value.spent["input_tokens"] == 11


def test_a_mistake_in_the_display_is_not_taken_for_a_broken_stream() -> None:
    def display(text: str) -> None:
        raise ValueError("display")

    server = Server(stream(start(), *text_block(0, "x"), *end("end_turn")))
    with pytest.raises(ValueError, match="display"):
        server.llm().complete(REQUEST, display)


# ---- estimate --------------------------------------------------------------------------------------------------------


def test_estimate_counts_or_falls_back() -> None:
    server = Server(httpx2.Response(200, json={"input_tokens": 1234}))
    assert server.llm().estimate(REQUEST) == 1234
    assert server.paths == ["/v1/messages/count_tokens"]
    assert "max_tokens" not in server.bodies[0]
    server = Server(refused(529, "overloaded_error"))
    assert server.llm().estimate(REQUEST) > 600
    assert len(server.bodies) == 1
    with pytest.raises(LLMRefusedCredentials):
        Server(refused(401, "authentication_error")).llm().estimate(REQUEST)


# ---- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "", "  ", "sk-ant\nx", "sk ant", "sk-ánt", "sk-\udc9d"])
def test_unusable_keys(key: str | None) -> None:
    with pytest.raises(MissingKey) as caught:
        check_key(None if key is None else SecretStr(key))
    assert caught.value.exit_code == 6
    assert "ANTHROPIC_API_KEY" in caught.value.what
    assert key is None or len(key.strip()) < 3 or key not in str(caught.value)


def test_a_transport_error_that_quotes_the_key_is_redacted() -> None:
    with pytest.raises(LLMUnavailable, match=r"cannot send \[key\]"):
        Server(httpx2.ConnectError(f"cannot send {KEY}")).llm(max_retries=0).complete(REQUEST)


def test_the_key_is_sent_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers: list[httpx2.Response | Exception] = [
        stream(start(), *tool_block(0, tool_input()), *end("tool_use")),
        refused(401, "authentication_error", f"bad key {KEY}"),
        refused(400, "invalid_request_error", f"bad key {KEY}"),
        httpx2.ConnectError("no route to host"),
        dropped(*BROKEN),
        dropped(*BROKEN),
    ]
    server = Server(*answers)
    llm = server.llm(max_retries=0)
    reply = llm.complete(REQUEST)
    shown = [repr(llm), str(llm), repr(reply), reply.model_dump_json()]
    for _ in range(4):
        with pytest.raises(AgentError) as caught:
            llm.complete(REQUEST)
        error = caught.value
        # An SDK error in the chain would carry the request, headers and all.
        assert error.__cause__ is None
        assert error.__context__ is None
        shown += [repr(error), str(error), "".join(traceback.format_exception(error)), repr(vars(error))]
        shown.append(repr(pickle.dumps(vars(error))))
    shown.append(caplog.text)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert not [text for text in shown if KEY in text]
