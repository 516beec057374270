"""How an HTTP server knows requests that a web page made a browser send. Pure.

A browser sends them from its machine, which servers on the loopback trust. A page cannot read answers of another
origin, unless it has made its own name lead there since it was loaded (DNS rebinding). Such a request has that name as
its Host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from callsheet.credentials.sandboxes import plain_address

FORBIDDEN: Final = 403
_LOCALHOST: Final = "localhost"


def why_of_a_web_page(
    headers: Iterable[tuple[str, str]],
    here: Sequence[str],
    names: Sequence[str],
    *,
    has_certificate: bool,
    own_pages: bool = False,
) -> str | None:
    """Returns why a request is refused as that of a web page; None where it is none.

    Args:
        headers: Of the request, with names in small letters.
        here: The address at which its connection arrived; behind it the names or addresses that the server listens on.
        names: Further names that the operator gave the server.
        has_certificate: Whether the connection has TLS: the certificate's names are the server's then, and a browser
            speaks to a server of no other name.
        own_pages: Whether the server has web pages itself, which may call it: their origin is the Host that they call.
    """
    given = list(headers)
    origins = {value.strip().lower() for name, value in given if name == "origin"}
    if origins and not own_pages:
        return "Origin: web pages may not call, and other clients send none"
    scheme = "https" if has_certificate else "http"
    if origins - {f"{scheme}://{value.strip().lower()}" for name, value in given if name == "host"}:
        return "Origin: web pages of others may not call"
    hosts = [_name_of(value) for name, value in given if name == "host"]
    if has_certificate and not names:
        return None
    foreign = next((host for host in hosts if host and not _is_own(host, here, names)), None)
    if foreign is None:
        return None
    return f"Host: {foreign[:200]!r}: must be the server's address, or a name that --host-names gives it"


def _is_own(host: str, here: Sequence[str], names: Sequence[str]) -> bool:
    if host in {name.lower() for name in (*here, *names)}:
        return True
    found, own = plain_address(host), plain_address(here[0])
    if own is None or not own.is_loopback:
        return found is not None and found == own
    is_localhost = host == _LOCALHOST or host.endswith(f".{_LOCALHOST}")
    return is_localhost or (found is not None and found.is_loopback)


def _name_of(host: str) -> str:
    """The name or address in a Host header, without its port."""
    text = host.strip().lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.removesuffix(".")
