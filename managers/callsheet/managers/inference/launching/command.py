"""The command that starts a server, with what is filled in at each start. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from callsheet.managers.supervision.standing import RestartRule

HOST = "127.0.0.1"
"""Address on which launched servers listen: no client on another machine has any business with them."""
_PORT = "{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNeeds:
    """Arguments and variables with which a driver needs a server to be started.

    Attributes:
        arguments: Added to a command that does not name {port}; none if servers differ in that.
        environment: Added if the user's environment does not have it.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Order to start a server.

    Attributes:
        command: The command, with {host}, {port} and {name} left in.
        name: The text for {name}.
        log_path: Path of its log.
        stop_command: Ends parts that are no process of the server's; empty for nothing.
        environment: Environment of the server.
        start_timeout_s: The longest time from a start until it serves.
        stop_grace_s: Seconds between SIGTERM and SIGKILL.
        hung_after_s: Seconds for which a server that served may fail to serve before it is started again.
        rule: The rule by which it is started again.
    """

    command: tuple[str, ...]
    name: str
    log_path: str
    stop_command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    stop_grace_s: float = 5.0
    hung_after_s: float = 120.0
    rule: RestartRule = field(default_factory=RestartRule)


def command_template(text: str, needs: LaunchNeeds) -> tuple[str, ...]:
    """Returns the arguments of a command, as a shell would split it, with {host}, {port} and {name} left in.

    A command in which {port} stands is left as it is; another one gets what the driver needs at its end.

    Raises:
        ValueError: There is no command, or nothing says how to tell the server its port.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"launch: {text!r}: {error}") from error
    if not words:
        raise ValueError("launch: '' is empty; it must be a command")
    if any(_PORT in word for word in words):
        return words
    if not needs.arguments:
        raise ValueError(f"launch: {text!r}: must have {{port}} where the server is told its port")
    return (*words, *needs.arguments)


def fill_in(template: Sequence[str], *, port: int, name: str) -> list[str]:
    """Returns the command of one start. Other braces stay as they are."""
    values = {"{host}": HOST, _PORT: str(port), "{name}": name}
    return [re.sub(r"\{(?:host|port|name)\}", lambda found: values[found[0]], word) for word in template]


def server_name(manager_id: str) -> str:
    """Returns a name for a manager's server that files and containers can have."""
    return "engine-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", manager_id).strip("-.")


def server_environment(own: Mapping[str, str], needs: LaunchNeeds) -> dict[str, str]:
    """Returns the environment of a server: the manager's own, without what Callsheet is told by it.

    Servers call themselves at their start, which no proxy can do for them.
    """
    kept = {name: value for name, value in own.items() if not name.startswith("CALLSHEET_")}
    direct = ",".join(filter(None, (own.get("no_proxy") or own.get("NO_PROXY"), HOST, "localhost")))
    # Nobody's word for another's address: there is no proxy before them, whatever the manager's environment says.
    own_words = {"no_proxy": direct, "NO_PROXY": direct, "FORWARDED_ALLOW_IPS": ""}
    return {"PYTHONUNBUFFERED": "1", **needs.environment, **kept, **own_words}
