"""Compare the time in which a certificate is valid with this machine's clock. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"

# The validity of X.509 in DER: a sequence of two times, each with two digits of its year or with four.
_TIME = rb"(?:\x17\x0d(\d{12})|\x18\x0f(\d{14}))Z"

_VALIDITY = re.compile(rb"\x30." + _TIME + _TIME, re.DOTALL)

_FORMAT = "%Y-%m-%d %H:%M:%S UTC"


def clock_text(now: datetime) -> str:
    """Returns a time as messages tell it."""
    return now.astimezone(UTC).strftime(_FORMAT)


def why_not_valid(pem: bytes, now: datetime) -> str | None:
    """Returns why the first certificate is not valid at a time; None if it is, or if its validity cannot be read."""
    try:
        block = pem.partition(_BEGIN)[2].partition(_END)[0]
        found = _VALIDITY.search(base64.b64decode(block))
        if found is None:
            return None
        begins, ends = _time(found[1], found[2]), _time(found[3], found[4])
    except (binascii.Error, ValueError):
        return None
    if begins <= now <= ends:
        return None
    cure = "set the clock, or wait" if now < begins else "renew it, or set the clock"
    return f"valid from {clock_text(begins)} until {clock_text(ends)}, but the clock says {clock_text(now)}: {cure}"


def _time(short: bytes | None, full: bytes | None) -> datetime:
    digits = full if full is not None else (b"20" if (short or b"") < b"50" else b"19") + (short or b"")
    return datetime.strptime(digits.decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
