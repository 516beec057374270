"""Destinations on the network, as env_resets and operators name them. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
PROXY_PORT = 3128
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
_RULE = 'must be "HOST:PORT" with a name, "*.NAME", an address ("[...]" around one of IPv6) or "*", and a port to 65535'


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination to connect to by TCP.

    Attributes:
        host: A name in lower case, "*.NAME" for any name below one, an address, or "*" for any name.
        port: From 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Reads "HOST:PORT", with "localhost" for 127.0.0.1; raises ValueError naming value and rule."""
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = (host[1:-1] if bracketed else host).lower().removesuffix(".")
        host = LOOPBACK if host == "localhost" else host
        address = _address(host)
        is_host = bracketed == (address is not None and address.version == 6) and (
            address is not None or host == "*" or _NAME.fullmatch(host.removeprefix("*."))
        )
        if not is_host or not re.fullmatch(r"[1-9]\d{0,4}", port) or int(port) > 65_535:
            raise ValueError(f"{text[:200]!r}: {_RULE}")
        return cls(str(address) if address is not None else host, int(port))

    @property
    def is_address(self) -> bool:
        """Returns whether the destination is an address."""
        return _address(self.host) is not None

    @property
    def is_loopback(self) -> bool:
        """Returns whether it is a port of this machine's loopback: 127.0.0.1, as programs in sandboxes have it, too."""
        return self.host == LOOPBACK

    def covers(self, other: Destination) -> bool:
        """Returns whether permission for this destination covers another. Only the same address covers an address."""
        if self.port != other.port:
            return False
        if self.host == other.host:
            return True
        if other.is_address:
            return False
        return self.host == "*" or (self.host.startswith("*.") and other.host.endswith(self.host[1:]))

    def __str__(self) -> str:
        """Returns what `parse` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def covered(destination: Destination, allowed: Iterable[Destination]) -> bool:
    """Returns whether one of the allowed destinations covers this one."""
    return any(one.covers(destination) for one in allowed)


def network_words(allowed: Iterable[Destination]) -> str:
    """Returns, for people, what sandboxes can reach where env_resets may name these destinations."""
    named = ", ".join(map(str, allowed))
    return f"none, or by a proxy what an env_reset names of {named}" if named else "none but a loopback of its own"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
