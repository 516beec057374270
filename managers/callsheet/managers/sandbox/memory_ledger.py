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

from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from math import inf, nextafter
from typing import Final

FIRST_PATIENCE_S: Final = 2.0
"""Seconds for which one that waits first lets others pass that keep it waiting. Most demands are small and most actions
short, so a node is not idle until a large one has its memory. With 8 s simulated coding on 2 GB a core took longer."""


class Stay(Enum):
    """How long a sandbox stays: for its trajectory, for one attempt, or until its memory is wanted by others."""

    TRAJECTORY = "trajectory"
    ATTEMPT = "attempt"
    SPARE = "spare"


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Terms of a sandbox's memory besides its demand.

    Attributes:
        stay: How long the sandbox stays.
        guaranteed: Its whole demand is kept for its life.
        beside: The trajectory's sandbox that it scores, for one that stays for an attempt; empty for none.
        expected_s: Seconds that what makes it is expected to take; 0 if that is not known.
    """

    stay: Stay = Stay.TRAJECTORY
    guaranteed: bool = False
    beside: str = ""
    expected_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Entry:
    """One sandbox.

    Attributes:
        born: Its place in the order of all that was asked for.
        held_mib: What it holds between its actions; None while that is not known.
        asked: As `born`, for what runs in it or waits.
        expected_s: Seconds that this is expected to take; 0 if that is not known.
        began: When it began.
        patience_s: While it waits: seconds for which it lets others pass, and then lets nobody pass.
        could_since: Since when it could run if nobody had passed it; infinite if it could not.
        gave_up: When it last took those that had passed it for some that came before it.
    """

    demand_mib: int
    terms: MemoryTerms
    born: int
    held_mib: int | None = None
    running: bool = True
    asked: int = 0
    expected_s: float = 0.0
    began: float = -inf
    patience_s: float = FIRST_PATIENCE_S
    could_since: float = inf
    gave_up: float = -inf

    @property
    def rest_mib(self) -> int:
        """Memory between its actions."""
        whole = self.held_mib is None or self.terms.guaranteed or self.terms.stay is Stay.ATTEMPT
        return self.demand_mib if whole or self.held_mib is None else min(self.held_mib, self.demand_mib)

    @property
    def charge_mib(self) -> int:
        """Memory that it has now."""
        return self.demand_mib if self.running else self.rest_mib

    @property
    def lasts(self) -> bool:
        """True if it stays until its trajectory ends."""
        return self.terms.stay is Stay.TRAJECTORY

    def ends_at(self, now: float) -> float:
        """When what runs in it is expected to end: what takes longer than that may take as long again."""
        expected = self.began + self.expected_s
        return expected if expected > now else now + (now - self.began)


class MemoryLedger:
    """Has memory for sandboxes, and a line of those that wait for some.

    First come, first served, but one that cannot run yet lets others pass (`_lets_pass`): those that leave it its
    memory, and those that end before it can have it. Once only those that passed are in its way, by turns all may pass
    and nobody may, for equal times. These times double, so that one of them outlasts whatever passed.

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
        self._asked = 0
        self._entries: dict[str, _Entry] = {}
        self.line: dict[str, _Entry] = {}

    def held_mib(self, sandbox_id: str) -> int:
        """Returns the memory that a sandbox holds between its actions; 0 if it has its whole demand then."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.running or entry.rest_mib == entry.demand_mib:
            return 0
        return max(1, entry.rest_mib)

    def fits_alone(self, demand_mib: int, terms: MemoryTerms) -> bool:
        """Returns whether a new sandbox could go if there were no other but the one that it scores."""
        scored = self._entries.get(terms.beside)
        beside_mib = scored.rest_mib if scored is not None else 0
        return self.limit_mib is None or demand_mib + beside_mib <= self.limit_mib

    def ask(self, sandbox_id: str, demand_mib: int, terms: MemoryTerms) -> None:
        """Puts a sandbox that is to be made, or a spare that is taken, into the line; `advance` tells when it goes."""
        known = self._entries.get(sandbox_id)
        if sandbox_id in self.line or (known is not None and known.terms.stay is not Stay.SPARE):
            raise ValueError(f"sandbox_id: {sandbox_id!r}: has memory already")
        self._wait(sandbox_id, _Entry(demand_mib, terms, self._asked + 1), terms.expected_s)

    def thaw(self, sandbox_id: str, expected_s: float = 0.0) -> bool:
        """Puts a sandbox in which something is to run into the line; returns whether it needs more than it has."""
        entry = self._entries.get(sandbox_id)
        if entry is None or entry.charge_mib == entry.demand_mib:
            if entry is not None:
                entry.running = True
            return False
        self._wait(sandbox_id, entry, expected_s)
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

    def advance(self, now: float) -> list[str]:
        """Lets those of the line run who can; returns them. Call it after every other change, and now and then."""
        admitted: list[str] = []
        ahead: dict[str, _Entry] = {}
        least_new_mib = inf
        for sandbox_id, entry in list(self.line.items()):
            new = entry.lasts and self._entries.get(sandbox_id) is not entry
            can_run = self._can_run(sandbox_id, entry)
            # No new one passes a smaller one, which would have gone.
            goes = can_run and not (new and entry.demand_mib >= least_new_mib)
            if goes and all(self._lets_pass(each, other, entry, now, new=new) for each, other in ahead.items()):
                self.give_back(sandbox_id)
                entry.running, entry.began = True, now
                self._entries[sandbox_id] = entry
                self._count(entry, 1)
                self._largest_mib = max(self._largest_mib, entry.demand_mib)
                admitted.append(sandbox_id)
                for other in self.line.values():
                    if other.asked > entry.asked:
                        other.could_since = inf
            else:
                if not can_run:
                    ahead[sandbox_id] = entry
                least_new_mib = min(least_new_mib, entry.demand_mib) if new else least_new_mib
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

    def _wait(self, sandbox_id: str, entry: _Entry, expected_s: float) -> None:
        self._asked += 1
        entry.asked, entry.expected_s = self._asked, expected_s
        entry.patience_s, entry.could_since, entry.gave_up = FIRST_PATIENCE_S, inf, -inf
        self.line[sandbox_id] = entry

    def _lets_pass(self, sandbox_id: str, entry: _Entry, other: _Entry, now: float, *, new: bool) -> bool:
        """Returns whether a waiting entry lets another pass that could run now; `new` for a sandbox to be made."""

        def could(ended: Callable[[_Entry], bool], beside: Set[_Entry] = frozenset()) -> bool:
            return self._could_run(sandbox_id, entry, ended, beside)

        def passed(each: _Entry) -> bool:
            return each.asked > entry.asked and each.began > entry.gave_up

        def before(at: float) -> Callable[[_Entry], bool]:
            return lambda each: passed(each) or each.ends_at(now) < at

        if not new and entry.could_since <= now < entry.could_since + entry.patience_s:
            return True
        if not new and not could(before(now + other.expected_s)):
            entry.could_since = inf
            return True
        could_now = could(passed)
        if could_now and now >= entry.could_since + 2 * entry.patience_s:
            # What passed it takes longer than this. From now on it is as if that had come first.
            entry.patience_s, entry.gave_up, could_now = 2 * entry.patience_s, now, False
        entry.could_since = min(entry.could_since, now) if could_now else inf
        if new and not could(lambda _: True):
            # What others hold is in its way until their trajectories end.
            return False
        if not new and entry.could_since == now:
            return True
        ready_at = now
        if not could_now:
            ends = [now, *sorted(each.ends_at(now) for each in self._entries.values() if each.running)]
            ready_at = ends[bisect_left(ends, True, key=lambda end: could(before(nextafter(end, inf))))]
        grown = (each for each in self._entries.values() if new and each.born > entry.asked)
        return could(lambda each: each.ends_at(now) <= ready_at, {other, *grown})

    def _could_run(self, sandbox_id: str, entry: _Entry, ended: Callable[[_Entry], bool], beside: Set[_Entry]) -> bool:
        """Returns whether a sandbox could have its demand beside others once some have ended their actions."""
        own = self._entries.get(sandbox_id)
        has_mib: dict[_Entry, int] = {}
        for each in (*self._entries.values(), *beside):
            if each in beside or (each.running and not ended(each)):
                has_mib[each] = each.demand_mib
            elif each is not own and each.terms.stay is Stay.TRAJECTORY:
                has_mib[each] = each.rest_mib
        return self._can_run(sandbox_id, entry, has_mib)

    def _can_run(self, sandbox_id: str, entry: _Entry, has_mib: Mapping[_Entry, int] | None = None) -> bool:
        """Returns whether a sandbox can have its demand while others have so much, by default as much as now."""
        if self.limit_mib is None:
            return True
        own = self._entries.get(sandbox_id)
        now_mib = self.booked_mib - (own.charge_mib if own else 0)
        free = self.limit_mib - entry.demand_mib - (now_mib if has_mib is None else sum(has_mib.values()))
        if free < 0 or not self.by_need or not entry.lasts:
            return free >= 0
        if free >= 2 * max(self._largest_mib, entry.demand_mib):
            return True
        if has_mib is None:
            has_mib = {each: each.charge_mib for each in self._entries.values() if each is not own}
        return self._all_can_end({**has_mib, entry: entry.demand_mib})

    def _all_can_end(self, has_mib: Mapping[_Entry, int]) -> bool:
        """Returns whether all that last can have their demands, one after another, and end."""
        assert self.limit_mib is not None
        lasting = [(each.demand_mib, mib) for each, mib in has_mib.items() if each.lasts]
        free = self.limit_mib - sum(mib for _, mib in lasting)
        for needed, mib in sorted((self._wants(demand) - mib, mib) for demand, mib in lasting):
            if needed > free:
                return False
            free += mib
        return True
