"""Standing of a supervised process: starting, serving, waiting for its next start, or given up. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from callsheet.timing.backoff import backoff_s


class ProcessPhase(StrEnum):
    """Phases of a supervised process."""

    STARTING = "starting"
    """It runs, and does not serve yet."""
    SERVING = "serving"
    WAITING = "waiting"
    """It has ended and is started again later."""
    GIVEN_UP = "given_up"
    """It failed too often, and is not started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a process that ended by itself is started again.

    Attributes:
        enabled: False leaves it ended until it is asked for.
        initial_s: Wait before the first restart; it doubles with each further end in a row.
        longest_s: Longest wait.
        healthy_after_s: A process that has served for this long starts a new row.
        first_failures: More failures before it ever served give it up.
        most_failures: More failures in a row give it up; None never does.
    """

    enabled: bool = True
    initial_s: float = 1.0
    longest_s: float = 60.0
    healthy_after_s: float = 60.0
    first_failures: int = 2
    most_failures: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStanding:
    """Standing of a supervised process so far. Times are the monotonic clock's.

    Attributes:
        phase: Its phase.
        since: The time at which that phase began.
        starts: How often the process was started.
        failures: Failures in a row.
        served: Whether any start ever served.
        why: How its newest end came about.
        next_start: When it is started again.
    """

    phase: ProcessPhase = ProcessPhase.WAITING
    since: float = 0.0
    starts: int = 0
    failures: int = 0
    served: bool = False
    why: str = ""
    next_start: float = 0.0


def begun(standing: ProcessStanding, now: float) -> ProcessStanding:
    """Returns what is so after a start."""
    return replace(standing, phase=ProcessPhase.STARTING, since=now, starts=standing.starts + 1, next_start=0.0)


def now_serves(standing: ProcessStanding, now: float) -> ProcessStanding:
    """Returns what is so once a start was found to serve."""
    if standing.phase is not ProcessPhase.STARTING:
        return standing
    return replace(standing, phase=ProcessPhase.SERVING, since=now, served=True)


def ended(
    standing: ProcessStanding, why: str, now: float, rule: RestartRule, *, expected: bool = False
) -> ProcessStanding:
    """Returns what is so after an end: another start later, or none. An expected end is no failure."""
    healthy = standing.phase is ProcessPhase.SERVING and now - standing.since >= rule.healthy_after_s
    failures = (0 if healthy else standing.failures) + (not expected)
    told = replace(standing, since=now, failures=failures, why=why)
    most = rule.most_failures if standing.served else rule.first_failures
    if most is not None and failures > most:
        return replace(told, phase=ProcessPhase.GIVEN_UP)
    wait_s = backoff_s(max(1, failures), rule.initial_s, rule.longest_s)
    return replace(told, phase=ProcessPhase.WAITING, next_start=now + wait_s)
