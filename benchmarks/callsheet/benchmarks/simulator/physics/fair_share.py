"""Commands that share cores: everybody gets what it can use, or a fair share where that is more than there is."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf, ulp

from callsheet.benchmarks.simulator.events import EventQueue

_RESOLUTION_S = 1e-9


class Runnable:
    """A command's need for CPU.

    Attributes:
        limit: CPU seconds after which it ends, unless its limit is changed before.
        attained: CPU seconds it had when it was last looked at.
        weight: Cores it competes for.
        cap: Cores it can use.
        ended: Called when it has attained its limit.
    """

    __slots__ = ("_limited", "_mark", "_version", "attained", "cap", "ended", "limit", "weight")

    def __init__(self, limit: float, weight: float, cap: float, ended: Callable[[], None]) -> None:
        self.limit = limit
        self.weight = weight
        self.cap = cap
        self.ended = ended
        self.attained = 0.0
        self._mark = 0.0  # when `attained` was true: in time, or where limited in the share's virtual time
        self._limited = False
        self._version = 0  # what was noted of an earlier version is void


class _Line:
    """Commands in some order, first on top. What was noted of a command's earlier version is void."""

    __slots__ = ("_entries", "_sequence")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Runnable, int]] = []
        self._sequence = 0  # so that equal ones keep their order

    def add(self, order: float, command: Runnable, valid: int) -> None:
        """Adds a command; `valid` is how many of the entries, this one included, are not void."""
        self._sequence += 1
        heapq.heappush(self._entries, (order, self._sequence, command, command._version))
        if len(self._entries) > 2 * valid + 64:
            self._entries = [entry for entry in self._entries if entry[3] == entry[2]._version]
            heapq.heapify(self._entries)

    def first(self) -> Runnable | None:
        """The first command whose entry is not void."""
        entries = self._entries
        while entries:
            entry = entries[0]
            if entry[3] == entry[2]._version:
                return entry[2]
            heapq.heappop(entries)
        return None

    @property
    def first_order(self) -> float:
        """The order of `first`, which must have been asked for before and be there."""
        return self._entries[0][0]


class FairShare:
    """Weighted fair sharing with caps: water-filling, in the virtual time of generalised processor sharing.

    A command is either satisfied (its rate is its cap) or limited (its rate is `level * weight`); the level is the one
    that hands out the whole capacity. Limited commands are counted in virtual time, which runs at the level: there the
    end of each is fixed, so a change costs O(log n) and not a look at all of them. Source of virtual time: Parekh and
    Gallager, "A generalized processor sharing approach to flow control", 1993.
    """

    __slots__ = (
        "_capacity",
        "_ends",
        "_events",
        "_level",
        "_limited",
        "_limited_count",
        "_limited_weight",
        "_satisfied",
        "_satisfied_caps",
        "_satisfied_count",
        "_virtual",
        "_virtual_at",
        "_wakes_at",
    )

    def __init__(self, capacity: float, events: EventQueue) -> None:
        self._events = events
        self._capacity = capacity
        self._satisfied = _Line()  # the first to become limited first: highest cap per weight
        self._satisfied_caps = 0.0
        self._satisfied_count = 0
        self._limited = _Line()  # the first to become satisfied first
        self._limited_weight = 0.0
        self._limited_count = 0
        self._ends = _Line()  # of limited commands, in virtual time
        self._level = inf
        self._virtual = 0.0
        self._virtual_at = 0.0
        self._wakes_at = inf

    @property
    def used(self) -> float:
        """Cores in use."""
        return self._capacity if self._limited_count else self._satisfied_caps

    @property
    def anyone(self) -> bool:
        """Whether any command runs."""
        return self._limited_count + self._satisfied_count > 0

    def join(self, command: Runnable) -> None:
        """Lets a command run."""
        self._advance()
        self._satisfy(command)
        self._settle()

    def leave(self, command: Runnable) -> None:
        """Takes a command out; its `attained` is up to date then."""
        self._advance()
        self._take_out(command)
        self._settle()

    def resize(self, capacity: float) -> None:
        """Sets the cores there are to share."""
        if capacity != self._capacity:
            self._advance()
            self._capacity = capacity
            self._settle()

    def attained(self, command: Runnable) -> float:
        """CPU seconds a command of this share has had up to now."""
        if command._limited:
            # While nobody was limited the level was infinite, and stays so until all are settled.
            passed = self._events.now - self._virtual_at
            virtual = self._virtual + self._level * passed if passed else self._virtual
            return min(command.limit, command.attained + command.weight * (virtual - command._mark))
        return min(command.limit, command.attained + command.cap * (self._events.now - command._mark))

    def _advance(self) -> None:
        now = self._events.now
        if self._limited_count:
            self._virtual += self._level * (now - self._virtual_at)
        self._virtual_at = now

    def _satisfy(self, command: Runnable) -> None:
        now = self._events.now
        command._limited = False
        command._mark = now
        self._satisfied_caps += command.cap
        self._satisfied_count += 1
        self._satisfied.add(-command.cap / command.weight, command, self._satisfied_count)
        remaining = (command.limit - command.attained) / command.cap
        self._events.at(now + remaining, self._reached, (command, command._version))

    def _limit(self, command: Runnable) -> None:
        command._limited = True
        command._mark = self._virtual
        self._limited_weight += command.weight
        self._limited_count += 1
        self._limited.add(command.cap / command.weight, command, self._limited_count)
        end = self._virtual + (command.limit - command.attained) / command.weight
        self._ends.add(end, command, self._limited_count)

    def _take_out(self, command: Runnable) -> None:
        command.attained = self.attained(command)
        command._version += 1
        if command._limited:
            self._limited_count -= 1
            # Sums that are known to be nothing are set so: rounding must not pile up over millions of commands.
            self._limited_weight = self._limited_weight - command.weight if self._limited_count else 0.0
        else:
            self._satisfied_count -= 1
            self._satisfied_caps = self._satisfied_caps - command.cap if self._satisfied_count else 0.0

    def _find_level(self) -> float:
        left = self._capacity - self._satisfied_caps
        if self._limited_count:
            return left / self._limited_weight
        return inf if left >= -1e-9 * self._capacity else -inf

    def _settle(self) -> None:
        """Moves commands between satisfied and limited until the level fits all of them, then sets the next wake."""
        level = self._find_level()
        while (first := self._satisfied.first()) is not None and first.cap > level * first.weight:
            self._take_out(first)
            self._limit(first)
            level = self._find_level()
        while (first := self._limited.first()) is not None and first.cap <= level * first.weight:
            self._take_out(first)
            self._satisfy(first)
            level = self._find_level()
        self._level = level
        self._wake()

    def _wake(self) -> None:
        first = self._ends.first()
        if first is None or self._level <= 0.0:
            return
        at = self._virtual_at + (self._ends.first_order - self._virtual) / self._level
        # A wake that comes too early looks again; only one that would come too late is replaced.
        if at < self._wakes_at:
            self._wakes_at = at
            self._events.at(at, self._woken, at)

    def _woken(self, at: float) -> None:
        if at != self._wakes_at:
            return
        self._wakes_at = inf
        self._advance()
        while (first := self._ends.first()) is not None and self._is_due(self._ends.first_order):
            first.ended()
        self._wake()

    def _is_due(self, end: float) -> bool:
        """Whether an end in virtual time is now. What is nearer than time can be told apart would never come nearer."""
        resolution_s = _RESOLUTION_S + ulp(self._events.now)
        return end - self._virtual <= max(self._level, 0.0) * resolution_s + 1e-12 * self._virtual

    def _reached(self, noted: tuple[Runnable, int]) -> None:
        command, version = noted
        if command._version == version:
            command.ended()
