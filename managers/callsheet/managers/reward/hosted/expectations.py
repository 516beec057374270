"""Learns about models while they serve: how long a restore takes, and how often each is asked for. Pure."""

from __future__ import annotations

import math

# Of one restore against all before it.
_NEWEST = 0.3
# Bytes per second until a restore was measured.
_FIRST_GUESS = 1e9
_HALF_LIFE_S = 60.0


class RestoreTimes:
    """Seconds that restores take; of a model that was never restored by its size and the pace of all others."""

    def __init__(self) -> None:
        """Starts with a guess."""
        self._seconds: dict[str, float] = {}
        self._bytes_per_s = _FIRST_GUESS
        self._measured = False

    def learn(self, model: str, size: int, seconds: float) -> None:
        """Takes a measured restore of so many bytes."""
        before = self._seconds.get(model)
        self._seconds[model] = seconds if before is None else before + _NEWEST * (seconds - before)
        pace = size / max(seconds, 1e-9)
        self._bytes_per_s = self._bytes_per_s + _NEWEST * (pace - self._bytes_per_s) if self._measured else pace
        self._measured = True

    def expected_s(self, model: str, size: int) -> float:
        """Seconds that the next restore of a model will take."""
        known = self._seconds.get(model)
        return size / self._bytes_per_s if known is None else known


class ServingPace:
    """Requests that a model serves in each second of its batches."""

    def __init__(self) -> None:
        """Starts without any."""
        self.per_s = 0.0

    def learn(self, requests: int, seconds: float) -> None:
        """Takes a batch."""
        pace = requests / max(seconds, 1e-9)
        self.per_s = pace if not self.per_s else self.per_s + _NEWEST * (pace - self.per_s)


def room_before_restore(max_batch: int, restore_s: float, per_s: float) -> int:
    """Requests that are better sent to a model where it is than to one that has to be restored.

    Args:
        max_batch: Requests of a batch: one that runs and one that waits are always room for.
        restore_s: Seconds of a restore.
        per_s: Requests that the model serves each second.
    """
    return 2 * max_batch + int(restore_s * per_s)


class ArrivalRate:
    """Requests per second, those of long ago forgotten by half every minute."""

    def __init__(self) -> None:
        """Starts without any."""
        self._count = 0.0
        self._at = -math.inf

    def add(self, now: float) -> None:
        """A request arrived."""
        self._count = self._decayed(now) + 1.0
        self._at = now

    def per_s(self, now: float) -> float:
        """Returns the requests per second that are expected from now on."""
        return self._decayed(now) * math.log(2.0) / _HALF_LIFE_S

    def _decayed(self, now: float) -> float:
        return self._count * 0.5 ** ((now - self._at) / _HALF_LIFE_S) if self._count else 0.0
