"""Refused calls in the log: a bounded number of lines for each peer, however many calls it makes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from callsheet.scheduler.core.words.refusals import RefusalCode

_log = structlog.get_logger(__name__)

INTERVAL_S: Final = 10.0
"""Seconds after a line about a peer in which its refusals are only counted; the next line has their number."""

MAX_PEERS_TOLD: Final = 1_000
"""The most peers whose last line is remembered."""


@dataclass(slots=True)
class _Told:
    at: float
    not_told: int = 0


class RefusalLog:
    """Warns of refusals. Not for several threads."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        count: Callable[[RefusalCode], None] = lambda code: None,
    ) -> None:
        """Remembers nothing yet.

        Args:
            now: A clock that never goes back.
            count: Told the code of each refused rpc.
        """
        self.count = count
        self._now = now
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def warn(self, event: str, peer: str, **facts: str) -> None:
        """Logs a refusal, with how many there were that were only counted; or counts it.

        Args:
            event: Of the log line.
            peer: Who was refused, as gRPC names it.
            facts: Of the log line.
        """
        key, now = (event, address_of(peer)), self._now()
        told = self._told.get(key)
        if told is not None and now - told.at < INTERVAL_S:
            told.not_told += 1
            return
        more = {"not_told": told.not_told} if told is not None and told.not_told else {}
        _log.warning(event, peer=peer, **facts, **more)
        self._told[key] = _Told(now)
        self._told.move_to_end(key)
        if len(self._told) > MAX_PEERS_TOLD:
            self._told.popitem(last=False)


def address_of(peer: str) -> str:
    """The address of a peer as gRPC names it, without the port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
