"""What a manager and the watchdog of its server tell each other, a line of JSON each. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from callsheet.managers.inference.launching.standing import RestartRule, ServerPhase, ServerStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What a watchdog is to do.

    Attributes:
        command: Of the server, with {host}, {port} and {name} left in.
        name: What {name} is.
        log_path: Where its output goes.
        stop_command: Run before each start and after each end, for what is no process below the watchdog's; may be
            empty.
        environment: All of the server's environment.
        rule: When it is started again.
    """

    command: tuple[str, ...]
    name: str
    log_path: str
    stop_command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    rule: RestartRule = field(default_factory=RestartRule)


def encode_order(order: LaunchOrder) -> bytes:
    """The line with an order."""
    return json.dumps(asdict(order)).encode() + b"\n"


def decode_order(line: bytes) -> LaunchOrder:
    """The order in a line."""
    told = json.loads(line)
    told["rule"] = RestartRule(**told["rule"])
    for name in ("command", "stop_command"):
        told[name] = tuple(told[name])
    return LaunchOrder(**told)


def encode_serving(start: int) -> bytes:
    """The line that says that a start of the server was found to serve."""
    return b"serving %d\n" % start


def encode_hung(start: int) -> bytes:
    """The line that says that a start of the server has hung."""
    return b"hung %d\n" % start


def encode_standing(standing: ServerStanding) -> bytes:
    """The line with where a server stands."""
    return json.dumps(asdict(standing)).encode() + b"\n"


def decode_standing(line: bytes) -> ServerStanding:
    """Where a server stands, as a line tells it."""
    told = json.loads(line)
    return ServerStanding(**{**told, "phase": ServerPhase(told["phase"])})
