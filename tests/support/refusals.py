"""Refusals of requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

PASSING = (RefusalCode.RESOURCE_EXHAUSTED, RefusalCode.UNAVAILABLE)


def refusal(
    ask: Callable[[], object], code: RefusalCode = RefusalCode.INVALID_ARGUMENT, match: str | None = None
) -> RefusedError:
    """Returns the refusal of a request; only one that may be repeated later names a time for that."""
    with pytest.raises(RefusedError, match=match) as refused:
        ask()
    assert refused.value.code is code
    assert code in PASSING or refused.value.retry_after is None
    return refused.value
