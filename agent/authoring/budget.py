"""Limits of a run and what it has spent. Asked before every model call: the call is refused when it might exceed a limit.

    Limits          rounds, US dollars, tokens, seconds
    Ledger          usage and cost so far, calls whose reply was lost included
    most_usd        the most that a call can cost, by the price of its model
    parse_duration  "20m" as seconds

A reservation is the most that an attempt of a call can cost: all its input as a cache write, plus the longest reply. (A stream that
breaks is restarted once; then the call may cost up to twice that, and all of it is counted.) Replies that were not
billed (a replay, a folder, a script) cost nothing and are not reserved for. An unknown price is never a price of zero:
with a cost limit it is refused before anything is sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from pydantic import Field

from ..errors import SettingsInvalid
from ..llm import prices
from ..llm.protocol import Reply, Usage
from ..records import Record
from ..runs.events import Asked, CallFailed, Event, StopReason

FREE = frozenset({"replay", "folder", "scripted"})
"""Providers that bill nothing."""

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


class Limits(Record):
    """What a run may use. None is no limit."""

    rounds: int = Field(default=8, ge=1)
    """Candidates or failed attempts at one; a retry after an unusable reply belongs to its round."""
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """Input and output, of all calls."""
    time_s: float | None = Field(default=None, gt=0)
    """Of all sessions of the run together. A call or judgement under way is not cut off."""


class Ledger:
    """What a run has spent.

    Args:
        provider: Name of the provider that is asked.
        model: The model that is asked for; the price of a reply whose own model has none.
    """

    def __init__(self, provider: str, model: str) -> None:
        self.provider, self.model = provider, model
        self.usage = Usage()
        self.cost_usd: float | None = 0.0
        """Billed; None as soon as a billed reply has no known price."""
        self.at_risk_usd = 0.0
        """Reserved for calls whose reply was lost."""

    @property
    def billed(self) -> bool:
        """Whether the provider bills its replies."""
        return self.provider not in FREE

    def require_price(self, limits: Limits) -> None:
        """Raise `PriceUnknown` where a cost limit could not be enforced. Before anything is sent."""
        if self.billed:
            prices.require_price(self.model, limits.max_cost)

    def reservation(self, input_tokens: int, max_tokens: int) -> float | None:
        """The most that a call can cost; None where the price is unknown, 0 where nothing is billed."""
        if not self.billed:
            return 0.0
        return most_usd(self.model, input_tokens, max_tokens)

    def add_reply(self, reply: Reply) -> float | None:
        """Count a reply; its cost."""
        self.usage += reply.usage
        cost = prices.cost_usd(reply.usage, reply.model, requested=self.model) if reply.billed else 0.0
        self._add(cost)
        return cost

    def add_failed(self, spent: Usage) -> None:
        """Count what a failed call had used."""
        self.usage += spent
        if self.billed and spent.total:
            self._add(prices.cost_usd(spent, self.model))

    def refusal(
        self, limits: Limits, *, elapsed_s: float, input_tokens: int, max_tokens: int
    ) -> tuple[StopReason, str] | None:
        """Why the next call may not be made, if it may not."""
        if limits.time_s is not None and elapsed_s >= limits.time_s:
            return "time", f"{elapsed_s:.0f} s of {limits.time_s:g} s used"
        if limits.max_tokens_total is not None:
            wanted = input_tokens + max_tokens
            if self.usage.total + wanted > limits.max_tokens_total:
                used = f"{self.usage.total} tokens used, the next call may take {wanted}"
                return "tokens", f"{used}: more than {limits.max_tokens_total}"
        if limits.max_cost is not None and self.billed:
            reserve = self.reservation(input_tokens, max_tokens)
            if reserve is None or self.cost_usd is None:
                return "cost", f"the price of {self.model!r} is not known, so the limit cannot be kept"
            spent = self.cost_usd + self.at_risk_usd
            if spent + reserve > limits.max_cost:
                return (
                    "cost",
                    f"${spent:.2f} spent, the next call may cost ${reserve:.2f}: more than ${limits.max_cost:.2f}",
                )
        return None

    def _add(self, cost: float | None) -> None:
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost


def most_usd(model: str, input_tokens: int, max_tokens: int) -> float | None:
    """The most that an attempt of a call can cost: its input at the dearest rate, the longest reply. None without a price."""
    price = prices.price_of(model)
    if price is None:
        return None
    factor = max(1.0, price.write_5m, price.write_1h)
    return (price.input * factor * input_tokens + price.output * max_tokens) / 1e6


def lost_calls_usd(events: Iterable[Event], answered: Iterable[int]) -> float:
    """Reserved for calls that were begun and neither answered nor failed: the process was killed in between."""
    asked: dict[int, list[float]] = {}
    settled: Counter[int] = Counter(answered)
    for event in events:
        if isinstance(event, Asked):
            asked.setdefault(event.call, []).append(event.reserved_usd or 0.0)
        elif isinstance(event, CallFailed):
            settled[event.call] += 1
    return sum(sum(sorted(reserved)[: max(len(reserved) - settled[call], 0)]) for call, reserved in asked.items())


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "20m", "1h30m". Raises `SettingsInvalid`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise SettingsInvalid(f"--time {text!r} is no duration", hint="write 90s, 20m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise SettingsInvalid(f"--time {text!r} leaves no time", hint="write 90s, 20m or 1h30m")
    return total
