"""How the machine is divided among the processes of a stack, and what each of them is told. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from callsheet.deploy.dashboard_process import dashboard_arguments
from callsheet.deploy.gateway_process import gateway_arguments
from callsheet.deploy.manager_process import ManagerOptions
from callsheet.deploy.roles import Role
from callsheet.deploy.scheduler_process import SchedulerOptions
from callsheet.deploy.stack_settings import StackSettings, taken_by
from callsheet.deploy.tokens import token_path
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.kind import MANAGER_KINDS
from callsheet.managers.sandbox.network.destinations import LOOPBACK
from callsheet.managers.sandbox.settings import CoreSharing, Isolation
from callsheet.options.common import LogFormat
from callsheet.options.declaration import command_line, declared_options, option_values

_ANY_HOST: Final = frozenset({"", "0.0.0.0", "[::]"})


def role_arguments(
    role: str,
    settings: StackSettings,
    *,
    address: str,
    cores: int,
    gateway: str | None = None,
    dashboard: str | None = None,
    metrics: str | None = None,
) -> list[str]:
    """The command line of one process of the stack, after `callsheet`.

    Managers of any kind are given what the stack knows, as far as their kind declares an option of that name.

    Args:
        role: Which one.
        settings: The stack's.
        address: Where the scheduler listens (for itself) or is to be dialled (for managers).
        cores: Cores of the node.
        gateway: Where the gateway listens; None where there is none.
        dashboard: The same of the dashboard.
        metrics: Where the scheduler has its metrics; None for nowhere.
    """
    logs: dict[str, object] = {"log_level": settings.log_level, "log_format": settings.log_format}
    if settings.logs_to_files:
        logs["log_format"] = settings.log_format or LogFormat.JSON
    extra = list(settings.arguments.get(role, ()))
    if role == Role.SCHEDULER:
        own = {
            "metrics_listen": metrics or "none",
            "listen": address,
            "data_dir": settings.data_dir,
            "expect": ",".join(settings.managers) or None,
            "price": settings.prices,
        }
        return ["scheduler", *command_line(SchedulerOptions, own | option_values(settings.access) | logs), *extra]
    to_dial = own_address(settings, address)
    if role == Role.GATEWAY:
        assert gateway is not None
        return [*gateway_arguments(settings, gateway, to_dial), *command_line(ManagerOptions, logs), *extra]
    if role == Role.DASHBOARD:
        assert dashboard is not None
        return [*dashboard_arguments(settings, dashboard, to_dial), *command_line(ManagerOptions, logs), *extra]
    common = {
        "scheduler": to_dial,
        "tls_ca": settings.tls_ca if settings.access.tls_cert is not None else None,
        "token_file": token_path(settings.data_dir, role) if settings.access.tokens is not None else None,
        "cpus": cores,
        "memory_mib": settings.memory_mib,
        "drain_timeout": float(settings.drain_s),
    }
    of_kind = kind_arguments(role, settings, _divided(role, settings, cores, gateway))
    return ["manager", role, *command_line(ManagerOptions, common | logs), *of_kind, *extra]


def kind_arguments(role: str, settings: StackSettings, told: Mapping[str, object]) -> list[str]:
    """The options of a manager's kind: those of `told` that it takes.

    What keeps sandboxes apart does not hang on the environment of the machine where the manager runs.
    """
    kind, sandbox = MANAGER_KINDS.get(role).settings, settings.sandbox
    walls = {"isolation": sandbox.isolation, "share_cores": sandbox.core_sharing}
    return command_line(kind, taken_by(kind, walls | dict(told)))


def secret_variables(role: str, settings: StackSettings) -> dict[str, str]:
    """The secrets that a manager was given, as variables: a command line is no place for them."""
    kind = MANAGER_KINDS.get(role).settings
    secrets = {each.name: each.setting.variable for each in declared_options(kind) if each.setting.secret}
    found = {secrets[name]: str(value) for name, value in taken_by(kind, settings.given).items() if name in secrets}
    return {word: text for name, value in found.items() for word, text in ((f"{name}", value), (f"{name}_FILE", ""))}


def own_address(settings: StackSettings, address: str) -> str:
    """Returns the address at which processes here dial a scheduler; with a certificate its host is `localhost`."""
    return address if settings.access.tls_cert is None else f"localhost:{address.rpartition(':')[2]}"


def published_weights(settings: StackSettings) -> Path:
    """Returns the directory from which jobs with tokens publish weights, unless the user names another one."""
    return settings.data_dir.absolute() / "weights"


def _divided(role: str, settings: StackSettings, cores: int, gateway: str | None) -> dict[str, object]:
    """Returns a manager's options that depend on its part of the machine."""
    inference = settings.inference
    own_model = role == Role.INFERENCE and inference.model_directory is not None
    told: dict[str, object] = {
        # A user who names a model wants it, and wants to know at once if it cannot be loaded.
        "load_at_first_use": not own_model,
        "launch_logs": settings.data_dir / "logs" if inference.launches else None,
        "weights_below": (published_weights(settings),) if settings.access.tokens is not None else None,
    }
    shared = settings.sandbox.core_sharing is not CoreSharing.RESERVED
    if Role.INFERENCE in settings.managers and not inference.served_apart:
        threads = share_of_cores(cores, inference.threads)
        told |= {"engine_threads": threads, "shared_cpus": cores - threads if shared else None}
    if shared and Role.SANDBOX in settings.managers:
        # One manager runs all commands: two pools would leave each of them half of the cores.
        told["test_suites"] = False
    network = (*settings.sandbox.network, *_reached(settings, gateway))
    return {**told, **settings.given, "network": network, "data_dir": settings.data_dir}


def _reached(settings: StackSettings, gateway: str | None) -> tuple[str, ...]:
    """Returns the address that sandboxes may ask to reach: the stack's gateway, for agents in them that have a key.

    IPv6 has one address of the loopback, so a gateway there could not distinguish sandboxes from the machine.
    """
    host, _, port = (gateway or "").rpartition(":")
    if gateway is None or settings.sandbox.isolation is Isolation.NONE or host == "[::1]":
        return ()
    return (f"{LOOPBACK if host in _ANY_HOST else host}:{port}",)
