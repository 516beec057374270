"""Whoever lacks a certificate, or has a wrong one, is told what to do about it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from callsheet.cli.output import describe
from callsheet.client.errors import ConnectionLostError
from callsheet.credentials.channel import Credentials, explained

_FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7077: "


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Socket closed", "name its authorities in CALLSHEET_TLS_CA"),
        (
            "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: unable to get",
            "not of the authorities in CALLSHEET_TLS_CA",
        ),
        (
            "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            "for other names than the one that was dialled",
        ),
        (
            "SSL_ERROR_SSL: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK",
            f"{datetime.now(UTC):%Y-%m-%d} ",
        ),
        (
            "SSL_ERROR_SSL: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK",
            "set the clock of this machine",
        ),
        (
            "SSL_ERROR_SSL: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "renew it, or set the clock",
        ),
        ("Socket closed", "valid by its clock (this one says 2"),
        ("Failed to create security handshaker.", "certificates and a key that fit, as PEM"),
        ("Tls handshake failed: SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: OK", "does not use TLS"),
    ],
)
def test_a_failed_connection_is_explained(said: str, advice: str) -> None:
    told = explained(_FAILED + said)
    assert told.startswith(_FAILED + said)
    assert advice in told
    # Something has answered there.
    assert describe(ConnectionLostError(f"UNAVAILABLE: {told}")).endswith(told)


def test_other_failures_stay_as_they_are() -> None:
    refused = _FAILED + "Failed to connect to remote host: Connection refused"
    assert explained(refused) == refused
    assert describe(ConnectionLostError(f"UNAVAILABLE: {refused}")).endswith("; is `callsheet up` running?")


@pytest.mark.parametrize("token", ["two words", "two\nlines", "t\u00f6ken", "\x1b"])
def test_what_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match=r"^token: holds no token") as caught:
        Credentials(token=token)
    assert token not in str(caught.value)
