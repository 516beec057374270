"""Reads the request that a proxy gets, and rewrites it for the server. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from callsheet.managers.sandbox.network.destinations import Destination

CONNECT = b"CONNECT"

_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,6000}) (HTTP/1\.[01])\Z")

_ABSOLUTE = re.compile(rb"http://([^/?#@]{1,300})([/?]\S*)?\Z", re.IGNORECASE)

_HTTP_PORT = 80

# Between a client and its proxy alone (RFC 9110, section 7.6.1), besides what Connection names; and what is replaced.
_HOP = frozenset(
    {b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"keep-alive"}
)


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """Head of a request to a proxy.

    Attributes:
        destination: Where to connect to.
        head: What the server is sent in its place; empty for a tunnel, of which it learns nothing.
    """

    destination: Destination
    head: bytes

    @property
    def is_tunnel(self) -> bool:
        """True if it is a CONNECT, which is answered once there is a connection."""
        return not self.head


def read_head(head: bytes) -> ProxyRequest:
    """Reads a request's head (RFC 9112, section 3.2): CONNECT to "host:port", or any method with an http URL.

    The server is told to close after its answer, so that a connection through the proxy has one destination.

    Args:
        head: Up to the empty line, without it.

    Raises:
        ValueError: It is neither.
    """
    line, *fields = head.split(b"\r\n")
    match = _LINE.match(line)
    if match is None:
        raise ValueError("no request of HTTP/1")
    method, target, version = match.groups()
    if method == CONNECT:
        return ProxyRequest(Destination.parse(target.decode("ascii")), b"")
    url = _ABSOLUTE.match(target)
    if url is None:
        raise ValueError("neither CONNECT nor an http URL")
    path = url[2] or b"/"
    origin = path if path.startswith(b"/") else b"/" + path
    # The URL says which server is meant, whatever the field says (section 3.2.2).
    kept = [b" ".join((method, origin, version)), b"Host: " + url[1], *_end_to_end(fields), b"Connection: close"]
    return ProxyRequest(_host_and_port(url[1].decode("ascii")), b"\r\n".join(kept) + b"\r\n\r\n")


def _end_to_end(fields: list[bytes]) -> list[bytes]:
    named = [(field.partition(b":")[0].strip().lower(), field) for field in fields]
    listed = b",".join(field.partition(b":")[2] for name, field in named if name == b"connection")
    dropped = _HOP | {name.strip().lower() for name in listed.split(b",")}
    return [field for name, field in named if name not in dropped]


def _host_and_port(authority: str) -> Destination:
    has_port = re.search(r":\d+\Z", authority)
    return Destination.parse(authority if has_port else f"{authority.removesuffix(':')}:{_HTTP_PORT}")
