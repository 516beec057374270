"""The span that a request names as its caller, by W3C Trace Context: what is submitted for the request is below it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

CALLER_SPAN: Final[ContextVar[str | None]] = ContextVar("traceparent", default=None)
"""That of the request that a task works for, also of a task that was started for it; None if it named none."""
# Version, span, and what a later version may say more.
_TRACEPARENT: Final = re.compile("(?!ff)([0-9a-f]{2})(-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(-.*)?")


def traceparent_of(headers: Iterable[tuple[str, str]]) -> str | None:
    """Returns the one valid `traceparent` among headers, as the first version writes it; None if there is none.

    Args:
        headers: Names in lower case, and values.
    """
    values = [value.strip(" \t") for name, value in headers if name == "traceparent"]
    found = _TRACEPARENT.fullmatch(values[0]) if len(values) == 1 else None
    return None if found is None or (found[1] == "00" and found[3]) else f"00{found[2]}"
