"""How much a scheduler holds, and how much of it one job or one peer may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import Setting

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds of what clients and managers send, and of what waits for them; sizes in bytes."""

    max_open_bytes: Annotated[
        int,
        Setting(
            "Bytes of open actions beyond which submits are refused.",
            variable="CALLSHEET_MAX_OPEN_BYTES",
            least=4 * _MIB,
        ),
    ] = 1024 * _MIB
    max_job_open_actions: Annotated[
        int, Setting("Open actions of one job.", variable="CALLSHEET_MAX_JOB_OPEN_ACTIONS", least=1)
    ] = 500_000
    max_job_open_bytes: Annotated[
        int, Setting("Bytes of one job's open actions.", variable="CALLSHEET_MAX_JOB_OPEN_BYTES", least=4 * _MIB)
    ] = 512 * _MIB
    max_open_jobs: Annotated[
        int, Setting("Open jobs beyond which no more are opened.", variable="CALLSHEET_MAX_OPEN_JOBS", least=1)
    ] = 10_000
    max_open_trajectories: Annotated[
        int,
        Setting(
            "Open trajectories beyond which no more are opened.", variable="CALLSHEET_MAX_OPEN_TRAJECTORIES", least=1
        ),
    ] = 200_000
    max_job_open_trajectories: Annotated[
        int, Setting("The same for one job.", variable="CALLSHEET_MAX_JOB_OPEN_TRAJECTORIES", least=1)
    ] = 100_000
    max_pending_bytes: Annotated[
        int,
        Setting(
            "Bytes that wait for the core or a commit; beyond them no stream is read.",
            variable="CALLSHEET_MAX_PENDING_BYTES",
            least=4 * _MIB,
        ),
    ] = 256 * _MIB
    max_unread_bytes: Annotated[
        int,
        Setting(
            "Bytes that all streams leave unread; beyond them the stream with the most ends.",
            variable="CALLSHEET_MAX_UNREAD_BYTES",
            least=64 * _MIB,
        ),
    ] = 1024 * _MIB
    max_peer_calls: Annotated[
        int,
        Setting("Calls of one peer at once, streams among them.", variable="CALLSHEET_MAX_PEER_CALLS", least=1),
    ] = 4096
    max_peer_requests_s: Annotated[
        int, Setting("Calls of one peer each second.", variable="CALLSHEET_MAX_PEER_REQUESTS_S", least=1)
    ] = 5_000
    max_peer_items_s: Annotated[
        int,
        Setting(
            "Items that are read from one peer's streams each second.", variable="CALLSHEET_MAX_PEER_ITEMS_S", least=1
        ),
    ] = 200_000
    max_stored_bytes: Annotated[
        int | None,
        Setting(
            "Bytes of all payloads in the data directory.",
            variable="CALLSHEET_MAX_STORED_BYTES",
            default_text="what the disk has, but for a twentieth of it, at most 256 MiB",
            least=1,
        ),
    ] = None
