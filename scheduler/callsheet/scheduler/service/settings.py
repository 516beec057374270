"""Settings of a scheduler process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from callsheet.scheduler.service.expected_roles import expected_roles


class PlannerChoice(Enum):
    """What decides which actions start.

    ELASTIC: classes by price, with a solver where resources are short. FIRST_COME: in order of arrival, best fit.
    """

    ELASTIC = "elastic"
    FIRST_COME = "first-come"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of a scheduler; times in seconds, sizes in bytes.

    Attributes:
        data_dir: Holds the journal (SQLite), payloads and the lock; made if missing.
        listen: Address to bind, "host:port"; port 0 takes a free one.
        database_url: SQLAlchemy URL of the journal instead of SQLite in `data_dir`.
        redis_url: Redis for payloads instead of files in `data_dir`.
        redis_namespace: Prefix of this scheduler's keys; schedulers that share a Redis need different ones.
        max_open_actions: Actions without an outcome; beyond it submits are refused.
        max_payload_bytes: Size of one stored payload.
        max_journal_backlog: Records waiting for a commit; beyond it streams are not read.
        heartbeat_interval: How often managers must say something.
        manager_lease: Silence after which a manager is lost.
        cancel_grace: How long a manager may take to end an attempt it was told to stop.
        job_grace: How long a job lives on without a client session unless it says so itself; then it expires.
        expired_job_lifetime: How long an expired job stays open, for a client that comes back for its outcomes.
        predictor_save_interval: How often what the predictors learned is saved.
        planner: What decides which actions start.
        hold_after: How long an action waits before a node is held for it.
        expect: Roles of managers that will register: what only they may serve waits until they have. See
            `callsheet.scheduler.service.expected_roles`.
        closed_actions: Most actions of closed jobs that can still be explained.
        closed_actions_s: How long after the close they can.
        keepalive_interval: How often a peer that says nothing is asked whether it is still there.
        keepalive_timeout: How long it may take to answer; then its streams end.
        shutdown_grace: How long running rpcs may take when the process stops.
    """

    data_dir: Path
    listen: str = "127.0.0.1:7077"
    database_url: str | None = None
    redis_url: str | None = None
    redis_namespace: str = "callsheet"
    max_open_actions: int = 1_000_000
    max_payload_bytes: int = 1 << 30
    max_journal_backlog: int = 200_000
    heartbeat_interval: float = 3.0
    manager_lease: float = 15.0
    cancel_grace: float = 15.0
    job_grace: float = 120.0
    expired_job_lifetime: float = 24 * 3600.0
    predictor_save_interval: float = 30.0
    planner: PlannerChoice = PlannerChoice.ELASTIC
    hold_after: float = 5.0
    expect: tuple[str, ...] = ()
    closed_actions: int = 10_000
    closed_actions_s: float = 3600.0
    keepalive_interval: float = 30.0
    keepalive_timeout: float = 20.0
    shutdown_grace: float = 2.0

    def __post_init__(self) -> None:
        expected_roles(self.expect)
