"""Reads the limits of a provider from the headers of its answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime

from callsheet.managers.tools.answers import FAILED, TOO_MANY
from callsheet.managers.tools.quotas import ToldLimits

LONGEST_BLOCK_S = 3600.0

_DEFAULT_BLOCK_S = 1.0

_MOST_DIGITS = 15

_REQUESTS = (
    "x-ratelimit-remaining-requests",
    "anthropic-ratelimit-requests-remaining",
    "x-ratelimit-remaining",
    "ratelimit-remaining",
)

_TOKENS = ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining")

# Of windows. Buckets tell when they are full again, which nobody has to wait for.
_RESETS = (("x-ratelimit-remaining", "x-ratelimit-reset"), ("ratelimit-remaining", "ratelimit-reset"))

# Larger numbers are times since the epoch, in seconds, or in a smaller unit if they are larger still.
_LONGEST_DURATION, _LATEST_SECONDS = 1e9, 1e12


def told_limits(status: int, headers: Mapping[str, str], now: float) -> ToldLimits:
    """Returns what an answer says.

    Args:
        status: Its HTTP status.
        headers: Its headers, found in any case of their names.
        now: Seconds since the epoch.
    """
    # Times are by the clock of its server.
    now = _date(headers.get("date", "")) or now
    spent = [reset for left, reset in _RESETS if _whole(headers, left) == 0]
    blocked_s = max((_wait_s(headers.get(reset, ""), now, LONGEST_BLOCK_S) for reset in spent), default=0.0)
    if status >= FAILED:
        # HTTP itself says that Retry-After is in seconds, however many.
        after_ms, after = headers.get("retry-after-ms"), headers.get("retry-after", "")
        blocked_s = _wait_s(f"{after_ms}ms" if after_ms else after, now) or blocked_s
    if status == TOO_MANY:
        blocked_s = blocked_s or _DEFAULT_BLOCK_S
    return ToldLimits(min(blocked_s, LONGEST_BLOCK_S), _least(headers, _REQUESTS), _least(headers, _TOKENS))


def _least(headers: Mapping[str, str], names: Iterable[str]) -> int | None:
    return min((left for name in names if (left := _whole(headers, name)) is not None), default=None)


def _whole(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name, "")
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal() else None


def _wait_s(text: str, now: float, longest_s: float = math.inf) -> float:
    """Reads a wait; 0 for what is none. A number without a unit beyond `longest_s` is taken for milliseconds."""
    told = text.strip().lower()
    unit = next((each for each in ("ms", "s") if told.endswith(each)), "")
    try:
        number = float(told.removesuffix(unit))
    except ValueError:
        number, unit = _date(text), "s"
    if not math.isfinite(number) or number <= 0:
        return 0.0
    if number > _LONGEST_DURATION:
        while number > _LATEST_SECONDS:
            number /= 1000
        return max(number - now, 0.0)
    return number / 1000 if unit == "ms" or (not unit and number > longest_s) else number


def _date(text: str) -> float:
    """Reads an HTTP date, as seconds since the epoch; 0 for what is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0
