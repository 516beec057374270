"""Refusals of what comes over the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError


def refusal(decode: Callable[[], object], code: RefusalCode = RefusalCode.INVALID_ARGUMENT) -> RefusedError:
    """What a decoder says to a message that breaks a rule."""
    with pytest.raises(RefusedError) as refused:
        decode()
    assert refused.value.code is code
    assert refused.value.retry_after is None
    return refused.value
