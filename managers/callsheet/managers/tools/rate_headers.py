"""What the headers of an answer say about the limits of its provider. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime

from callsheet.managers.tools.quotas import ToldLimits

LONGEST_BLOCK_S = 3600.0
TOO_MANY = 429
_DEFAULT_BLOCK_S = 1.0
_FAILED = 400
_LATER_THAN_SECONDS = 1e9  # Whatever is larger is a time, and no duration.
_REQUESTS = (
    "x-ratelimit-remaining-requests",
    "anthropic-ratelimit-requests-remaining",
    "x-ratelimit-remaining",
    "ratelimit-remaining",
)
_TOKENS = ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining")
# Of windows. Buckets tell when they are full again, which nobody has to wait for.
_RESETS = (("x-ratelimit-remaining", "x-ratelimit-reset"), ("ratelimit-remaining", "ratelimit-reset"))


def told_limits(status: int, headers: Mapping[str, str], now: float) -> ToldLimits:
    """Returns what an answer says.

    Args:
        status: Its HTTP status.
        headers: Its headers, found in any case of their names.
        now: Seconds since the epoch.
    """
    blocks = [_wait_s(headers.get(reset), now) for left, reset in _RESETS if _whole(headers.get(left)) == 0]
    if status >= _FAILED:
        blocks.append(_wait_s(headers.get("retry-after"), now))
    if status == TOO_MANY and not any(blocks):
        blocks.append(_DEFAULT_BLOCK_S)
    return ToldLimits(max(blocks, default=0.0), _least(headers, _REQUESTS), _least(headers, _TOKENS))


def _least(headers: Mapping[str, str], names: Iterable[str]) -> int | None:
    return min((left for name in names if (left := _whole(headers.get(name))) is not None), default=None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _wait_s(text: str | None, now: float) -> float:
    """Seconds, a time since the epoch or an HTTP date; 0 for anything else."""
    if text is None:
        return 0.0
    try:
        number = float(text)
    except ValueError:
        try:
            number = parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    if not math.isfinite(number):
        return 0.0
    return min(max(number - now if number > _LATER_THAN_SECONDS else number, 0.0), LONGEST_BLOCK_S)
