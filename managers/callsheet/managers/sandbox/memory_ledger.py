"""The memory of a node's sandboxes, against what they may have together: who may run, and who waits. Pure.

By need, a sandbox has its whole demand while something runs in it, and between its actions what it holds. As nothing
goes beyond its demand, the sum stays within the limit: nobody is killed for the sake of others.

What sandboxes hold grows, and if all of them waited for the rest of their demand, none would ever end. So one more
runs only where an order is left in which every sandbox comes to its end: each in turn gets its whole demand beside all
that is held, and as much again for a reward in a copy, and gives all of that back. (This is the banker's algorithm, for
one resource.) One demand of the node is in reserve for that. The part for a copy is left out where it would be more
than a third of the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Stay(Enum):
    """How long a sandbox stays: for its trajectory, for one attempt, or until its memory is wanted by others."""

    TRAJECTORY = "trajectory"
    ATTEMPT = "attempt"
    SPARE = "spare"


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """What a sandbox's memory depends on besides its demand.

    Attributes:
        stay: How long the sandbox stays.
        guaranteed: Its whole demand is kept for its life.
        beside: The trajectory's sandbox that it scores, for one that stays for an attempt; empty for none.
    """

    stay: Stay = Stay.TRAJECTORY
    guaranteed: bool = False
    beside: str = ""


@dataclass(slots=True)
class _Entry:
    """One sandbox.

    Attributes:
        held_mib: What it holds between its actions; None while that is not known.
        passed: Others that went before it since it waits.
    """

    demand_mib: int
    terms: MemoryTerms
    held_mib: int | None = None
    running: bool = True
    passed: int = 0

    @property
    def rest_mib(self) -> int:
        """What it has between its actions."""
        whole = self.held_mib is None or self.terms.guaranteed or self.terms.stay is Stay.ATTEMPT
        return self.demand_mib if whole or self.held_mib is None else min(self.held_mib, self.demand_mib)

    @property
    def charge_mib(self) -> int:
        """What it has now."""
        return self.demand_mib if self.running else self.rest_mib

    @property
    def lasts(self) -> bool:
        """Whether it stays until its trajectory ends."""
        return self.terms.stay is Stay.TRAJECTORY


MOST_PASSED: Final = 256
"""Others that one which waits lets pass. Most demands are small and most actions short, so it waits little longer, and
a node is not idle until a large one has its memory: with 2 GB a core the mean of coding's actions falls by a third."""


class MemoryLedger:
    """Has memory for sandboxes, and a line of those that wait for some.

    First come, first served, but one that cannot go lets `MOST_PASSED` others pass, and all of them if it could not go
    even with nothing running: then they have to end before it. New sandboxes of trajectories pass nobody.

    Attributes:
        limit_mib: What all sandboxes may have together, in MiB; None for no limit.
        by_need: Whether sandboxes give back, between their actions, what they do not hold.
        booked_mib: What all have now.
        line: Those that wait, by their ids, the first one first.
    """

    def __init__(self, limit_mib: int | None, *, by_need: bool = False) -> None:
        self.limit_mib = limit_mib
        self.by_need = by_need
        self.booked_mib = 0
        self._largest_mib = 0
        self._entries: dict[str, _Entry] = {}
        self.line: dict[str, _Entry] = {}

    def held_mib(self, sandbox_id: str) -> int:
        """What a sandbox holds between its actions; 0 where it has its whole demand then."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.running or entry.rest_mib == entry.demand_mib:
            return 0
        return max(1, entry.rest_mib)

    def fits_alone(self, demand_mib: int, terms: MemoryTerms) -> bool:
        """Whether a new sandbox could go if there were no other but the one that it scores."""
        scored = self._entries.get(terms.beside)
        beside_mib = scored.rest_mib if scored is not None else 0
        return self.limit_mib is None or demand_mib + beside_mib <= self.limit_mib

    def ask(self, sandbox_id: str, demand_mib: int, terms: MemoryTerms) -> None:
        """Puts a sandbox that is to be made, or a spare that is taken, into the line; `advance` tells when it goes."""
        known = self._entries.get(sandbox_id)
        if sandbox_id in self.line or (known is not None and known.terms.stay is not Stay.SPARE):
            raise ValueError(f"sandbox_id: {sandbox_id!r}: has memory already")
        self.line[sandbox_id] = _Entry(demand_mib, terms)

    def thaw(self, sandbox_id: str) -> bool:
        """Puts a sandbox in which something is to run into the line; returns whether it needs more than it has."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.charge_mib == entry.demand_mib:
            if entry is not None:
                entry.running = True
            return False
        self.line[sandbox_id] = entry
        return True

    def rest(self, sandbox_id: str, held_mib: int | None) -> None:
        """Notes that nothing runs in a sandbox, and what it holds now; None if that is not known."""
        entry = self._entries.get(sandbox_id)
        if entry is not None:
            self._count(entry, -1)
            entry.running, entry.held_mib = False, held_mib if self.by_need else None
            self._count(entry, 1)

    def withdraw(self, sandbox_id: str) -> None:
        """Takes a sandbox out of the line, if it is there."""
        self.line.pop(sandbox_id, None)

    def give_back(self, sandbox_id: str) -> None:
        """Takes back all that a sandbox has, if anything."""
        self.line.pop(sandbox_id, None)
        if (entry := self._entries.pop(sandbox_id, None)) is not None:
            self._count(entry, -1)

    def advance(self) -> list[str]:
        """Lets those of the line run who can; returns them. Call it after every other change."""
        admitted: list[str] = []
        ahead: list[_Entry] = []
        for sandbox_id, entry in list(self.line.items()):
            if ahead and entry.lasts and self._entries.get(sandbox_id) is not entry:
                continue
            if self._can_run(sandbox_id, entry):
                self.give_back(sandbox_id)
                entry.running = True
                self._entries[sandbox_id] = entry
                self._count(entry, 1)
                self._largest_mib = max(self._largest_mib, entry.demand_mib)
                admitted.append(sandbox_id)
                entry.passed = 0
                for each in ahead:
                    each.passed += 1
            elif entry.passed >= MOST_PASSED and self._can_run(sandbox_id, entry, at_rest=True):
                break
            else:
                ahead.append(entry)
        return admitted

    def stuck(self) -> str | None:
        """Returns a reward's sandbox that would wait for ever, as all others wait too; first one without reserve."""
        waiting = {*self.line, *(each.terms.beside for each in self.line.values())}
        entries = self._entries.items()
        if not self.line or any(each.running or not each.lasts or other not in waiting for other, each in entries):
            return None
        rewards = {each: entry for each, entry in self.line.items() if entry.terms.stay is Stay.ATTEMPT}
        return min(rewards, key=lambda each: self._is_reserved_for(rewards[each]), default=None)

    def _is_reserved_for(self, reward: _Entry) -> bool:
        scored = self._entries.get(reward.terms.beside)
        return scored is not None and reward.demand_mib <= self._wants(scored.demand_mib) - scored.demand_mib

    def _wants(self, demand_mib: int) -> int:
        """The most that a trajectory may want: as much again for a reward in a copy, if a third of the node will do."""
        return demand_mib if self.limit_mib is not None and 3 * demand_mib > self.limit_mib else 2 * demand_mib

    def _count(self, entry: _Entry, sign: int) -> None:
        self.booked_mib += sign * entry.charge_mib

    def _can_run(self, sandbox_id: str, entry: _Entry, *, at_rest: bool = False) -> bool:
        """Whether a sandbox can have its demand, now or once nothing else runs and only what lasts is left."""
        if self.limit_mib is None:
            return True
        own = self._entries.get(sandbox_id)
        others = [each for each in self._entries.values() if each is not own and each.lasts] if at_rest else []
        taken = sum(each.rest_mib for each in others) if at_rest else self.booked_mib - (own.charge_mib if own else 0)
        free = self.limit_mib - taken - entry.demand_mib
        if free < 0 or not self.by_need or not entry.lasts:
            return free >= 0
        return free >= 2 * max(self._largest_mib, entry.demand_mib) or self._all_can_end(own, entry, at_rest=at_rest)

    def _all_can_end(self, own: _Entry | None, entry: _Entry, *, at_rest: bool) -> bool:
        """Whether, with a sandbox running, all can have what they may want, one after another, and end."""
        assert self.limit_mib is not None
        lasting = [each for each in self._entries.values() if each.lasts and each is not own]
        has = [(each.demand_mib, each.rest_mib if at_rest else each.charge_mib) for each in lasting]
        has.append((entry.demand_mib, entry.demand_mib))
        free = self.limit_mib - sum(charge for _, charge in has)
        for needed, charge in sorted((self._wants(demand) - charge, charge) for demand, charge in has):
            if needed > free:
                return False
            free += charge
        return True
