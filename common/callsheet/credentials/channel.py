"""Channels to a scheduler: with TLS or without, renewed as their files change, and the token that each rpc carries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from callsheet.credentials.renewal import RenewedChannel
from callsheet.credentials.secret_files import secret_file
from callsheet.credentials.token import FileToken, checked_token
from callsheet.credentials.validity import clock_text, why_not_valid

_log = logging.getLogger("callsheet.credentials")

SYSTEM: Final = "system"
"""In place of a file of authorities: those that the operating system trusts."""

Metadata = tuple[tuple[str, str], ...]

_HINTS: Final = (
    (
        "certificate is not yet valid",
        "the scheduler's certificate is valid from a later time on than this machine's clock says, {clock}: set the "
        "clock of this machine, or of the one that made the certificate",
    ),
    (
        "certificate has expired",
        "the scheduler's certificate was valid until an earlier time than this machine's clock says, {clock}: renew "
        "it, or set the clock",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "the scheduler's certificate is not of the authorities in CALLSHEET_TLS_CA"),
    ("Hostname Verification", "the scheduler's certificate is for other names than the one that was dialled"),
    (
        "security handshaker",
        "what CALLSHEET_TLS_CA, CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY name must be certificates and a key that fit, "
        "as PEM",
    ),
    ("WRONG_VERSION_NUMBER", "the scheduler does not use TLS: do without CALLSHEET_TLS_CA"),
    *(
        (
            words,
            "if the scheduler uses TLS, name its authorities in CALLSHEET_TLS_CA, and a certificate of your own in "
            "CALLSHEET_TLS_CERT and CALLSHEET_TLS_KEY if it asks for one: of its authorities, and valid by its clock "
            "(this one says {clock})",
        )
        # A peer that speaks TLS closes other connections without a word.
        for words in ("Socket closed", "SSL", "handshake")
    ),
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """How a process recognises the scheduler, and how it says who it is. Nothing is read before it is needed.

    Attributes:
        ca_file: Certificates of authorities to trust, as PEM, or `SYSTEM`; None does without TLS.
        cert_file: The process's own certificate, as PEM, for a scheduler that asks for one.
        key_file: The key of that certificate, as PEM.
        token: The token.
        token_file: A file that holds it instead, read anew for each rpc.
        use_proxy: Dial through the proxy that `https_proxy` or `http_proxy` names. By default no proxy is used: it
            would be asked for loopback addresses, too, which are its own there.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    use_proxy: bool = False
    _of_file: FileToken = field(default_factory=FileToken, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert", "key") if self.key_file is None else ("key", "cert")
            raise ValueError(f"tls_{missing}: must be given with tls_{given}")
        if self.cert_file is not None and self.ca_file is None:
            raise ValueError("tls_ca: must be given with tls_cert; 'system' takes the operating system's authorities")
        try:
            if self.token:
                checked_token(self.token)
        except ValueError as error:
            raise ValueError(f"token: {error}") from None

    def open_channel(self, target: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        """Opens a channel, which connects when it is first used. Files that have changed are read anew.

        Raises:
            OSError: A file cannot be read; its error names it.
        """
        options = (("grpc.enable_http_proxy", int(self.use_proxy)), *options)
        if self.ca_file is None:
            return grpc.aio.insecure_channel(target, options=options)
        files = [Path(file) for file in (self.ca_file, self.cert_file, self.key_file) if file and file != SYSTEM]

        def open_now() -> grpc.aio.Channel:
            return grpc.aio.secure_channel(target, self._read(), options=options)

        return RenewedChannel(open_now, files) if files else open_now()

    def _read(self) -> grpc.ChannelCredentials:
        roots = Path(self.ca_file).read_bytes() if self.ca_file not in {None, SYSTEM} else None
        key = secret_file(self.key_file).read_bytes() if self.key_file is not None else None
        chain = Path(self.cert_file).read_bytes() if self.cert_file is not None else None
        if chain is not None and (problem := why_not_valid(chain, datetime.now(UTC))) is not None:
            _log.warning("the certificate in %s is %s", self.cert_file, problem)
        return grpc.ssl_channel_credentials(roots, key, chain)

    def metadata(self) -> Metadata:
        """Returns the metadata of each rpc. gRPC's own call credentials would start a thread for each.

        Raises:
            OSError: The token's file cannot be read, and never was; its error names it.
            ValueError: There is no token in it, and never was.
        """
        token = self.token
        if self.token_file is not None:
            token = self._of_file.read(self.token_file)
        return (("authorization", f"Bearer {checked_token(token)}"),) if token else ()


def explained(details: str) -> str:
    """Returns gRPC's text about a failed connection, with the cure if it is known."""
    hint = next((hint for words, hint in _HINTS if words in details), None)
    return details if hint is None else f"{details}; {hint.format(clock=clock_text(datetime.now(UTC)))}"
