"""How a server of this machine knows a program in a sandbox that was let through to it, and which sandbox.

A server that asks for no tokens trusts everybody on its machine. What comes from these addresses is code that a model
wrote.
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Final

SANDBOX_SOURCES: Final = ipaddress.IPv4Network("127.64.0.0/10")
"""From where sandbox managers connect to ports of the loopback in the name of their sandboxes."""


def sandbox_source(job_id: str, trajectory_id: str) -> str:
    """Returns the address of a trajectory's sandboxes; two trajectories have the same one in one of 4 million cases."""
    digest = hashlib.sha256(f"{job_id}\n{trajectory_id}".encode("utf-8", "surrogatepass")).digest()
    return str(SANDBOX_SOURCES[int.from_bytes(digest) % SANDBOX_SOURCES.num_addresses])


def is_sandbox(host: str) -> bool:
    """Returns whether a peer's address is that of sandboxes, in its IPv4 form or as an IPv6 server sees it."""
    address = plain_address(host)
    return address is not None and address in SANDBOX_SOURCES


def plain_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns an address, that of IPv4 which one of IPv6 carries; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
