"""How fast sandboxes are made after failures: pure, time and the random number are parameters."""

from __future__ import annotations

from callsheet.timing.backoff import backoff_s


class CreationPace:
    """Slows down while making sandboxes fails, and is back at full speed after the first that works.

    The machine that fails is often the one that is overloaded; each further try would make it worse. After a failure
    all wait; then one tries, and the others follow if it works.

    Attributes:
        failures: In a row.
    """

    def __init__(self, initial_s: float, longest_s: float) -> None:
        """Args:
        initial_s: Pause after a first failure, in seconds; it doubles with each further one.
        longest_s: Longest pause.
        """
        self._initial_s = initial_s
        self._longest_s = longest_s
        self._open_at = 0.0
        self.failures = 0

    @property
    def is_slow(self) -> bool:
        """Returns whether only one is to try at a time."""
        return self.failures > 0

    def wait_s(self, now: float) -> float:
        """Seconds to wait before the next try."""
        return max(0.0, self._open_at - now)

    def failed(self, now: float, random: float) -> None:
        """Notes a failure; `random` in [0, 1) spreads the tries of machines that failed together.

        Tries that were begun together count once: one that fails during a pause was begun before it.
        """
        if now < self._open_at:
            return
        self.failures += 1
        self._open_at = now + backoff_s(self.failures, self._initial_s, self._longest_s, random=random)

    def worked(self) -> None:
        """Notes a success."""
        self.failures = 0
        self._open_at = 0.0
