"""Options for TLS of every HTTP server, and the callers that a server admits without it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from callsheet.options.declaration import PathRule, Setting
from callsheet.options.listening import check_exposure

_FILE = PathRule(file=True, directory=False, exists=True)


def certificate(variable: str) -> Setting:
    """The option for a server's certificate, with the variable that it can come from."""
    return Setting(
        "The certificate, as PEM; it is read again when it has changed.",
        variable=variable,
        default_text="no TLS",
        path=_FILE,
    )


def certificate_key(variable: str) -> Setting:
    """The option for the key of that certificate, with the variable that it can come from."""
    return Setting("The key of that certificate, as PEM.", variable=variable, default_text="no TLS", path=_FILE)


def exposure_of(
    listen: str, cert: Path | None, key: Path | None, lacks: Mapping[str, str], *, insecure: bool, opens: str
) -> str | None:
    """Describes the access that any caller of a server's address has; None if it has none.

    Args:
        listen: The address.
        cert: The certificate that it shows.
        key: Its key.
        lacks: The credentials besides TLS that it does not ask for, and the options that make it ask.
        insecure: Whether the user wants that beyond this machine.
        opens: What callers may do then.

    Raises:
        ValueError: A file of TLS is missing, or other machines reach it without credentials, and that is not wanted.
    """
    if (cert is None) != (key is None):
        given, needed = ("tls_cert", "tls_key") if key is None else ("tls_key", "tls_cert")
        raise ValueError(f"{needed}: must be given with {given}")
    if cert is None:
        lacks = {"TLS": "--tls-cert with --tls-key", **lacks}
    if not check_exposure(listen, lacks, insecure=insecure):
        return None
    return f"INSECURE: whoever reaches {listen} may {opens}"
