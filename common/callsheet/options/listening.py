"""Tell loopback addresses from those that other machines reach, and check what a server needs to listen there. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from callsheet.options.declaration import Setting

INSECURE = Setting(
    "Listen beyond this machine without TLS or tokens.", flag="--insecure", variable="CALLSHEET_INSECURE"
)

HOST_NAMES = Setting(
    "Names that clients of HTTP may use without TLS besides the address, separated by commas.",
    variable="CALLSHEET_HOST_NAMES",
    metavar="NAME,...",
    default_text="none",
)


def check_exposure(listen: str, lacks: Mapping[str, str], *, insecure: bool) -> bool:
    """Returns whether whoever reaches an address meets less than all credentials.

    Args:
        listen: "host:port" or "unix:path".
        lacks: The credentials that the server lacks, and the options that give them.
        insecure: Whether the user said that this is wanted.

    Raises:
        ValueError: Other machines reach it, credentials are missing, and that was not said to be wanted.
    """
    if not lacks or is_loopback(listen):
        return False
    if not insecure:
        raise ValueError(
            f"listen: {listen!r} can be reached from other machines, without {' and '.join(lacks)}: give "
            f"{' and '.join(lacks.values())}, or --insecure if whoever reaches it may do everything"
        )
    return True


def is_loopback(listen: str) -> bool:
    """Returns whether only processes of this machine can reach an address, "host:port" or "unix:path"."""
    if listen.startswith(("unix:", "unix-abstract:")):
        return True
    host = listen.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
