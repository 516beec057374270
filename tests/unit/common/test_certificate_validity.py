"""Certificates that are not valid now are told with their validity and this machine's clock."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from callsheet.credentials.channel import Credentials
from callsheet.credentials.validity import why_not_valid
from callsheet.scheduler.service.rpc.tls import CertificateFiles
from structlog.testing import capture_logs

from tests.support.certificates import Authority

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("begins", "ends", "problem"),
    [
        (NOW - HOUR, NOW + HOUR, None),
        (NOW, NOW, None),
        (
            NOW + HOUR / 2,
            NOW + HOUR,
            "valid from 2026-11-27 12:30:00 UTC until 2026-11-27 13:00:00 UTC, "
            "but the clock says 2026-11-27 12:00:00 UTC: set the clock, or wait",
        ),
        (
            datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC),
            NOW - HOUR,
            "valid from 1999-12-31 23:59:59 UTC until 2026-11-27 11:00:00 UTC, "
            "but the clock says 2026-11-27 12:00:00 UTC: renew it, or set the clock",
        ),
        # From 2050 on times have four digits of their year.
        (NOW, datetime(2051, 1, 1, tzinfo=UTC), None),
        (
            datetime(2050, 1, 1, tzinfo=UTC),
            datetime(2051, 1, 1, tzinfo=UTC),
            "valid from 2050-01-01 00:00:00 UTC until 2051-01-01 00:00:00 UTC, "
            "but the clock says 2026-11-27 12:00:00 UTC: set the clock, or wait",
        ),
    ],
)
@pytest.mark.parametrize("key_type", list(trustme.KeyType))
def test_validity_is_read_of_any_certificate(
    begins: datetime, ends: datetime, problem: str | None, key_type: trustme.KeyType
) -> None:
    signed = trustme.CA().issue_cert("host", not_before=begins, not_after=ends, key_type=key_type)
    chain = b"".join(part.bytes() for part in signed.cert_chain_pems)
    assert why_not_valid(b"a comment\n" + chain, NOW) == problem


@pytest.mark.parametrize("text", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate_is_left_to_others(text: bytes) -> None:
    assert why_not_valid(text, NOW) is None


@pytest.mark.anyio
async def test_each_side_says_that_its_own_is_not_valid_now(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("early", begins_s=1800.0)
    with capture_logs() as lines:
        CertificateFiles(cert, key)
    (line,) = [line for line in lines if line["event"] == "certificate_not_valid_now"]
    assert "set the clock" in line["reason"]
    with caplog.at_level(logging.WARNING):
        await Credentials(str(authority.ca), str(cert), str(key)).open_channel("127.0.0.1:1", ()).close()
    assert f"the certificate in {cert} is valid from" in caplog.text
