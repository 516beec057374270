"""The server's side of TLS: certificates are read anew when their files have changed."""

from __future__ import annotations

import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import grpc
import structlog
from callsheet.credentials.secret_files import secret_file
from callsheet.credentials.validity import why_not_valid

_log = structlog.get_logger(__name__)


class CertificateFiles:
    """A certificate, its key, and the authorities of clients, as PEM files.

    gRPC asks for changes at each handshake, from threads of its own. Files that are half replaced, so that the key does
    not fit, are told in the log and looked at again when they change; until then what was read before is shown.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """Reads them.

        Raises:
            ValueError: One cannot be read, or they do not fit each other.
        """
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        try:
            self._stamps = self._stamped()
            self._configuration = self._read()
        except OSError as error:
            raise ValueError(f"tls: {error.filename}: cannot be read: {error.strerror}") from error
        if (problem := self._problem()) is not None:
            raise ValueError(f"tls: {problem}")

    def credentials(self) -> grpc.ServerCredentials:
        """The server's credentials; they follow the files."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._changed,  # type: ignore[arg-type]  # The stubs do not know that it may return None.
            require_client_authentication=self._client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificates; None if they are as they were."""
        with self._lock:
            try:
                stamps = self._stamped()
                if stamps == self._stamps:
                    return None
                configuration = self._read()
                problem = self._problem()
            except OSError as error:
                _log.error("certificates_unreadable", file=error.filename, reason=error.strerror)
                return None
            self._stamps = stamps
            if problem is not None:
                _log.error("certificates_unusable", reason=problem)
                return None
            _log.info("certificates_replaced", cert=str(self._cert))
            return configuration

    def _files(self) -> list[Path]:
        return [path for path in (self._cert, self._key, self._client_ca) if path is not None]

    def _stamped(self) -> list[tuple[int, int]]:
        return [(status.st_ino, status.st_mtime_ns) for status in (path.stat() for path in self._files())]

    def _problem(self) -> str | None:
        """Returns why the files cannot be used together, if so; gRPC reports only that it cannot listen."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password that is none, a key that has one would be asked for on the terminal.
            context.load_cert_chain(self._cert, secret_file(self._key), password="")
        except (OSError, ValueError) as error:
            return f"{self._cert} with {self._key}: must be a certificate and its key, as PEM: {error}"
        try:
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
        except (OSError, ValueError) as error:
            return f"{self._client_ca}: must be certificates of authorities, as PEM: {error}"
        return None

    def _read(self) -> grpc.ServerCertificateConfiguration:
        roots = self._client_ca.read_bytes() if self._client_ca is not None else None
        pair = (self._key.read_bytes(), self._cert.read_bytes())
        if (problem := why_not_valid(pair[1], datetime.now(UTC))) is not None:
            # Others may have better clocks.
            _log.warning("certificate_not_valid_now", cert=str(self._cert), reason=f"it is {problem}")
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)
