"""A server's side of TLS: its certificate is read anew when its files have changed."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


def following_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Returns what handshakes are made with; each of them looks whether the files have changed.

    Args:
        cert: The certificate and its chain, as PEM.
        key: Its key, as PEM.

    Raises:
        ValueError: They cannot be read, or do not fit each other.
    """
    stamps = _stamps(cert, key)
    try:
        current = first = _context(cert, key)
    except OSError as error:
        raise ValueError(f"tls_cert: {cert} with {key}: cannot be used: {error}") from error

    def renew(handshake: ssl.SSLObject, _name: str | None, _context_of_listener: ssl.SSLContext) -> None:
        nonlocal current, stamps
        found = _stamps(cert, key)
        if found != stamps:
            try:
                current = _context(cert, key)
            except OSError as error:
                # Half replaced, for instance: the next handshake looks again.
                _log.error("certificates_unreadable", file=str(cert), reason=str(error))
            else:
                stamps = found
                _log.info("certificates_replaced", cert=str(cert))
        handshake.context = current

    first.sni_callback = renew
    return first


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def _stamps(*paths: Path) -> list[tuple[int, int]]:
    """What changes when a file does; of one that is not there, nothing."""
    found = [path.stat() for path in paths if path.exists()]
    return [(status.st_ino, status.st_mtime_ns) for status in found]
