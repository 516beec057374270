"""`callsheet scheduler` and `callsheet manager ...`: one process each, for several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.choices import LogLevel, Role
from callsheet.cli.errors import CommandError, load
from callsheet.cli.manager_process import ManagerOptions, run_manager_process
from callsheet.cli.options import (
    DEFAULT_ADDRESS,
    Address,
    Cpus,
    DataDir,
    DrainTimeout,
    EngineThreads,
    Listen,
    LogFormatOption,
    LogLevelOption,
    ManagerId,
    MemoryMib,
    NodeId,
)
from callsheet.cli.scheduler_process import run_scheduler_process

if TYPE_CHECKING:
    from callsheet.managers.executor import Executor
    from callsheet.managers.settings import ManagerSettings

manager_app = typer.Typer(help="Run one manager and register it with a scheduler.", no_args_is_help=True)
_DRAIN_S = 30.0


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
    )


@manager_app.command("inference")
def inference(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    model: Annotated[str, typer.Option(envvar="CALLSHEET_MODEL", help="Name of the hosted service.")] = "policy",
    weights: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLSHEET_WEIGHTS",
            exists=True,
            file_okay=False,
            show_default="random weights",
            help="Directory with config.json and weights.pt.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random weights.")] = 0,
    slots: Annotated[int, typer.Option(min=1, help="The most sequences in the batch.")] = 64,
    kv_cache_tokens: Annotated[int, typer.Option(min=16, help="Tokens of the KV cache; a multiple of 16.")] = 32_768,
    engine_threads: EngineThreads = None,
    manager_id: ManagerId = None,
    node_id: NodeId = None,
    cpus: Cpus = None,
    memory_mib: MemoryMib = None,
    drain_timeout: DrainTimeout = _DRAIN_S,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve generate actions with the torch engine."""

    def build(settings: ManagerSettings) -> Executor:
        from callsheet.cli.stack_settings import engine_threads as choose_threads
        from callsheet.managers.inference.cores import reserved_cores

        builder = load("callsheet.managers.inference.build", "inference")
        settings_module = load("callsheet.managers.inference.settings", "inference")
        cores = sum(len(numa.cores) for numa in settings.node.numa_nodes)
        try:
            threads = choose_threads(cores, engine_threads)
            inference_settings = settings_module.InferenceSettings(
                model=model,
                weights=weights,
                seed=seed,
                slots=slots,
                threads=threads,
                cores=reserved_cores(settings.node, threads),
                kv_cache_tokens=kv_cache_tokens,
            )
            executor: Executor = builder.build_inference_executor(inference_settings)
        except ValueError as error:
            raise CommandError(str(error), usage=True) from error
        return executor

    options = ManagerOptions(
        Role.INFERENCE, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    run_manager_process(options, build)


@manager_app.command("noop", hidden=True)
def noop(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    execution_s: Annotated[float, typer.Option("--execution-s", min=0, help="How long each attempt takes.")] = 0.0,
    start_log: Annotated[Path | None, typer.Option(help="Gets one line of JSON for every start.")] = None,
    manager_id: ManagerId = None,
    node_id: NodeId = None,
    cpus: Cpus = None,
    memory_mib: MemoryMib = None,
    drain_timeout: DrainTimeout = _DRAIN_S,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve actions of all kinds by doing nothing."""

    def build(_: ManagerSettings) -> Executor:
        module = load("callsheet.managers.noop", "sandbox")
        executor: Executor = module.NoopExecutor(module.NoopSettings(execution_s=execution_s, start_log=start_log))
        return executor

    options = ManagerOptions(
        Role.NOOP, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    run_manager_process(options, build)
