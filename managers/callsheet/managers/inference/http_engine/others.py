"""What others have on a server, from what it tells of its load and what this driver has sent. No I/O and no clock.

Servers tell their load late: SGLang's is seconds old, and stands still under a pause. So from what is told the most is
subtracted that the driver itself had there in the last seconds. That may hide others for a while after a burst of own
requests, but never takes own ones for others'. Under a pause what was found last stays.
"""

from __future__ import annotations

from collections import deque

from callsheet.managers.inference.driver import OthersLoad

STALE_S = 5.0
"""How old what a server tells may be."""
WORTH_TELLING = 0.125
"""Part by which tokens change before that is told anew; they change with every step."""


class OthersBooks:
    """The driver's own load of the last seconds, and others' by what was told last."""

    def __init__(self) -> None:
        """Starts with nothing known."""
        self.found = OthersLoad()
        self._own: deque[tuple[float, int, int]] = deque()

    def own(self, sequences: int, kv_tokens: int, now: float) -> None:
        """Takes note of what the driver has on the server, whenever that grows and at each look."""
        while self._own and self._own[0][0] < now - STALE_S:
            self._own.popleft()
        self._own.append((now, sequences, kv_tokens))

    def told(self, load: OthersLoad | None, sequences: int, kv_tokens: int, now: float) -> bool:
        """Takes what the server tells of all its load, None where it tells nothing; returns whether others' changed."""
        self.own(sequences, kv_tokens, now)
        if load is None:
            return False
        most_sequences = max(each for _, each, _ in self._own)
        most_tokens = max(each for _, _, each in self._own)
        sequences = max(load.sequences - most_sequences, 0)
        # Tokens without a sequence are what own ones left behind.
        found = OthersLoad(sequences, max(load.kv_tokens - most_tokens, 0) if sequences else 0)
        grown = abs(found.kv_tokens - self.found.kv_tokens) > max(found.kv_tokens, self.found.kv_tokens) * WORTH_TELLING
        if found.sequences == self.found.sequences and not grown:
            return False
        self.found = found
        return True

    def forget(self) -> None:
        """The server is gone, and with it what others had there."""
        self.found = OthersLoad()
