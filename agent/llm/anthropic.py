"""The Anthropic API as a provider: one streamed request per call, one strict tool, failures as typed errors.

- The SDK is imported here and nowhere else, at the first request: it takes seconds, and `check_key` must not.
- Prompt cache: tools and system text are the same in all runs and get a breakpoint of one hour; the task gets one of
  five minutes. Nothing before a breakpoint may vary between rounds.
- The raw event stream is read here instead of through the SDK's accumulator, because that one takes a stream that just
  ends for a complete message, loses the tokens of a broken one, and raises on tool input that is not JSON.
- Retries: the SDK's own, bounded, before a stream starts. A stream that breaks is restarted once and both attempts
  are in `usage`. Everything else is an error; there is no second retry layer.
- The key goes from the settings to the SDK's client. It is in no message, record or exception chain: SDK errors hold
  the request with its headers, so they are translated and never chained.

Neighbours: `anthropic_stream` turns events into a `Reply`, `extract` reads text replies, `select` builds this class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from ..errors import LLMBadRequest, LLMError, LLMPaymentRequired, LLMRefusedCredentials, LLMUnavailable, MissingKey
from ..settings import KEY_VARIABLE
from .anthropic_stream import TOOL_NAME, StreamBroken, Turn
from .protocol import OnText, Reply, Request, Usage, estimate_tokens

if TYPE_CHECKING:
    import anthropic
    import httpx2
    from anthropic._request import APIRequest
    from anthropic._response import APIResponse

KEY_HINT = (
    f"set {KEY_VARIABLE}, or run without a key: --llm replay (a bundled recording) or --llm folder:DIR (answer by hand)"
)

MAX_RETRY_AFTER_S = 120.0
"""Longest wait that a rate limit may ask for. Beyond it the call fails at once and says how long was asked."""

TOOL: dict[str, Any] = {
    "name": TOOL_NAME,
    "description": (
        "Submit the complete kernel file for judging. Call it exactly once, when the file is finished. The judge sees "
        "nothing but `source`; it is checked, traced, compared with the task's reference and compiled, and the outcome "
        "is reported back."
    ),
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {
            "source": {
                "type": "string",
                "description": "The whole kernel file: docstring, imports, helpers, decorated functions, one "
                "object named `kernel`. No Markdown fence.",
            },
            "rationale": {
                "type": "string",
                "description": "Two or three sentences: the algebraic step that makes the fusion legal, and what "
                "changed since the last submission.",
            },
            # A string and not an object: the strict subset would need every field listed here and required, which
            # would tie this tool to the scheduler's fields and invite the model to invent values for all of them.
            "schedule": {
                "anyOf": [{"type": "string"}, {"type": "null"}],
                "description": "Tuning hint: a JSON object as text, as the guide describes under Schedule. null unless "
                "there is a reason to believe in particular values.",
            },
        },
        "required": ["source", "rationale", "schedule"],
        "additionalProperties": False,
    },
}

_RETRIED = frozenset({408, 409, 429})
_PRINTABLE = re.compile(r"[!-~]+")


def check_key(key: SecretStr | None) -> SecretStr:
    """The key, if there is one that can be sent in a header. Fast: imports nothing, contacts nobody.

    Raises:
        MissingKey: It is not set, is blank, or holds characters that no key has.
    """
    if key is None or not key.get_secret_value().strip():
        raise MissingKey(f"no API key: {KEY_VARIABLE} is not set", hint=KEY_HINT)
    value = key.get_secret_value().strip()
    if not _PRINTABLE.fullmatch(value):
        # Checked here since the transport's own complaint would quote the key.
        raise MissingKey(
            f"{KEY_VARIABLE} holds spaces, line breaks or non-ASCII characters",
            hint="copy the key again, without quotes",
        )
    return SecretStr(value)


class AnthropicLLM:
    """Answers requests through the Anthropic API.

    Args:
        key: The API key.
        transport: Replaces the network, for tests (`httpx2.MockTransport`).
        base_url: Another deployment; the SDK's default otherwise.
        timeout_s: Longest silence on the connection.
        max_retries: Attempts that the SDK adds on rate limits, overload and connection failures.
    """

    name = "anthropic"

    def __init__(
        self,
        key: SecretStr | None,
        *,
        transport: httpx2.BaseTransport | None = None,
        base_url: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 2,
    ) -> None:
        self._key = check_key(key)
        self._transport = transport
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._made: anthropic.Anthropic | None = None

    def __repr__(self) -> str:
        return f"AnthropicLLM(max_retries={self._max_retries})"

    def complete(self, request: Request, on_text: OnText | None = None) -> Reply:
        """One reply. Restarts a stream that breaks, once; the lost attempt is counted in `usage` and noted."""
        lost = Usage()
        notes: list[str] = []
        reason = ""
        for _ in range(2):
            turn = Turn(request, on_text)
            failure = self._attempt(partial(self._stream, request, turn), turn)
            if failure is None:
                return turn.reply(self.name, lost=lost, notes=notes)
            spent = turn.usage()
            lost = lost + spent
            if isinstance(failure, LLMError):
                failure.spent = lost.model_dump() if lost.total else {}
                raise failure
            reason = failure.reason
            notes.append(
                f"stream broke after about {spent.output_tokens} output tokens ({reason}); the turn was restarted"
            )
        raise LLMUnavailable(
            f"the connection to the model broke twice in one turn: {reason}",
            hint="infrastructure, not the kernel: resume the run later",
            request_id=turn.request_id,
            spent=lost.model_dump(),
        )

    def estimate(self, request: Request) -> int:
        """Input tokens as the API counts them (free of charge), or the local bound when it cannot be reached."""
        counted: list[int] = []

        def count() -> None:
            client = self._client().with_options(max_retries=0, timeout=20.0)
            payload = _payload(request)
            del payload["max_tokens"]
            counted.append(client.messages.count_tokens(**payload).input_tokens)

        failure = self._attempt(count, None)
        if isinstance(failure, LLMRefusedCredentials | LLMPaymentRequired | LLMBadRequest):
            raise failure
        return counted[0] if counted else estimate_tokens(request)

    def _stream(self, request: Request, turn: Turn) -> None:
        stream = self._client().messages.create(**_payload(request), stream=True)
        with stream:
            turn.begin(stream.response.headers.get("request-id"))
            for event in stream:
                turn.feed(event)
        turn.end()

    def _attempt(self, call: Callable[[], None], turn: Turn | None) -> LLMError | StreamBroken | None:
        """Run `call`; the failure is returned, so that what is raised later has no SDK error in its chain."""
        import anthropic
        import httpx2

        try:
            call()
        except (LLMError, StreamBroken) as error:
            return error
        except (
            anthropic.AnthropicError,
            httpx2.HTTPError,
            httpx2.StreamError,
            httpx2.InvalidURL,
            json.JSONDecodeError,
            UnicodeDecodeError,
        ) as error:
            return self._translate(error, started=turn is not None and turn.started)
        return None

    def _translate(self, error: Exception, *, started: bool) -> LLMError | StreamBroken:
        import anthropic

        if isinstance(error, anthropic.APIStatusError):
            return self._status_error(error, started=started)
        if started:  # a raw transport error, or bytes that are not events
            return StreamBroken(type(error).__name__)
        if isinstance(error, anthropic.APIConnectionError):
            cause = type(error.__cause__).__name__ if error.__cause__ is not None else type(error).__name__
            return LLMUnavailable(
                f"the model could not be reached: {self._redact(str(error.__cause__ or error))} ({cause})",
                hint="check the network and ANTHROPIC_BASE_URL, then resume the run",
            )
        return LLMUnavailable(
            f"the call failed before it was sent: {type(error).__name__}: {self._redact(str(error))}",
            hint="this is not the kernel's fault",
        )

    def _status_error(self, error: anthropic.APIStatusError, *, started: bool) -> LLMError | StreamBroken:
        status, kind = error.status_code, str(error.type or "")
        said = self._redact(error.api_message or error.message)
        refused: LLMError
        if status == 401 or kind == "authentication_error":
            refused = LLMRefusedCredentials(f"the API key was refused: {said}", hint=f"check {KEY_VARIABLE}")
        elif status == 402 or kind == "billing_error":
            refused = LLMPaymentRequired(
                f"the account cannot pay: {said}", hint=f"add credit for the account of {KEY_VARIABLE}"
            )
        elif status == 403 or kind == "permission_error":
            hint = f"check that the account of {KEY_VARIABLE} may use this model"
            refused = LLMRefusedCredentials(f"not permitted: {said}", hint=hint)
        elif status == 404 or kind == "not_found_error":
            refused = LLMBadRequest(f"not found: {said}", hint="check --model (CODA_AGENT_MODEL)")
        elif kind == "invalid_request_error" or (400 <= status < 500 and status not in _RETRIED):
            hint = f"the same request would be refused again; check --model, and the credit behind {KEY_VARIABLE}"
            refused = LLMBadRequest(f"the request was refused (HTTP {status}): {said}", hint=hint)
        elif started:  # an error event in the middle of a stream: its HTTP status is 200
            return StreamBroken(kind or said)
        else:
            refused = LLMUnavailable(
                f"the model is not available (HTTP {status} after {self._max_retries} retries): {said}",
                hint="infrastructure, not the kernel: wait and resume the run",
            )
        refused.request_id = error.request_id
        return refused

    def _client(self) -> anthropic.Anthropic:
        if self._made is None:
            import anthropic

            http = anthropic.DefaultHttpxClient(transport=self._transport) if self._transport is not None else None
            self._made = anthropic.Anthropic(
                api_key=self._key.get_secret_value(),
                base_url=self._base_url,
                timeout=self._timeout_s,
                max_retries=self._max_retries,
                http_client=http,
                middleware=[_refuse_long_waits],
            )
        return self._made

    def _redact(self, text: str) -> str:
        return text.replace(self._key.get_secret_value(), "[key]")[:500]


def _refuse_long_waits(request: APIRequest, call_next: Callable[[APIRequest], APIResponse[Any]]) -> APIResponse[Any]:
    """The SDK sleeps for whatever `retry-after` says, up to weeks."""
    response = call_next(request)
    status, wait = response.http_response.status_code, _retry_after(response.http_response.headers.items())
    if status >= 400 and wait > MAX_RETRY_AFTER_S:
        response.http_response.close()
        raise LLMUnavailable(
            f"the model is not available (HTTP {status}) and asks to wait {wait:.0f} s; "
            f"{MAX_RETRY_AFTER_S:.0f} s is the most this tool waits",
            hint="infrastructure, not the kernel: resume the run later",
            request_id=response.http_response.headers.get("request-id"),
        )
    return response


def _retry_after(headers: Iterable[tuple[str, str]]) -> float:
    found = {name.lower(): value for name, value in headers}
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return float(found[name]) * scale
        except (KeyError, ValueError):
            continue
    return 0.0


def _payload(request: Request) -> dict[str, Any]:
    """The request as the API wants it. A pure function, so that the cached prefix depends on nothing else."""
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": request.task, "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
        }
    ]
    # The API refuses blank text; an empty reply is a turn that did happen.
    messages += [
        {"role": t.role, "content": [{"type": "text", "text": t.text if t.text.strip() else "(empty)"}]}
        for t in request.turns
    ]
    payload: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "tools": [TOOL],
        # Not forced: models that think refuse a forced tool, and text with a fenced block is accepted as well.
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "messages": messages,
    }
    if request.system.strip():
        payload["system"] = [
            {"type": "text", "text": request.system, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        ]
    if request.effort is not None:
        payload["output_config"] = {"effort": request.effort}
    return payload
