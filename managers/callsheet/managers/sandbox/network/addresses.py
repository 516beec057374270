"""The addresses that a destination may lead to."""

from __future__ import annotations

import ipaddress
import socket

import anyio
import psutil
from callsheet.managers.sandbox.network.destinations import Destination

_RESOLVE_SECONDS = 10.0


async def addresses_of(destination: Destination) -> list[str]:
    """Returns the addresses to connect to.

    A name is resolved once, here, so that it cannot lead elsewhere between a check and a connection, and to IPv4 alone,
    since addresses of IPv6 may carry private ones of IPv4 inside.

    Raises:
        OSError: The name is not known, or nothing that it leads to is public.
    """
    if destination.is_address:
        return [destination.host]
    with anyio.fail_after(_RESOLVE_SECONDS):
        found = await anyio.getaddrinfo(
            destination.host, destination.port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
    public = [address[0] for *_, address in found if is_public(str(address[0]))]
    if not public:
        raise PermissionError(f"{destination.host} leads to no public address")
    return public


def is_public(address: str) -> bool:
    """Returns whether an address of IPv4 is neither this machine's nor of a private or special network."""
    parsed = ipaddress.IPv4Address(address)
    return parsed.is_global and not parsed.is_multicast and address not in _own_addresses()


def _own_addresses() -> set[str]:
    return {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
