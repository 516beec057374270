"""Orders for the nodes of a fleet, made from the settings of the stack that the fleet belongs to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from callsheet.credentials.channel import SYSTEM
from callsheet.deploy.command_lines import kind_arguments, secret_variables
from callsheet.deploy.fleet.node import NodeOrder
from callsheet.deploy.fleet.provider import ThisMachine, UnreadableError
from callsheet.deploy.fleet.settings import RoleSettings
from callsheet.deploy.manager_process import ManagerOptions
from callsheet.deploy.stack import environment_of
from callsheet.deploy.stack_settings import StackSettings
from callsheet.deploy.tokens import TokenFileError, end_kept, renew_kept, token_path
from callsheet.options.common import LogFormat
from callsheet.options.declaration import command_line
from callsheet.options.listening import is_loopback

_ANY_HOSTS = ("0.0.0.0", "[::]", "")


def to_dial(listen: str, given: str, machine: ThisMachine, *, near: str = "") -> str:
    """Returns the address at which managers dial a scheduler that listens at an address.

    Args:
        listen: Its address.
        given: The address that the user gives; empty for none.
        machine: The scheduler's machine, as its nodes see it.
        near: The address at which processes of that machine dial it; empty: as it listens.

    Raises:
        ValueError: It listens only on this machine's loopback, and nodes are elsewhere.
    """
    if given:
        return given
    own, _, port = listen.rpartition(":")
    if own in _ANY_HOSTS:
        return f"{machine.host}:{port}"
    if machine.has_others and is_loopback(listen):
        raise ValueError(
            f"listen: {listen} is reached from this machine alone, and nodes are on others: give an address of this "
            f"machine, for instance --listen {machine.host}:7077, with --tokens and TLS or --insecure"
        )
    return listen if machine.has_others else near or listen


@dataclass(frozen=True, slots=True)
class NodeOrders:
    """Makes the order for a node.

    Attributes:
        settings: The stack's.
        address: Where managers dial the scheduler.
    """

    settings: StackSettings
    address: str

    def __call__(self, role: RoleSettings, name: str) -> NodeOrder:
        """Returns the order for a node. If callers need tokens, its manager gets one of its own.

        Raises:
            UnreadableError: The file of tokens, or the certificate of the scheduler's authority, cannot be used.
        """
        settings = self.settings
        own = settings.data_dir / "nodes" / name
        authority, files, secrets = self._access(name)
        common = {
            "scheduler": self.address,
            "manager_id": name,
            "node_id": name,
            "cpus": role.cores,
            "memory_mib": role.memory_mib,
            "gpus": role.gpus,
            "drain_timeout": float(settings.drain_s),
            "tls_ca": authority,
            "log_level": settings.log_level,
            "log_format": settings.log_format or LogFormat.JSON,
        }
        words = [
            *("manager", role.role),
            *command_line(ManagerOptions, common),
            *kind_arguments(role.role, settings, {**settings.given, "data_dir": own}),
            *role.arguments,
        ]
        return NodeOrder(
            name=name,
            role=role.role,
            cores=role.cores,
            arguments=tuple(words),
            environment=dict(environment_of(settings, role.role)),
            log_path=settings.data_dir / "logs" / f"{name}.log",
            files=files,
            secrets=secrets | secret_variables(role.role, settings),
        )

    def _access(self, name: str) -> tuple[str | None, dict[Path, str], dict[str, str]]:
        # What a manager trusts, the file of that for its node, and its token.
        access, authority = self.settings.access, self.settings.tls_ca
        try:
            secrets = {}
            if access.tokens is not None:
                secrets["CALLSHEET_TOKEN"] = renew_kept(access.tokens, self._kept(name), "manager", name)
            if access.tls_cert is None or authority is None:
                return None, {}, secrets
            if authority == SYSTEM:
                return authority, {}, secrets
            # Another machine has its file somewhere else, or nowhere.
            copied = self.settings.data_dir / "tls" / f"{name}.pem"
            return str(copied), {copied: Path(authority).read_text(encoding="utf-8")}, secrets
        except (OSError, TokenFileError) as error:
            raise UnreadableError(str(error)) from error

    def retain(self, names: Collection[str]) -> None:
        """Ends the tokens of all nodes but these.

        Raises:
            UnreadableError: The file of tokens cannot be used.
        """
        tokens = self.settings.access.tokens
        if tokens is None:
            return
        try:
            for kept in self._kept("").parent.glob("*.token"):
                if kept.stem not in names:
                    end_kept(tokens, kept)
        except (OSError, TokenFileError) as error:
            raise UnreadableError(str(error)) from error

    def _kept(self, name: str) -> Path:
        return token_path(self.settings.data_dir / "fleet", name)
