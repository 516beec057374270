"""Certificates for tests, of an authority that lives as long as a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """An authority and what it has signed, as files.

    Attributes:
        ca: Its own certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def sign(self, name: str, *hosts: str, begins_s: float = -3600.0, ends_s: float = 86400.0) -> tuple[Path, Path]:
        """Signs a certificate for hosts, and returns its file and its key's; the same name replaces both.

        Args:
            name: Of the files.
            hosts: Names and addresses; by default those of this machine to itself.
            begins_s: When it begins to be valid, in seconds from now.
            ends_s: When it ceases to be valid, in seconds from now.
        """
        now = datetime.now(UTC)
        begins, ends = now + timedelta(seconds=begins_s), now + timedelta(seconds=ends_s)
        named = hosts or ("localhost", "127.0.0.1")
        signed = self._authority.issue_cert(*named, not_before=begins, not_after=ends)
        cert, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        _replace(key, signed.private_key_pem.bytes())
        _replace(cert, b"".join(part.bytes() for part in signed.cert_chain_pems))
        return cert, key


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
