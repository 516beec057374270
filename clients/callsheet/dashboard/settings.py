"""Settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.http_server.exposure import certificate, certificate_key, exposure_of
from callsheet.options.common import DEFAULT_ADDRESS, Address, host_and_port
from callsheet.options.declaration import AtLeast, Setting, check_least
from callsheet.options.listening import HOST_NAMES, INSECURE, is_loopback

DEFAULT_LISTEN = "127.0.0.1:7079"
"""Address at which a dashboard listens by default: its port is the second after the scheduler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """How the dashboard works. Times are seconds.

    Attributes:
        shutdown_s: How long running requests may go on when the dashboard is asked to end.
    """

    scheduler: Address = DEFAULT_ADDRESS
    listen: Annotated[
        str,
        Setting(
            "Address to listen on; port 0 takes a free one.",
            variable="CALLSHEET_DASHBOARD_LISTEN",
            metavar="HOST:PORT",
            parse=host_and_port,
        ),
    ] = DEFAULT_LISTEN
    tls_cert: Annotated[Path | None, certificate("CALLSHEET_DASHBOARD_CERT")] = None
    tls_key: Annotated[Path | None, certificate_key("CALLSHEET_DASHBOARD_KEY")] = None
    insecure: Annotated[bool, INSECURE] = False
    host_names: Annotated[str, HOST_NAMES] = ""
    shutdown_s: Annotated[float, AtLeast(0)] = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)
        self.exposure(asks_for_tokens=True)

    @property
    def is_for_this_machine(self) -> bool:
        """Returns whether only processes of this machine reach the dashboard."""
        return is_loopback(self.listen)

    def exposure(self, *, asks_for_tokens: bool) -> str | None:
        """Describes the access that any caller of the address has; None if it has none.

        Args:
            asks_for_tokens: Whether the scheduler does; the dashboard lets in whom it lets in.

        Raises:
            ValueError: Other machines reach it, and that is not wanted without these credentials.
        """
        lacks = {} if asks_for_tokens else {"tokens": "--tokens to the scheduler"}
        opens = "read what viewers see, and their tokens" if asks_for_tokens else "see everything"
        return exposure_of(self.listen, self.tls_cert, self.tls_key, lacks, insecure=self.insecure, opens=opens)
