"""Looks at a server add up to its state: alive or dead, paused or not, another start, and the load of others. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from callsheet.managers.inference.driver import (
    OthersLoad,
)

STALE_S = 5.0
"""How old what a server tells may be."""
WORTH_TELLING = 0.125
"""Part by which tokens change before that is told anew; they change with every step."""
SLOW_LOOKS = 3
"""Looks in a row without an answer in time after which a server counts as dead."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of one look at a server.

    Attributes:
        answered: Whether the server answered.
        refused: If it did not, whether nothing listens there. Otherwise it was only too slow.
        problem: Why it does not serve; empty if it does, or is only paused.
        paused: Whether it holds requests back.
        identity: A text that differs between starts of the server; empty if nothing does.
        version: The server's name for its weights; None if it reports none.
        load: The server's whole load; None if it reports none.
    """

    answered: bool = True
    refused: bool = False
    problem: str = ""
    paused: bool = False
    identity: str = ""
    version: str | None = None
    load: OthersLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Beliefs about a server.

    Attributes:
        alive: Whether it serves.
        problem: The reason why it does not serve.
        paused: Whether it holds requests back.
        identity: The identity in the newest look.
        version: The name of its weights.
        losses: How often it may have lost its weights.
        unanswered: Looks without an answer since the last one with an answer.
    """

    alive: bool = True
    problem: str = ""
    paused: bool = False
    identity: str = ""
    version: str | None = None
    losses: int = 0
    unanswered: int = 0


def after_look(state: ServerState, look: Look) -> ServerState:
    """Returns what is believed after a look.

    A server that does not listen is dead at once, one that is slow only after several looks: a busy machine is no loss.
    Weights may be lost where it is another start of the server, where it was dead and nothing tells its starts apart,
    and where they are called otherwise than this driver has called them.
    """
    if not look.answered:
        unanswered = state.unanswered + 1
        if look.refused or unanswered >= SLOW_LOOKS or not state.alive:
            return replace(state, alive=False, problem=look.problem, unanswered=unanswered)
        return replace(state, unanswered=unanswered)
    lost = (
        look.identity != state.identity
        or look.version != state.version
        or (not look.identity and state.unanswered > 0 and not state.alive)
    )
    return ServerState(
        alive=not look.problem,
        problem=look.problem,
        paused=look.paused,
        identity=look.identity,
        version=look.version,
        losses=state.losses + lost,
    )
