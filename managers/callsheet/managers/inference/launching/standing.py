"""Where a launched server stands, and when it is started again. No I/O and no clock.

Times are seconds of the machine's monotonic clock, which its processes have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from callsheet.timing.backoff import backoff_s


class ServerPhase(StrEnum):
    """What a launched server is doing."""

    STARTING = "starting"
    """Its process runs, and did not serve yet."""
    SERVING = "serving"
    WAITING = "waiting"
    """It has ended and is started again later."""
    GIVEN_UP = "given_up"
    """It never served, and is not started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """When a server that ended is started again.

    Attributes:
        start_timeout_s: The longest time until it must serve.
        initial_s: The wait after a first failure; it doubles with each further one in a row.
        longest_s: The longest wait.
        healthy_after_s: A server that has served for this long starts a new row.
        stop_grace_s: How long a server may take to end once it was asked to.
        hung_after_s: A server that served and then does not for this long is ended, and so started again.
        first_failures: So many failures before it ever served end the manager: its command is wrong.
    """

    start_timeout_s: float = 900.0
    initial_s: float = 1.0
    longest_s: float = 60.0
    healthy_after_s: float = 60.0
    stop_grace_s: float = 5.0
    hung_after_s: float = 120.0
    first_failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStanding:
    """Where a server stands.

    Attributes:
        phase: What it is doing.
        since: Since when.
        starts: How often it was started.
        failures: How often it ended in a row.
        port: Where it listens, or will.
        pid: Its process, which leads a group of its own.
        served: Whether it ever served.
        why: How it ended last; empty if it never did.
        next_start: When it is started again, if it waits.
    """

    phase: ServerPhase = ServerPhase.WAITING
    since: float = 0.0
    starts: int = 0
    failures: int = 0
    port: int = 0
    pid: int = 0
    served: bool = False
    why: str = ""
    next_start: float = 0.0


def begun(standing: ServerStanding, now: float, *, port: int, pid: int) -> ServerStanding:
    """It was started."""
    return replace(
        standing, phase=ServerPhase.STARTING, since=now, starts=standing.starts + 1, port=port, pid=pid, next_start=0.0
    )


def now_serves(standing: ServerStanding, now: float) -> ServerStanding:
    """It was found to serve."""
    if standing.phase is not ServerPhase.STARTING:
        return standing
    return replace(standing, phase=ServerPhase.SERVING, since=now, served=True)


def ended(standing: ServerStanding, why: str, now: float, rule: RestartRule) -> ServerStanding:
    """It has ended, or could not be started."""
    healthy = standing.phase is ServerPhase.SERVING and now - standing.since >= rule.healthy_after_s
    failures = 1 if healthy else standing.failures + 1
    told = replace(standing, since=now, failures=failures, why=why, pid=0)
    if not standing.served and failures >= rule.first_failures:
        return replace(told, phase=ServerPhase.GIVEN_UP)
    wait_s = backoff_s(failures, rule.initial_s, rule.longest_s)
    return replace(told, phase=ServerPhase.WAITING, next_start=now + wait_s)


def overdue_at(standing: ServerStanding, rule: RestartRule) -> float | None:
    """When it has to serve at the latest; None while it need not."""
    return standing.since + rule.start_timeout_s if standing.phase is ServerPhase.STARTING else None


@dataclass(frozen=True, slots=True)
class Silence:
    """Since when looks find that a server does not serve.

    Attributes:
        start: Of which of its starts that is.
        since: When the first of these looks was.
    """

    start: int
    since: float


def after_silent_look(silence: Silence | None, start: int, now: float) -> Silence:
    """Returns what is known after another look at a start that did not serve."""
    return silence if silence is not None and silence.start == start else Silence(start, now)


def is_hung(standing: ServerStanding, silence: Silence, now: float, rule: RestartRule) -> bool:
    """Whether a server that served is to be ended, since it serves no longer."""
    served = standing.phase is ServerPhase.SERVING and standing.starts == silence.start
    return served and now - silence.since >= rule.hung_after_s


def describe(standing: ServerStanding, now: float, log_path: str) -> str:
    """Returns why it does not serve, as a sentence for people; empty if it does."""
    if standing.phase is ServerPhase.SERVING:
        return ""
    before = f", after it ended {_times(standing.failures)} ({standing.why})" if standing.failures else ""
    if standing.phase is ServerPhase.STARTING:
        return f"its server is starting for {now - standing.since:.0f} s{before}; its log is {log_path}"
    if standing.phase is ServerPhase.GIVEN_UP:
        return f"its server ended {_times(standing.failures)} and never served: {standing.why}; its log is {log_path}"
    if not standing.failures:
        return f"its server is about to be started; its log is {log_path}"
    wait_s = max(standing.next_start - now, 0.0)
    row = f"its server ended {_times(standing.failures)} in a row ({standing.why})"
    return f"{row} and is started again in {wait_s:.0f} s; its log is {log_path}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
