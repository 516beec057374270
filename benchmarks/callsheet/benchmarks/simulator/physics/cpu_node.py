"""A CPU node: the cores its commands share in two lanes, and its memory."""

from __future__ import annotations

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.level import Level
from callsheet.benchmarks.simulator.physics.fair_share import FairShare, Runnable
from callsheet.benchmarks.simulator.policy import Lane


class CpuNode:
    """Foreground commands share all cores, background ones what these leave, paused ones get nothing.

    Args:
        name: For errors.
        cores: Of the node.
        memory_mb: Of the node.
        events: Virtual time.
        used: Where the cores in use are added up, over all nodes.
        held: Where the cores held are added up: no node holds more than it has.
    """

    def __init__(self, name: str, cores: int, memory_mb: int, *, events: EventQueue, used: Level, held: Level) -> None:
        self.name = name
        self.cores = cores
        self.free_memory_mb = memory_mb
        self._foreground = FairShare(float(cores), events)
        self._background = FairShare(float(cores), events)
        self._shares = {Lane.FOREGROUND: self._foreground, Lane.BACKGROUND: self._background}
        self._used_now = 0.0
        self._used = used
        self._held_widths = 0
        self._held = held

    def start(self, command: Runnable, lane: Lane) -> None:
        """Lets a command run in a lane."""
        self._join(command, lane)
        self._settle()

    def stop(self, command: Runnable, lane: Lane) -> None:
        """Takes a command out of its lane; its `attained` is up to date then."""
        self._leave(command, lane)
        self._settle()

    def move(self, command: Runnable, lane: Lane, to: Lane) -> None:
        """Moves a command between lanes."""
        self._leave(command, lane)
        self._join(command, to)
        self._settle()

    def attained(self, command: Runnable, lane: Lane) -> float:
        """CPU seconds that a command in this lane has had up to now."""
        share = self._shares.get(lane)
        return command.attained if share is None else share.attained(command)

    def hold(self, cores: int) -> None:
        """Counts cores as held from now on (or no longer, if negative)."""
        before = min(self._held_widths, self.cores)
        self._held_widths += cores
        self._held.add(min(self._held_widths, self.cores) - before)

    def take_memory(self, memory_mb: int, reason: str) -> None:
        """Takes memory.

        Raises:
            ValueError: There is not so much.
        """
        if memory_mb > self.free_memory_mb:
            raise ValueError(f"{reason}: needs {memory_mb} MB of memory; {self.name} has {self.free_memory_mb} MB free")
        self.free_memory_mb -= memory_mb

    def _join(self, command: Runnable, lane: Lane) -> None:
        if lane is not Lane.PAUSED:
            self._shares[lane].join(command)

    def _leave(self, command: Runnable, lane: Lane) -> None:
        if lane is not Lane.PAUSED:
            self._shares[lane].leave(command)

    def _settle(self) -> None:
        used = self._foreground.used
        if self._background.anyone:
            self._background.resize(max(0.0, self.cores - used))
            used += self._background.used
        if used != self._used_now:
            self._used.add(used - self._used_now)
            self._used_now = used
