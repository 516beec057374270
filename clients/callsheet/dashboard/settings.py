"""Settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.common import (
    DEFAULT_ADDRESS,
    HOST_NAMES,
    INSECURE,
    Address,
    check_exposure,
    host_and_port,
    is_loopback,
)
from callsheet.options.declaration import AtLeast, PathRule, Setting, check_least

DEFAULT_LISTEN = "127.0.0.1:7079"
"""Where a dashboard listens unless told otherwise: the second port after the scheduler's."""
_FILE = PathRule(file=True, directory=False, exists=True)


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
            "Where to listen; port 0 takes a free one.",
            variable="CALLSHEET_DASHBOARD_LISTEN",
            metavar="HOST:PORT",
            parse=host_and_port,
        ),
    ] = DEFAULT_LISTEN
    tls_cert: Annotated[
        Path | None,
        Setting(
            "The certificate to show, as PEM; read anew when it has changed.",
            variable="CALLSHEET_DASHBOARD_CERT",
            default_text="no TLS",
            path=_FILE,
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Setting(
            "The key of that certificate, as PEM.",
            variable="CALLSHEET_DASHBOARD_KEY",
            default_text="no TLS",
            path=_FILE,
        ),
    ] = None
    insecure: Annotated[bool, INSECURE] = False
    host_names: Annotated[str, HOST_NAMES] = ""
    shutdown_s: Annotated[float, AtLeast(0)] = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        if (self.tls_cert is None) != (self.tls_key is None):
            given, needed = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ValueError(f"{needed}: must be given with {given}")
        check_least(self)
        self.exposure(asks_for_tokens=True)

    @property
    def is_for_this_machine(self) -> bool:
        """Whether only processes of this machine reach it."""
        return is_loopback(self.listen)

    def exposure(self, *, asks_for_tokens: bool) -> str | None:
        """Says what is open to whoever reaches the address; None if nothing is.

        Args:
            asks_for_tokens: Whether the scheduler does; the dashboard lets in whom it lets in.

        Raises:
            ValueError: Other machines reach it, and that is not wanted without these credentials.
        """
        lacks: dict[str, str] = {}
        if self.tls_cert is None:
            lacks["TLS"] = "--tls-cert with --tls-key"
        if not asks_for_tokens:
            lacks["tokens"] = "--tokens to the scheduler"
        if not check_exposure(self.listen, lacks, insecure=self.insecure):
            return None
        what = "read what viewers see, and their tokens" if asks_for_tokens else "see everything"
        return f"INSECURE: whoever reaches {self.listen} may {what}"
