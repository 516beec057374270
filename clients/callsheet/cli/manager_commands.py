"""`callsheet manager ...`: one manager, for machines beside the scheduler's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli import executors
from callsheet.cli.manager_process import ManagerOptions, run_manager_process
from callsheet.cli.options import (
    DEFAULT_ADDRESS,
    Address,
    Cpus,
    DataDir,
    DrainTimeout,
    EngineThreads,
    IsolationOption,
    LoadAtFirstUse,
    LogFormatOption,
    LogLevelOption,
    ManagerId,
    MemoryMib,
    NodeId,
    ShareCoresOption,
    Weights,
)
from callsheet.cli.sandbox_options import (
    Images,
    KeepSetUps,
    LayerCacheMib,
    SandboxMemoryMib,
    SharedCpus,
    WarmMemoryMib,
)
from callsheet.deploy.choices import Isolation, LogLevel, Role, ShareCores

manager_app = typer.Typer(
    help="Run one manager and register it with a scheduler.", no_args_is_help=True, rich_markup_mode=None
)
_DRAIN_S = 30.0
_SUPPLY = executors.SandboxSupply()

Stages = Annotated[
    list[Path] | None,
    typer.Option(
        "--stage",
        exists=True,
        file_okay=False,
        resolve_path=True,
        show_default=False,
        help="Directory that every sandbox can read, with Python packages in it; repeatable.",
    ),
]

DockerImage = Annotated[
    str,
    typer.Option(
        envvar="CALLSHEET_DOCKER_IMAGE",
        help="With --isolation docker, the image of sandboxes that name none; images must have a python3.",
    ),
]
Network = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="HOST:PORT",
        help="What an env_reset may ask to reach, by a proxy: a name, '*.' and a name for any below it, an address, or "
        "'*' for any name; repeatable. By default nothing.",
    ),
]
ControlGroup = Annotated[
    Path | None,
    typer.Option(
        envvar="CALLSHEET_CONTROL_GROUP",
        help="Directory of a version 2 control group that was made for this manager; by default the one it runs in, if "
        "that was delegated.",
    ),
]


@manager_app.command("sandbox")
def sandbox(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    data_dir: DataDir,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
    stages: Stages = None,
    share_cores: ShareCoresOption = ShareCores.RANKED,
    shared_cpus: SharedCpus = None,
    docker_image: DockerImage = "",
    control_group: ControlGroup = None,
    images: Images = None,
    layer_cache_mib: LayerCacheMib = _SUPPLY.layer_cache_mib,
    keep_set_ups: KeepSetUps = _SUPPLY.keep_set_ups,
    sandbox_memory_mib: SandboxMemoryMib = _SUPPLY.sandbox_memory_mib,
    warm_memory_mib: WarmMemoryMib = _SUPPLY.warm_memory_mib,
    network: Network = None,
    manager_id: ManagerId = None,
    node_id: NodeId = None,
    cpus: Cpus = None,
    memory_mib: MemoryMib = None,
    drain_timeout: DrainTimeout = _DRAIN_S,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve env_reset, env_step and test suites in the trajectory's sandbox."""
    options = ManagerOptions(
        Role.SANDBOX, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    supply = executors.SandboxSupply(images, layer_cache_mib, keep_set_ups, sandbox_memory_mib, warm_memory_mib)
    place = executors.SandboxPlace(
        data_dir,
        isolation,
        tuple(stages or ()),
        share_cores,
        shared_cpus,
        docker_image,
        control_group,
        supply,
        tuple(network or ()),
    )
    run_manager_process(options, partial(executors.build_sandbox, place))


@manager_app.command("reward")
def reward(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    weights: Weights = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random weights.")] = 1,
    load_at_first_use: LoadAtFirstUse = False,
    test_suites: Annotated[bool, typer.Option(help="Also serve test suites in sandboxes of their own.")] = True,
    data_dir: DataDir,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
    stages: Stages = None,
    share_cores: ShareCoresOption = ShareCores.RANKED,
    shared_cpus: SharedCpus = None,
    docker_image: DockerImage = "",
    control_group: ControlGroup = None,
    manager_id: ManagerId = None,
    node_id: NodeId = None,
    cpus: Cpus = None,
    memory_mib: MemoryMib = None,
    drain_timeout: DrainTimeout = _DRAIN_S,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Score by a model, and by test suites outside of a trajectory's sandbox."""
    options = ManagerOptions(
        Role.REWARD, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    place = executors.SandboxPlace(
        data_dir, isolation, tuple(stages or ()), share_cores, shared_cpus, docker_image, control_group
    )
    run_manager_process(
        options,
        partial(
            executors.build_reward, place if test_suites else None, executors.Scorer(weights, seed, load_at_first_use)
        ),
    )


@manager_app.command("inference")
def inference(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    model: Annotated[str, typer.Option(envvar="CALLSHEET_MODEL", help="Name of the hosted service.")] = "policy",
    weights: Weights = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random weights.")] = 0,
    load_at_first_use: LoadAtFirstUse = False,
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
    options = ManagerOptions(
        Role.INFERENCE, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    engine = executors.Engine(model, weights, seed, slots, kv_cache_tokens, engine_threads, load_at_first_use)
    run_manager_process(options, partial(executors.build_inference, engine))


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
    options = ManagerOptions(
        Role.NOOP, scheduler, manager_id, node_id, cpus, memory_mib, drain_timeout, log_format, log_level
    )
    run_manager_process(options, partial(executors.build_noop, execution_s, start_log))
