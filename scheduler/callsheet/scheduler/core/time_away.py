"""The times in which no scheduler ran: clocks that clients set by a submit stand still meanwhile.

Times are those of the schedulers' own clocks. They are set by the wall clock at each start and never step while one
runs. A wall clock that was set between two of them makes the time away longer or shorter: forwards it is longer by as
much, so that no deadline strikes early; backwards it is none.
"""

from __future__ import annotations

from collections.abc import Sequence


class TimeAway:
    """Spans in seconds since the epoch, each as (since, until)."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._spans = spans

    def after(self, time: float) -> float:
        """How many seconds of the spans came after a time."""
        return sum(max(until - max(since, time), 0.0) for since, until in self._spans)
