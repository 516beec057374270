"""Predictions of the scheduler for an action, and for a larger pool. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """The expected needs of an action, at its fewest units.

    Attributes:
        mean_s: Mean execution time, bounded by its timeout.
        low_s: One in ten is shorter.
        high_s: One in ten is longer.
        use: CPU cores used on average while it runs.
        peak_memory_mb: Memory that one in twenty exceeds.
        amdahl_fraction: Share of its work that more units divide among them.
        observations: Runs of the same job, kind, label and task behind this, older ones counted less.
    """

    mean_s: float
    low_s: float
    high_s: float
    use: float
    peak_memory_mb: float
    amdahl_fraction: float
    observations: float


@dataclass(frozen=True, slots=True)
class ClassOutlook:
    """The prospects of a class of waiting actions.

    Attributes:
        name: The class, in words.
        waiting: Members.
        mean_wait_s: Until they start.
        mean_end_s: Until they end.
        stuck: Members that no node could ever run.
        waited_s: The mean wait of its members so far.
    """

    name: str
    waiting: int
    mean_wait_s: float
    mean_end_s: float
    stuck: int
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Commands that share the cores of their sandboxes' nodes, in one pool.

    Attributes:
        cores: Cores of the pool.
        running: Commands that run.
        use: Cores they would use if there were enough.
        mean_act_s: Their mean expected completion time with the present cores, their execution so far included.
    """

    cores: int
    running: int
    use: float
    mean_act_s: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """The prospects of actions if nothing new arrives.

    Attributes:
        mean_act_s: Mean predicted completion time: from now for those that wait, as a whole for those that share cores.
        classes: Actions that wait and are free to go to any node.
        start_now: Of these, those that start in the next planning round.
        shared: Commands that share the cores of the pool asked for.
    """

    mean_act_s: float
    classes: tuple[ClassOutlook, ...]
    start_now: int
    shared: SharedCores


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The effect of more nodes in a pool.

    Attributes:
        pool: Name of the pool.
        nodes: Its nodes now.
        before: With these.
        after: With those added.
        summary: The comparison as a sentence, with numbers.
    """

    pool: str
    nodes: int
    before: Outlook
    after: Outlook
    summary: str
