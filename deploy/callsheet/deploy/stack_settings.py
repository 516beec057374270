"""What a local stack consists of. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from callsheet.deploy.process_options import Cpus, MemoryMib, TlsCa
from callsheet.managers.inference.settings import (
    DEFAULT_ENGINE,
    DEFAULT_SERVICE,
    Engine,
    EngineLaunches,
    EngineThreads,
    EngineUrls,
    LaunchStop,
    Model,
    Script,
    model_directory,
)
from callsheet.managers.sandbox.build_settings import BuildSettings
from callsheet.managers.sandbox.registry_settings import RegistrySettings
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, IsolationOption, Network, ShareCores, Stages
from callsheet.managers.supervision.standing import RestartRule
from callsheet.managers.tools.settings import ToolsFile
from callsheet.options.common import (
    DataDir,
    Listen,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    comma_separated,
    host_and_port,
    metrics_address,
)
from callsheet.options.declaration import Setting
from callsheet.scheduler.access.settings import AccessSettings

AUTO_GATEWAY = "auto"
"""A gateway at the port after the scheduler's, where its extra is installed."""
_NO_GATEWAY = "none"
STACK_RESTARTS = RestartRule(initial_s=0.2, longest_s=10.0, healthy_after_s=30.0, first_failures=0, most_failures=8)
"""A first start that fails ends the stack, and so do nine failures of a process in a row."""
STANDARD_MANAGERS = ("sandbox", "inference", "reward")


def gateway_or_none(text: str) -> str | None:
    """Reads where a gateway is to listen; raises ValueError that names the rule."""
    if text == _NO_GATEWAY:
        return None
    return text if text == AUTO_GATEWAY else host_and_port(text)


@dataclass(frozen=True, slots=True)
class StackSettings:
    """A scheduler and managers on this machine, each in its own process.

    Attributes:
        access: Who may call the scheduler. With TLS its certificate must be for localhost, too. Its managers get tokens
            of their own, and commands one in DATA_DIR/tokens.
        registry: Which registries the images of sandboxes may come from.
        builds: Whether and how images are built of Dockerfiles.
        restart: What happens when a process ends by itself.
        ready_timeout_s: How long one process may take until it serves.
        arguments: More command line arguments, by role.
    """

    data_dir: DataDir
    listen: Listen = "127.0.0.1:0"
    metrics_listen: Annotated[
        str | None,
        Setting(
            "Where /metrics is, for Prometheus; port 0 takes a free one, which is told at the start.",
            variable="CALLSHEET_METRICS_LISTEN",
            metavar="HOST:PORT|none",
            parse=metrics_address,
        ),
    ] = "127.0.0.1:0"
    access: AccessSettings = field(default_factory=AccessSettings)
    tls_ca: TlsCa = None
    managers: Annotated[
        tuple[str, ...],
        Setting(
            "The managers to run, separated by commas.",
            variable="CALLSHEET_MANAGERS",
            default=",".join(STANDARD_MANAGERS),
            text=str,
            parse=comma_separated,
        ),
    ] = STANDARD_MANAGERS
    gateway: Annotated[
        str | None,
        Setting(
            "Where the gateway listens: auto is the port after the scheduler's, none runs no gateway.",
            variable="CALLSHEET_GATEWAY_LISTEN",
            metavar="HOST:PORT|auto|none",
            default=AUTO_GATEWAY,
            text=str,
            parse=gateway_or_none,
        ),
    ] = None
    cpus: Cpus = None
    memory_mib: MemoryMib = None
    isolation: IsolationOption = Isolation.BUBBLEWRAP
    share_cores: ShareCores = CoreSharing.RANKED
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    builds: BuildSettings = field(default_factory=BuildSettings)
    stages: Stages = ()
    network: Network = ()
    engine_threads: EngineThreads = None
    model: Model = DEFAULT_SERVICE
    engine: Engine = DEFAULT_ENGINE
    script: Script = None
    urls: EngineUrls = ()
    launches: EngineLaunches = ()
    launch_stop: LaunchStop = None
    tools_file: ToolsFile = None
    log_format: LogFormatOption = None
    log_level: LogLevelOption = LogLevel.INFO
    logs_to_files: Annotated[
        bool,
        Setting(
            "Log to DATA_DIR/logs/ROLE.log, where callsheet logs reads it, or to standard error.",
            flag="--log-files/--log-stderr",
        ),
    ] = True
    restart: RestartRule = STACK_RESTARTS
    ready_timeout_s: float = 90.0
    drain_s: Annotated[
        float, Setting("Seconds that running attempts may go on at the end.", flag="--drain-s", least=0)
    ] = 10.0
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def model_directory(self) -> Path | None:
        """The user's own model; None for the demo's."""
        return model_directory(self.model)

    @property
    def served_apart(self) -> bool:
        """Whether engines are servers with processes and cores of their own."""
        return bool(self.urls or self.launches)

    def __post_init__(self) -> None:
        self.access.check_listen(self.listen)
        if self.metrics_listen is not None:
            self.access.check_listen(self.metrics_listen)
        if not self.model:
            raise ValueError("model: '' is empty; it must be given")
        if self.access.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_ca: must be given with tls_cert, for the managers")
        from callsheet.managers.kind import MANAGER_KINDS  # Not above: a command line's help does without it.

        if self.tools_file is not None and "tools" not in self.managers:
            raise ValueError(
                f"tools_file: {str(self.tools_file)!r}: is for a manager of tools, which is none of managers"
            )
        known = MANAGER_KINDS.names()
        for name in self.managers:
            if name not in known:
                raise ValueError(f"managers: {str(name)!r} is none of {', '.join(known)}")
            if self.managers.count(name) > 1:
                raise ValueError(f"managers: {str(name)!r} may be given once")
