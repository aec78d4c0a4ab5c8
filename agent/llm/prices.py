"""What tokens cost. The figures are in `prices.toml`, dated; this file finds the right line and refuses to guess.

Neighbours: `protocol.Usage.cost_usd` does the arithmetic, the loop asks `require_price` before it spends anything.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from functools import cache
from importlib import resources

from ..errors import PriceUnknown
from .protocol import Price, Usage

_DATED = re.compile(r"-\d{8}$")


@cache
def _table() -> tuple[datetime.date, dict[str, Price]]:
    data = tomllib.loads(resources.files(__package__).joinpath("prices.toml").read_text("utf-8"))
    return data["as_of"], {name: Price(**line, **data["cache"]) for name, line in data["models"].items()}


def as_of() -> datetime.date:
    """Date of the table."""
    return _table()[0]


def price_of(model: str) -> Price | None:
    """Price of a model id, with or without a date at its end; None where the table has none."""
    _, models = _table()
    return models.get(model) or models.get(_DATED.sub("", model))


def cost_usd(usage: Usage, model: str, *, requested: str | None = None) -> float | None:
    """Cost at the price of the model that answered, else of the one that was asked; None when neither is known."""
    price = price_of(model) or (price_of(requested) if requested else None)
    return usage.cost_usd(price)


def require_price(model: str, max_cost: float | None) -> Price | None:
    """The price, where a limit needs one.

    Raises:
        PriceUnknown: `max_cost` is given and the model's price is unknown, so the limit could not be enforced.
    """
    price = price_of(model)
    if price is None and max_cost is not None:
        raise PriceUnknown(
            f"--max-cost {max_cost:g} cannot be enforced: the price of {model!r} is not known (table of {as_of()})",
            hint="leave out --max-cost and bound the run with --rounds or --max-tokens-total, or name a listed model: "
            + ", ".join(sorted(_table()[1])),
        )
    return price


def warn_unpriced(model: str) -> str | None:
    """A sentence for the person when costs of this model cannot be shown, else None."""
    if price_of(model) is not None:
        return None
    return (
        f"the price of {model!r} is not known (table of {as_of()}): no costs are shown, --max-cost cannot be enforced"
    )
