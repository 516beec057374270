"""How a server of this machine knows a program in a sandbox that was let through to it."""

from __future__ import annotations

import ipaddress
from typing import Final

SANDBOX_SOURCE: Final = "127.0.0.3"
"""From where sandbox managers connect to ports of the loopback in the name of their sandboxes.

A server that asks for no tokens trusts everybody on its machine. What comes from here is code that a model wrote.
"""


def is_sandbox(host: str) -> bool:
    """Whether a peer's address is that of sandboxes, also as a server that listens on IPv6 sees it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address) == SANDBOX_SOURCE
