"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.http_server.exposure import certificate, certificate_key, exposure_of
from callsheet.options.common import DEFAULT_ADDRESS, Address, DataDir, host_and_port
from callsheet.options.declaration import AtLeast, Setting, check_least
from callsheet.options.listening import HOST_NAMES, INSECURE

DEFAULT_LISTEN = "127.0.0.1:7078"
"""Address at which a gateway listens by default: its port is the one after the scheduler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How the gateway works. Times are seconds.

    Attributes:
        max_calls: Calls under way at once; more are told to try again.
        max_trajectory_calls: The same of one trajectory.
        max_live_trajectories: Conversations in memory; idle ones beyond are read from the database when they go on.
        max_live_bytes: The same by about the memory that they take.
        max_request_bytes: Size of one request.
        max_waiting_bytes: Size of all requests that are not answered yet; those beyond are told to try again.
        give_up_after_s: How long calls wait for a scheduler that cannot be reached.
        disconnect_grace_s: How long a call goes on whose caller is gone: a client that tries again attaches to it.
        sweep_s: How often it is looked which trajectories were closed.
        shutdown_s: How long running requests may go on when the gateway is asked to end.
    """

    scheduler: Address = DEFAULT_ADDRESS
    listen: Annotated[
        str,
        Setting(
            "Address to listen on; port 0 takes a free one.",
            variable="CALLSHEET_GATEWAY_LISTEN",
            metavar="HOST:PORT",
            parse=host_and_port,
        ),
    ] = DEFAULT_LISTEN
    data_dir: DataDir
    database_url: Annotated[
        str | None,
        Setting(
            "PostgreSQL database for call records.",
            variable="CALLSHEET_GATEWAY_DATABASE_URL",
            default_text="SQLite in the data directory",
            secret=True,
        ),
    ] = None
    service: Annotated[str, Setting("The service that generates, for every model name of a call.", metavar="NAME")] = (
        "policy"
    )
    tokenizer: Annotated[
        str,
        Setting(
            "Directory with the model's tokenizer and chat template, in Hugging Face's format; bytes is the demo's.",
            metavar="DIR|bytes",
        ),
    ] = "bytes"
    parser_url: Annotated[
        str | None,
        Setting(
            "An SGLang server that parses replies; the gateway parses a reply itself if the server takes more than 5 "
            "seconds.",
            metavar="URL",
            default_text="the gateway parses",
        ),
    ] = None
    tool_parser: Annotated[
        str | None, Setting("That server's name of its parser of calls.", metavar="NAME", default_text="none")
    ] = None
    reasoning_parser: Annotated[
        str | None, Setting("That server's name of its parser of reasoning.", metavar="NAME", default_text="none")
    ] = None
    parser_api_key: Annotated[
        str | None,
        Setting(
            "The API key of that server.",
            variable="CALLSHEET_GATEWAY_PARSER_API_KEY",
            default_text="none",
            secret=True,
        ),
    ] = None
    default_max_tokens: Annotated[
        int, Setting("The most new tokens of a call that names no number.", metavar="TOKENS", least=1)
    ] = 4096
    retention_s: Annotated[
        float,
        Setting(
            "Seconds for which call records are kept after their trajectory was closed.",
            flag="--retention",
            metavar="SECONDS",
            least=0,
        ),
    ] = 86_400.0
    max_database_bytes: Annotated[
        int,
        Setting(
            "The most bytes of call records; beyond them the records of the trajectories that were closed first are "
            "removed.",
            metavar="BYTES",
            least=1,
        ),
    ] = 64 << 30
    max_calls: Annotated[int, AtLeast(1)] = 4096
    max_trajectory_calls: Annotated[int, AtLeast(1)] = 64
    max_live_trajectories: Annotated[int, AtLeast(1)] = 1024
    max_live_bytes: Annotated[int, AtLeast(1)] = 2 << 30
    max_request_bytes: Annotated[int, AtLeast(1)] = 16 << 20
    max_waiting_bytes: Annotated[int, AtLeast(1)] = 1 << 30
    give_up_after_s: Annotated[float, AtLeast(0)] = 60.0
    disconnect_grace_s: Annotated[float, AtLeast(0)] = 2.0
    sweep_s: Annotated[float, AtLeast(0.01)] = 60.0
    shutdown_s: Annotated[float, AtLeast(0)] = 5.0
    tls_cert: Annotated[Path | None, certificate("CALLSHEET_GATEWAY_CERT")] = None
    tls_key: Annotated[Path | None, certificate_key("CALLSHEET_GATEWAY_KEY")] = None
    insecure: Annotated[bool, INSECURE] = False
    host_names: Annotated[str, HOST_NAMES] = ""

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        if self.parser_url is not None and not self.parser_url.startswith(("http://", "https://")):
            raise ValueError(f"parser_url: {self.parser_url!r}: must be http://HOST:PORT or https://HOST:PORT")
        if (self.parser_url is None) != (self.tool_parser is None and self.reasoning_parser is None):
            raise ValueError("parser_url: must be given with tool_parser, reasoning_parser or both")
        check_least(self)
        self.exposure(asks_for_tokens=True)

    def exposure(self, *, asks_for_tokens: bool) -> str | None:
        """Describes the access that any caller of the address has; None if it has none.

        Args:
            asks_for_tokens: Whether the scheduler does; the gateway lets in whom it lets in.

        Raises:
            ValueError: Other machines reach it, and that is not wanted without these credentials.
        """
        lacks = {} if asks_for_tokens else {"tokens": "--tokens to the scheduler"}
        opens = "read what is said, keys included" if asks_for_tokens else "generate in every trajectory"
        return exposure_of(self.listen, self.tls_cert, self.tls_key, lacks, insecure=self.insecure, opens=opens)
