"""Settings of a manager process that do not depend on what it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from callsheet.credentials.channel import Credentials
from callsheet.v1 import manager_service_pb2

END_MARGIN_S = 10.0
"""For its farewell to the scheduler, its channel, and its threads, on a machine that has little time for it."""


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Settings of the manager runtime.

    Attributes:
        scheduler_address: Where to dial, "host:port".
        manager_id: Unique among managers and stable over restarts.
        node: The machine; see `callsheet.managers.node.describe_node`.
        drain_timeout_s: On a first SIGTERM, how long attempts may go on before they are stopped.
        acknowledge_timeout_s: After that, how long to wait for the scheduler to acknowledge the last ends.
        close_timeout_s: How long the executor may take to release everything.
        stop_grace_s: How long an attempt may take to stop once it is asked to.
        control_timeout_s: How long an executor may take to resize or release.
        registration_timeout_s: How long the scheduler may take to answer a registration.
        reconnect_initial_s: First wait before dialling again.
        reconnect_max_s: Longest wait before dialling again; never more than a quarter of the lease.
        max_attempts: Attempts at once; more are refused as "manager_overloaded".
        max_unacknowledged_ends: Ends kept for the scheduler, those of running attempts counted in; beyond that,
            dispatches are refused as "manager_overloaded".
        max_unacknowledged_bytes: The same, in bytes.
        max_outbox_items: Items waiting to be written to the stream; beyond that, nothing is read from it.
        stall_timeout_s: How long the scheduler may leave that many unread before the stream is given up.
        max_end_bytes: Size of one end; a larger one is reported as "result_too_large".
        max_payload_bytes: Size of one payload that is read or written.
        payload_timeout_s: How long to keep trying to read or write one payload while the scheduler is away.
        credentials: How it recognises the scheduler and says who it is.
        health_file: Renewed with each heartbeat, and there only while the manager is registered.
        handle_signals: Drain on SIGTERM and SIGINT. Works in the main thread only, and for one manager in a process.
    """

    scheduler_address: str
    manager_id: str
    node: manager_service_pb2.NodeSpec
    drain_timeout_s: float = 30.0
    acknowledge_timeout_s: float = 5.0
    close_timeout_s: float = 10.0
    stop_grace_s: float = 5.0
    control_timeout_s: float = 10.0
    registration_timeout_s: float = 10.0
    stall_timeout_s: float = 30.0
    reconnect_initial_s: float = 0.1
    reconnect_max_s: float = 5.0
    max_attempts: int = 16_384
    max_unacknowledged_ends: int = 65_536
    max_unacknowledged_bytes: int = 256 << 20
    max_outbox_items: int = 65_536
    max_end_bytes: int = 8 << 20
    max_payload_bytes: int = 1 << 30
    payload_timeout_s: float = 60.0
    credentials: Credentials = field(default_factory=Credentials)
    health_file: Path | None = None
    handle_signals: bool = True

    def __post_init__(self) -> None:
        for name in ("scheduler_address", "manager_id"):
            if not getattr(self, name):
                raise ValueError(f"{name}: '' is empty; it must be given")
        if not self.node.node_id:
            raise ValueError("node.node_id: '' is empty; it must be given")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                _check_number(item.name, value)

    @property
    def longest_end_s(self) -> float:
        """After a first SIGTERM its process ends within so many seconds, whatever does not answer."""
        return (
            self.drain_timeout_s + self.stop_grace_s + self.acknowledge_timeout_s + self.close_timeout_s + END_MARGIN_S
        )

    @property
    def cores(self) -> tuple[int, ...]:
        """The node's cores, in its order."""
        return tuple(core for numa_node in self.node.numa_nodes for core in numa_node.cores)


def _check_number(name: str, value: float) -> None:
    if name.startswith(("max_", "reconnect_")):
        if value <= 0:
            raise ValueError(f"{name}: {value} must be above 0")
    elif value < 0:
        raise ValueError(f"{name}: {value} must be 0 or more")
