"""`callsheet scheduler`: the scheduler alone."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli.options import DEFAULT_ADDRESS, DataDir, Listen, LogFormatOption, LogLevelOption
from callsheet.cli.scheduler_process import run_scheduler_process
from callsheet.deploy.choices import LogLevel, Planner


def scheduler(
    *,
    data_dir: DataDir,
    listen: Listen = DEFAULT_ADDRESS,
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="CALLSHEET_DATABASE_URL",
            show_default="SQLite in the data directory",
            help="SQLAlchemy URL of the journal.",
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            envvar="CALLSHEET_REDIS_URL", show_default="files in the data directory", help="Redis for payloads."
        ),
    ] = None,
    max_open_actions: Annotated[
        int | None,
        typer.Option(envvar="CALLSHEET_MAX_OPEN_ACTIONS", min=1, help="Open actions beyond which submits are refused."),
    ] = None,
    max_payload_bytes: Annotated[
        int | None, typer.Option(envvar="CALLSHEET_MAX_PAYLOAD_BYTES", min=1, help="Size of one stored payload.")
    ] = None,
    heartbeat_interval: Annotated[
        float | None,
        typer.Option(envvar="CALLSHEET_HEARTBEAT_INTERVAL", min=0.01, help="Seconds between managers' heartbeats."),
    ] = None,
    manager_lease: Annotated[
        float | None,
        typer.Option(envvar="CALLSHEET_MANAGER_LEASE", min=0.05, help="Seconds of silence that lose a manager."),
    ] = None,
    job_grace: Annotated[
        float | None,
        typer.Option(
            envvar="CALLSHEET_JOB_GRACE",
            min=0.1,
            show_default="120",
            help="Seconds that a job lives on without a client session, unless it says so itself.",
        ),
    ] = None,
    expired_job_lifetime: Annotated[
        float | None,
        typer.Option(
            envvar="CALLSHEET_EXPIRED_JOB_LIFETIME",
            min=0.1,
            show_default="86400",
            help="Seconds after which an expired job is closed.",
        ),
    ] = None,
    closed_actions: Annotated[
        int | None,
        typer.Option(
            envvar="CALLSHEET_CLOSED_ACTIONS", min=0, help="Most actions of closed jobs that explain still knows."
        ),
    ] = None,
    closed_actions_s: Annotated[
        float | None,
        typer.Option(envvar="CALLSHEET_CLOSED_ACTIONS_S", min=0.0, help="Seconds after the close for which it does."),
    ] = None,
    planner: Annotated[
        Planner,
        typer.Option(envvar="CALLSHEET_PLANNER", help="Decide by price and solver, or in order of arrival."),
    ] = Planner.ELASTIC,
    expect: Annotated[
        str,
        typer.Option(
            envvar="CALLSHEET_EXPECT",
            metavar="ROLE,...",
            help="Managers that will register: sandbox, inference, reward. Actions for them wait until they have.",
        ),
    ] = "",
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run the scheduler alone, until SIGINT or SIGTERM."""
    run_scheduler_process(
        log_format,
        log_level,
        data_dir=data_dir,
        listen=listen,
        database_url=database_url,
        redis_url=redis_url,
        max_open_actions=max_open_actions,
        max_payload_bytes=max_payload_bytes,
        heartbeat_interval=heartbeat_interval,
        manager_lease=manager_lease,
        job_grace=job_grace,
        expired_job_lifetime=expired_job_lifetime,
        closed_actions=closed_actions,
        closed_actions_s=closed_actions_s,
        planner=planner.value,
        expect=tuple(role.strip() for role in expect.split(",") if role.strip()),
    )
