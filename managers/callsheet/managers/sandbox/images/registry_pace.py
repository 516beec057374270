"""When a registry may be asked next: pure, time and the random number are parameters."""

from __future__ import annotations

from callsheet.timing.backoff import backoff_s


class RegistryPace:
    """Spreads the questions to one registry, and leaves it alone after it said that it was asked too often."""

    def __init__(self, every_s: float, first_pause_s: float, longest_pause_s: float) -> None:
        """Args:
        every_s: Between the beginnings of two questions.
        first_pause_s: After the first refusal, unless the registry tells how long; doubled with each further one.
        longest_pause_s: Up to this.
        """
        self._every_s = every_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._open_at = 0.0
        self._closed_until = 0.0
        self._refusals = 0

    def pause_s(self, now: float) -> float:
        """Seconds for which the registry wants to be left alone."""
        return max(0.0, self._closed_until - now)

    def turn_s(self, now: float) -> float:
        """Seconds until it would be the turn of one more question."""
        return max(0.0, self._open_at - now, self._closed_until - now)

    def take_turn(self, now: float) -> float:
        """Takes the next place in the line; returns the seconds until it is that question's turn."""
        seconds = self.turn_s(now)
        self._open_at = now + seconds + self._every_s
        return seconds

    def refused(self, now: float, random: float, retry_after_s: float | None = None) -> None:
        """Notes that the registry was asked too often; `random` in [0, 1) spreads the nodes that were told so together.

        Args:
            now: The time.
            random: From 0 to 1.
            retry_after_s: What the registry told; None if it told nothing.
        """
        if now < self._closed_until:
            # Of questions that were asked together each is refused, and it counts once.
            return
        self._refusals += 1
        pause = backoff_s(self._refusals, self._first_pause_s, self._longest_pause_s, random=random)
        self._closed_until = now + max(pause, retry_after_s or 0.0)

    def answered(self) -> None:
        """Notes an answer of another kind."""
        self._refusals = 0
