"""Settings of a local stack. No I/O."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

from callsheet.deploy.process_options import Cpus, MemoryMib, TlsCa
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.reward.settings import RewardManagerSettings
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.supervision.standing import RestartRule
from callsheet.managers.tools.settings import ToolsSettings
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
from callsheet.options.declaration import OptionsOf, Setting, declared_options, from_values
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import Prices

AUTO_GATEWAY = "auto"
"""A gateway at the port after the scheduler's, where its extra is installed."""
AUTO_DASHBOARD = "auto"
"""A dashboard at the second port after the scheduler's, where its extra is installed."""
_NONE = "none"
STACK_RESTARTS = RestartRule(initial_s=0.2, longest_s=10.0, healthy_after_s=30.0, first_failures=0, most_failures=8)
"""A first start that fails ends the stack, and so do nine failures of a process in a row."""
STANDARD_MANAGERS = ("sandbox", "inference", "reward")
S = TypeVar("S")
OF_MANAGERS = OptionsOf(
    (SandboxSettings, InferenceSettings, RewardManagerSettings, ToolsSettings), frozenset({"data_dir"})
)
_OFFERED = OF_MANAGERS.options()

_OF_THE_MACHINE: Final = frozenset({"isolation", "share_cores"})


def auto_or_none(text: str) -> str | None:
    """Reads where a gateway or a dashboard is to listen; raises ValueError that names the rule."""
    if text == _NONE:
        return None
    return text if text == AUTO_GATEWAY else host_and_port(text)


@dataclass(frozen=True, slots=True)
class StackSettings:
    """A scheduler and managers on this machine, each in its own process.

    Attributes:
        access: Who may call the scheduler. With TLS its certificate must be for localhost, too. Its managers get tokens
            of their own, and commands one in DATA_DIR/tokens.
        given: What its managers are given, by the names of their options, as a command line reads it.
        restart: What happens when a process ends by itself.
        ready_timeout_s: How long one process may take until it serves.
        arguments: More command line arguments, by role.
    """

    data_dir: DataDir
    listen: Listen = "127.0.0.1:0"
    metrics_listen: Annotated[
        str | None,
        Setting(
            "Address of /metrics, for Prometheus; port 0 takes a free one, which the start shows.",
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
            "Address of the gateway: auto is the port after the scheduler's, none runs no gateway.",
            variable="CALLSHEET_GATEWAY_LISTEN",
            metavar="HOST:PORT|auto|none",
            default=AUTO_GATEWAY,
            text=str,
            parse=auto_or_none,
        ),
    ] = None
    dashboard: Annotated[
        str | None,
        Setting(
            "Address of the dashboard: auto is the second port after the scheduler's, none runs no dashboard.",
            variable="CALLSHEET_DASHBOARD_LISTEN",
            metavar="HOST:PORT|auto|none",
            default=AUTO_DASHBOARD,
            text=str,
            parse=auto_or_none,
        ),
    ] = None
    prices: Prices = ()
    cpus: Cpus = None
    memory_mib: MemoryMib = None
    given: Annotated[Mapping[str, object], OF_MANAGERS] = field(default_factory=dict)
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
        float, Setting("Seconds for which running attempts may continue at the end.", flag="--drain-s", least=0)
    ] = 10.0
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def sandbox(self) -> SandboxSettings:
        """Given options of sandboxes."""
        return self.of(SandboxSettings)

    @property
    def inference(self) -> InferenceSettings:
        """Given options of engines."""
        return self.of(InferenceSettings)

    def of(self, kind: type[S]) -> S:
        """The settings that the command line of a manager makes of what was given.

        Raises:
            ValueError: A value breaks its rule.
        """
        defaults = {each.name: each.default for each in declared_options(kind)}
        plain = {name: each for name, each in defaults.items() if each is not ... and not callable(each)}
        return from_values(kind, plain | taken_by(kind, self.given))

    def __post_init__(self) -> None:
        self.access.check_listen(self.listen)
        if self.metrics_listen is not None:
            self.access.check_listen(self.metrics_listen)
        if self.access.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_ca: must be given with tls_cert, for the managers")
        from callsheet.managers.kind import MANAGER_KINDS  # Not above: a command line's help does without it.

        known = MANAGER_KINDS.names()
        if unknown := [str(name) for name in self.managers if name not in known]:
            raise ValueError(f"managers: {', '.join(map(repr, unknown))} is none of {', '.join(known)}")
        if twice := sorted({str(name) for name in self.managers if self.managers.count(name) > 1}):
            raise ValueError(f"managers: {', '.join(map(repr, twice))} may be given once")
        for name in self.managers:
            self.of(MANAGER_KINDS.get(name).settings)


def taken_by(kind: type, given: Mapping[str, object]) -> dict[str, object]:
    """Returns the options of a stack that managers of a kind take, without those of another meaning for them."""
    return {
        each.name: given[each.name]
        for each in declared_options(kind)
        if each.name in given and (each.name not in _OFFERED or _OFFERED[each.name].type == each.type | None)
    }


def check_taken(given: Mapping[str, object], managers: Iterable[str]) -> None:
    """Refuses what no manager of a stack takes, unless the environment says it, which is for others as well.

    What keeps sandboxes apart is of the machine, and never too much: scripts say it whatever they run.

    Raises:
        ValueError: One is for none of them.
    """
    from callsheet.managers.kind import MANAGER_KINDS

    takers = {name: taken_by(MANAGER_KINDS.get(name).settings, given) for name in MANAGER_KINDS.names()}
    for name in sorted(given.keys() - _OF_THE_MACHINE):
        kinds = [kind for kind, taken in takers.items() if name in taken]
        setting = _OFFERED[name].setting if name in _OFFERED else Setting("")
        if set(kinds).isdisjoint(managers) and not os.environ.get(setting.variable or ""):
            value = "" if setting.secret else f" {str(given[name])!r}:"
            told = f"for a manager of {' or '.join(kinds)}, which is none of managers" if kinds else "for no manager"
            raise ValueError(f"{name}:{value} is {told}")
