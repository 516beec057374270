"""What a local stack consists of: its roles, their command lines and the division of the machine. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from callsheet.deploy.choices import Isolation, LogFormat, LogLevel, Role, ShareCores

STANDARD_MANAGERS = (Role.SANDBOX, Role.INFERENCE, Role.REWARD)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a process that ended by itself is started again.

    Attributes:
        enabled: False leaves it ended until `Stack.start`.
        initial_backoff_s: Wait before the first restart; it doubles with each further failure in a row.
        max_backoff_s: Longest wait.
        max_failures: More failures in a row end the stack.
        healthy_after_s: A process that has served for this long starts a new row.
    """

    enabled: bool = True
    initial_backoff_s: float = 0.2
    max_backoff_s: float = 10.0
    max_failures: int = 8
    healthy_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StackSettings:
    """A scheduler and managers on this machine, each in its own process.

    Attributes:
        data_dir: The journal, payloads, sandboxes and logs; made if it is not there.
        listen: Where the scheduler listens, "host:port"; port 0 takes a free one.
        managers: The managers to run.
        cpus: Cores to share; all that this process may use by default.
        memory_mib: Memory to share in MiB; by default what the machine has, less a margin.
        isolation: What keeps sandboxes apart.
        share_cores: Whether commands share the cores, all but the engine's; with RESERVED each has cores of its own.
        engine_threads: Threads of the inference engine, which keeps as many cores for itself; see `engine_threads`.
        log_format: None chooses by whether standard error is a terminal.
        log_level: The least important log lines to keep.
        logs_to_files: Log to `data_dir`/logs/ROLE.log instead of standard error.
        restart: What happens when a process ends by itself.
        ready_timeout_s: How long one process may take until it serves.
        drain_s: How long managers may take to finish their attempts at the end.
        arguments: More command line arguments, by role.
    """

    data_dir: Path
    listen: str = "127.0.0.1:0"
    managers: tuple[Role, ...] = STANDARD_MANAGERS
    cpus: int | None = None
    memory_mib: int | None = None
    isolation: Isolation = Isolation.BUBBLEWRAP
    share_cores: ShareCores = ShareCores.RANKED
    engine_threads: int | None = None
    log_format: LogFormat | None = None
    log_level: LogLevel = LogLevel.INFO
    logs_to_files: bool = True
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    ready_timeout_s: float = 90.0
    drain_s: float = 10.0
    arguments: Mapping[Role, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if Role.SCHEDULER in self.managers:
            raise ValueError("managers: 'scheduler' is not a manager; a stack always has a scheduler")
        if len(set(self.managers)) != len(self.managers):
            raise ValueError("managers: each one can be there once")


def engine_threads(cores: int, requested: int | None) -> int:
    """Cores that the inference engine keeps for itself: a quarter, at least one, and never all of them.

    Args:
        cores: Cores of the node.
        requested: The user's wish; None chooses.

    Raises:
        ValueError: The engine would leave no core for actions.
    """
    threads = max(1, cores // 4) if requested is None else requested
    if not 1 <= threads < cores:
        raise ValueError(
            f"engine threads: {threads} of {cores} cores; the engine needs at least one core and must leave at least "
            "one for actions (give more --cpus, fewer --engine-threads, or leave inference out with --managers)"
        )
    return threads


def role_arguments(role: Role, settings: StackSettings, *, address: str, cores: int) -> list[str]:
    """The command line of one process of the stack, after `callsheet`.

    Args:
        role: Which one.
        settings: The stack's.
        address: Where the scheduler listens (for itself) or is to be dialled (for managers).
        cores: Cores of the node.
    """
    logs = ["--log-level", settings.log_level.value]
    if settings.log_format is not None or settings.logs_to_files:
        logs += ["--log-format", (settings.log_format or LogFormat.JSON).value]
    extra = list(settings.arguments.get(role, ()))
    if role is Role.SCHEDULER:
        own = ["--listen", address, "--data-dir", str(settings.data_dir)]
        expected = ["--expect", ",".join(settings.managers)] if settings.managers else []
        return ["scheduler", *own, *expected, *logs, *extra]
    common = ["--scheduler", address, "--cpus", str(cores)]
    if settings.memory_mib is not None:
        common += ["--memory-mib", str(settings.memory_mib)]
    common += ["--drain-timeout", f"{settings.drain_s:g}"]
    return ["manager", role.value, *common, *_own_arguments(role, settings, cores), *logs, *extra]


def _own_arguments(role: Role, settings: StackSettings, cores: int) -> list[str]:
    match role:
        case Role.SANDBOX:
            return _sandbox_arguments(settings, cores)
        case Role.REWARD:
            return [*_sandbox_arguments(settings, cores), *_test_suite_arguments(settings), "--load-at-first-use"]
        case Role.INFERENCE:
            return ["--engine-threads", str(engine_threads(cores, settings.engine_threads)), "--load-at-first-use"]
        case _:
            return []


def _sandbox_arguments(settings: StackSettings, cores: int) -> list[str]:
    arguments = ["--data-dir", str(settings.data_dir), "--isolation", settings.isolation.value]
    arguments += ["--share-cores", settings.share_cores.value]
    if settings.share_cores is not ShareCores.RESERVED and Role.INFERENCE in settings.managers:
        arguments += ["--shared-cpus", str(cores - engine_threads(cores, settings.engine_threads))]
    return arguments


def _test_suite_arguments(settings: StackSettings) -> list[str]:
    """Where cores are shared, one manager runs all commands: two pools would leave each of them half of the cores."""
    elsewhere = Role.SANDBOX in settings.managers and settings.share_cores is not ShareCores.RESERVED
    return ["--no-test-suites"] if elsewhere else []
