"""Costs of work, by resource. Pure, and cheap enough to use at each end of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from callsheet.scheduler.core.words.model import CPU, GPU, MEMORY

TIMED: Final = (CPU, MEMORY, GPU)
"""Resources that are held for a time; all others are counted."""
COUNTED: Final = ("tokens_in", "tokens_cached", "tokens_out", "calls")
MIB_A_GIB: Final = 1024
MAX_RESOURCES: Final = 256
"""Most resources in a cost; further ones are left out."""


def read_price(text: str) -> tuple[str, float]:
    """The resource and the money for a unit of a text such as "cpu=0.00001".

    Raises:
        ValueError: It is no such text; the message names what is wrong.
    """
    resource, separator, amount = text.partition("=")
    kind, of_service, service = resource.partition(":")
    if kind not in (*TIMED, *COUNTED) or (of_service and (kind != "calls" or not service)):
        known = f"{', '.join((*TIMED, *COUNTED))} or calls:SERVICE"
        raise ValueError(f"{text!r}: must be {known}, and an amount after a '='")
    try:
        price = float(amount) if separator else -1.0
    except ValueError:
        price = -1.0
    if not 0.0 <= price < inf:
        raise ValueError(f"{text!r}: its amount must be a number of at least 0")
    return resource, price


def read_prices(texts: Iterable[str]) -> dict[str, float]:
    """The money for a unit of each resource that texts name.

    Raises:
        ValueError: One is no such text, or a resource is named again.
    """
    prices = [read_price(text) for text in texts]
    named = [resource for resource, _ in prices]
    if twice := sorted({each for each in named if named.count(each) > 1}):
        raise ValueError(f"price: {', '.join(map(repr, twice))}: must be given once")
    return dict(prices)


@dataclass(slots=True)
class Cost:
    """The contract's Cost: what was kept from others, and what was used; see there for resources and their units."""

    held: dict[str, float] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Returns whether any cost was held or used."""
        return bool(self.held or self.used)

    def add(self, other: Cost, times: float = 1.0) -> None:
        """Adds another one, so many times."""
        if other.held:
            _add(self.held, other.held, times)
        if other.used:
            _add(self.used, other.used, times)

    def copy(self) -> Cost:
        """One that does not change with it."""
        return Cost(self.held.copy(), self.used.copy())


def _add(total: dict[str, float], amounts: dict[str, float], times: float) -> None:
    for resource, amount in amounts.items():
        if resource in total:
            total[resource] += amount * times
        elif len(total) < MAX_RESOURCES:
            total[resource] = amount * times


def held_for(units: Mapping[str, float], seconds: float) -> Cost:
    """The cost of units of a node, memory in MiB, for a time, whatever was done with them."""
    held = {each: units[each] * seconds for each in TIMED if units.get(each)}
    if MEMORY in held:
        held[MEMORY] /= MIB_A_GIB
    return Cost(held)


@dataclass(slots=True)
class Account:
    """A cost that grows by itself, since a sandbox holds something between its commands.

    Attributes:
        spent: The cost until `since`.
        rate: What is added to it each second from then on; replaced as a whole.
        since: In seconds since the epoch.
    """

    spent: Cost = field(default_factory=Cost)
    rate: Cost = field(default_factory=Cost)
    since: float = 0.0

    def until(self, now: float) -> Cost:
        """The cost until now."""
        cost = self.spent.copy()
        if self.rate and now > self.since:
            cost.add(self.rate, now - self.since)
        return cost

    def change_rate(self, before: Cost, after: Cost, now: float) -> None:
        """From now on another rate replaces one that is a part of its own."""
        self.settle(now)
        rate = self.rate.copy()
        rate.add(before, -1.0)
        rate.add(after)
        self.rate = Cost(
            *({each: amount for each, amount in part.items() if amount} for part in (rate.held, rate.used))
        )

    def settle(self, now: float) -> None:
        """Adds what has grown until now."""
        if self.rate and now > self.since:
            self.spent.add(self.rate, now - self.since)
        self.since = max(self.since, now)

    def copy(self) -> Account:
        """One that does not change with it."""
        return Account(self.spent.copy(), self.rate, self.since)


NOTHING: Final = Cost()
"""Nobody changes it."""
