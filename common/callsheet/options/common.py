"""Options that several processes have in common."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import PathRule, Setting

DEFAULT_ADDRESS = "127.0.0.1:7077"
_HIGHEST_PORT = 65535


class LogFormat(StrEnum):
    """How a log line looks."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least important lines that are kept."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def default_data_dir() -> Path:
    """Returns the directory in which a machine's own scheduler keeps its data by default."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "callsheet"


def host_and_port(address: str) -> str:
    """Returns an address to listen on as it is.

    Raises:
        ValueError: It is not HOST:PORT. gRPC itself would take a port above 65535 as some other one.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > _HIGHEST_PORT:
        raise ValueError(
            f"{address!r} must be HOST:PORT with a port from 0 to {_HIGHEST_PORT}, for instance {DEFAULT_ADDRESS}"
        )
    return address


def metrics_address(text: str) -> str | None:
    """Reads where metrics are to be; None where they are off.

    Raises:
        ValueError: It is neither HOST:PORT nor "none".
    """
    return None if text == "none" else host_and_port(text)


def comma_separated(text: str) -> tuple[str, ...]:
    """The parts of a text that commas separate, without the space around them; empty ones are dropped."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def whole_numbers(text: str) -> tuple[int, ...]:
    """Reads whole numbers with commas between them; raises ValueError that says so."""
    try:
        return tuple(map(int, comma_separated(text)))
    except ValueError as error:
        raise ValueError(f"{text!r} must be whole numbers with commas between them") from error


Address = Annotated[
    str,
    Setting(
        "The scheduler's address.",
        flag="--scheduler",
        variable="CALLSHEET_SCHEDULER",
        metavar="HOST:PORT",
        parse=host_and_port,
    ),
]
Listen = Annotated[
    str,
    Setting(
        "Address to listen on; port 0 takes a free one.",
        variable="CALLSHEET_LISTEN",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        parse=host_and_port,
    ),
]
DataDir = Annotated[
    Path,
    Setting(
        "Journal, payloads, sandboxes and logs.",
        flag="--data-dir",
        variable="CALLSHEET_DATA_DIR",
        default=default_data_dir,
        default_text="~/.local/state/callsheet",
        parse=Path.absolute,
        path=PathRule(),
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    Setting("Format of log lines.", variable="CALLSHEET_LOG_FORMAT", default_text="console on a terminal"),
]
LogLevelOption = Annotated[LogLevel, Setting("Least important log lines to keep.", variable="CALLSHEET_LOG_LEVEL")]
AsJson = Annotated[bool, Setting("Print one JSON object and nothing else on standard output.", flag="--json")]
