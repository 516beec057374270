"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from callsheet.deploy.choices import Isolation, LogFormat, LogLevel, ShareCores

DEFAULT_ADDRESS = "127.0.0.1:7077"
_HIGHEST_PORT = 65535


def default_data_dir() -> Path:
    """Where a machine's own scheduler keeps its data unless told otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "callsheet"


def host_and_port(address: str) -> str:
    """Returns an address to listen on as it is.

    Raises:
        typer.BadParameter: It is not HOST:PORT. gRPC itself would take a port above 65535 as some other one.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > _HIGHEST_PORT:
        raise typer.BadParameter(
            f"{address!r} must be HOST:PORT with a port from 0 to {_HIGHEST_PORT}, for instance {DEFAULT_ADDRESS}"
        )
    return address


Address = Annotated[
    str,
    typer.Option(
        "--scheduler",
        envvar="CALLSHEET_SCHEDULER",
        metavar="HOST:PORT",
        callback=host_and_port,
        help="Where the scheduler is.",
    ),
]
Listen = Annotated[
    str,
    typer.Option(
        envvar="CALLSHEET_LISTEN",
        metavar="HOST:PORT",
        callback=host_and_port,
        help="Where to listen; port 0 takes a free one.",
    ),
]
DataDir = Annotated[
    Path,
    typer.Option(
        envvar="CALLSHEET_DATA_DIR",
        file_okay=False,
        show_default="~/.local/state/callsheet",
        default_factory=default_data_dir,
        help="Journal, payloads, sandboxes and logs.",
    ),
]
Cpus = Annotated[
    int | None,
    typer.Option(envvar="CALLSHEET_CPUS", min=1, show_default="all", help="Cores to share."),
]
MemoryMib = Annotated[
    int | None,
    typer.Option(
        "--memory-mib",
        envvar="CALLSHEET_MEMORY_MIB",
        min=1,
        show_default="the machine's, less a margin",
        help="Memory to share in MiB.",
    ),
]
IsolationOption = Annotated[
    Isolation, typer.Option("--isolation", envvar="CALLSHEET_ISOLATION", help="What keeps sandboxes apart.")
]
ShareCoresOption = Annotated[
    ShareCores,
    typer.Option(
        "--share-cores",
        envvar="CALLSHEET_SHARE_CORES",
        help="Who has the cores: all commands together, ranked by the CPU time they have had or plainly as the system "
        "does it, or each command cores reserved for it.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format", envvar="CALLSHEET_LOG_FORMAT", show_default="console on a terminal", help="Look of log lines."
    ),
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", envvar="CALLSHEET_LOG_LEVEL", help="Least important log lines to keep.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
EngineThreads = Annotated[
    int | None,
    typer.Option(
        "--engine-threads",
        envvar="CALLSHEET_ENGINE_THREADS",
        min=1,
        show_default="a quarter of the cores, at least 1",
        help="Threads of the inference engine; it keeps as many cores for itself.",
    ),
]
ManagerId = Annotated[
    str | None,
    typer.Option(
        "--manager-id",
        envvar="CALLSHEET_MANAGER_ID",
        show_default="NODE-KIND",
        help="Unique among managers, stable over restarts.",
    ),
]
NodeId = Annotated[
    str | None,
    typer.Option(
        "--node-id",
        envvar="CALLSHEET_NODE_ID",
        show_default="the host name",
        help="Name of this machine; managers that share a machine give the same, and the same cores and memory.",
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        envvar="CALLSHEET_DRAIN_TIMEOUT",
        min=0,
        metavar="SECONDS",
        help="How long running attempts may go on after SIGTERM.",
    ),
]
LoadAtFirstUse = Annotated[
    bool,
    typer.Option("--load-at-first-use", help="Load the model with the first request; until then it takes no memory."),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        envvar="CALLSHEET_WEIGHTS",
        exists=True,
        file_okay=False,
        show_default="random weights",
        help="Directory with config.json and weights.pt.",
    ),
]
