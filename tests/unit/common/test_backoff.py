"""Exponential backoff with jitter, which clients, managers, scheduler and supervision share."""

from __future__ import annotations

import pytest
from callsheet.timing.backoff import backoff_s


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 0.1), (2, 0.2), (4, 0.8), (10, 5.0), (100_000, 5.0)])
def test_backoff_doubles_to_its_limit_with_jitter(failures: int, ceiling: float) -> None:
    assert backoff_s(failures, 0.1, 5.0) == pytest.approx(ceiling)
    assert backoff_s(failures, 0.1, 5.0, random=0.0) == pytest.approx(ceiling / 2)
    assert backoff_s(failures, 0.1, 5.0, random=0.5) == pytest.approx(ceiling * 0.75)
