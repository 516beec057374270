"""Settings of who may call a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import PathRule, Setting
from callsheet.options.listening import HOST_NAMES, INSECURE, check_exposure


def _file(meaning: str, variable: str, default: str = "no TLS", *, exists: bool = True) -> Setting:
    return Setting(
        meaning, variable=variable, default_text=default, path=PathRule(file=True, directory=False, exists=exists)
    )


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Settings that decide which callers a scheduler has, and how connections are kept private."""

    tls_cert: Annotated[
        Path | None, _file("The certificate, as PEM; it is read again when it has changed.", "CALLSHEET_SERVER_CERT")
    ] = None
    tls_key: Annotated[Path | None, _file("The key of that certificate, as PEM.", "CALLSHEET_SERVER_KEY")] = None
    tls_client_ca: Annotated[
        Path | None,
        _file("Authorities whose certificates callers must have, as PEM.", "CALLSHEET_CLIENT_CA", "they need none"),
    ] = None
    tokens: Annotated[
        Path | None,
        _file("Tokens that callers must have; callsheet token fills it.", "CALLSHEET_TOKENS", "none", exists=False),
    ] = None
    insecure: Annotated[bool, INSECURE] = False
    host_names: Annotated[str, HOST_NAMES] = ""

    def __post_init__(self) -> None:
        for given, needed in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
            if getattr(self, given) is not None and getattr(self, needed) is None:
                raise ValueError(f"{needed}: must be given with {given}")

    def check_listen(self, listen: str) -> str | None:
        """Describes the access that any caller of an address has; None if it has none.

        Raises:
            ValueError: Other machines reach it, and that is not wanted without these credentials.
        """
        lacks: dict[str, str] = {}
        if self.tls_cert is None:
            lacks["TLS"] = "--tls-cert with --tls-key"
        if self.tokens is None:
            lacks["tokens"] = "--tokens"
        if not check_exposure(listen, lacks, insecure=self.insecure):
            return None
        what = "read what is said, tokens included" if self.tokens else "do everything, run commands included"
        return f"INSECURE: whoever reaches {listen} may {what}"
