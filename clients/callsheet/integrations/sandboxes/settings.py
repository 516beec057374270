"""Settings of facades: their sandboxes, their addresses, and the clients that they admit."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from callsheet.http_server.exposure import certificate, certificate_key, exposure_of
from callsheet.options.common import DEFAULT_ADDRESS, Address, host_and_port
from callsheet.options.declaration import AtLeast, Setting, check_least
from callsheet.options.listening import HOST_NAMES, INSECURE


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """Settings of each sandbox."""

    image: Annotated[str, Setting("Root file system, unless a client names another.")] = ""
    set_up: Annotated[str, Setting("Shell command to set each sandbox up with.")] = ""
    cpus: Annotated[int, Setting("Cores of each command.", least=1)] = 1
    memory_mib: Annotated[
        int | None, Setting("Memory of each sandbox in MiB.", default_text="the scheduler's", least=1)
    ] = None
    guaranteed_memory: Annotated[
        bool, Setting("Keep the whole memory of a sandbox for its life.", flag="--guaranteed-memory")
    ] = False
    disk_mib: Annotated[int | None, Setting("Disk of each sandbox in MiB.", default_text="the manager's", least=1)] = (
        None
    )

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        check_least(self)


@dataclass(frozen=True, slots=True)
class ServedFacade:
    """How a facade works. The class of each facade adds what is its own.

    Attributes:
        sandbox: What each sandbox is to be.
        max_sandboxes: Sandboxes that may be open at once.
        max_request_bytes: Size of one request, uploads included.
        give_up_after_s: How long open requests wait for a scheduler that cannot be reached.
        shutdown_s: How long running requests may go on when the facade is asked to end.
    """

    scheduler: Address = DEFAULT_ADDRESS
    listen: Annotated[
        str,
        Setting(
            "Address to listen on; port 0 takes a free one.", variable="CALLSHEET_FACADE_LISTEN", metavar="HOST:PORT"
        ),
    ] = "127.0.0.1:8000"
    auth_token: Annotated[
        str | None,
        Setting("What clients must give as their token.", variable="CALLSHEET_FACADE_TOKEN", secret=True),
    ] = field(default=None, repr=False)
    job_id: Annotated[
        str, Setting("The job of all sandboxes of this facade.", default_text="facade- and a random suffix")
    ] = field(default_factory=lambda: f"facade-{secrets.token_hex(4)}")
    sandbox: SandboxRequest = field(default_factory=SandboxRequest)
    max_sandboxes: Annotated[int, AtLeast(1)] = 4096
    max_request_bytes: Annotated[int, AtLeast(1)] = 256 << 20
    give_up_after_s: float = 60.0
    shutdown_s: float = 5.0
    tls_cert: Annotated[Path | None, certificate("CALLSHEET_FACADE_CERT")] = None
    tls_key: Annotated[Path | None, certificate_key("CALLSHEET_FACADE_KEY")] = None
    insecure: Annotated[bool, INSECURE] = False
    host_names: Annotated[str, HOST_NAMES] = ""

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        try:
            host_and_port(self.listen)
        except ValueError as error:
            raise ValueError(f"listen: {error}") from error
        if self.auth_token == "":
            raise ValueError("auth_token: empty: must be a token, or None to let everybody in")
        self.exposure()
        check_least(self)
        for name in ("give_up_after_s", "shutdown_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)}: must be above 0")

    def exposure(self) -> str | None:
        """Describes the access that any caller of the address has; None if it has none.

        Raises:
            ValueError: Other machines reach it, and that is not wanted without these credentials.
        """
        lacks = {} if self.auth_token is not None else {"a token": "--auth-token-file"}
        opens = "read what is said, the token included" if self.auth_token else "run commands in its sandboxes"
        return exposure_of(self.listen, self.tls_cert, self.tls_key, lacks, insecure=self.insecure, opens=opens)
