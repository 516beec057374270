"""Judges which dispatches may run, purely by their fencing tokens."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from callsheet.v1 import manager_service_pb2

ActionId = tuple[str, str]
"""Job id and action id."""


class Token(NamedTuple):
    """A fencing token, ordered by epoch and then by sequence."""

    epoch: int
    sequence: int

    @classmethod
    def of(cls, message: manager_service_pb2.FencingToken) -> Token:
        """Returns the token of a message."""
        return cls(message.epoch, message.sequence)

    def message(self) -> manager_service_pb2.FencingToken:
        """Returns the token as a message."""
        return manager_service_pb2.FencingToken(epoch=self.epoch, sequence=self.sequence)


class DispatchVerdict(Enum):
    """Verdict on a dispatch."""

    RUN = "run"
    REPEATED = "repeated"
    STALE = "stale"


class Fence:
    """Remembers the newest token of each action and the epoch of the scheduler.

    It holds the `capacity` actions that were dispatched last. The epoch alone fences off those it has forgotten: within
    an epoch a stream delivers in order, so an older token cannot follow a newer one that far behind.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._epoch = 0
        self._newest: dict[ActionId, Token] = {}

    def enter_epoch(self, epoch: int) -> None:
        """Notes the epoch that the scheduler answered a registration with."""
        self._epoch = epoch

    def judge(self, action: ActionId, token: Token) -> DispatchVerdict:
        """Returns whether a dispatch may run, and remembers its token if so."""
        newest = self._newest.get(action)
        if newest is not None and token <= newest:
            return DispatchVerdict.REPEATED if token == newest else DispatchVerdict.STALE
        if token.epoch < self._epoch:
            return DispatchVerdict.STALE
        self._remember(action, token)
        return DispatchVerdict.RUN

    def _remember(self, action: ActionId, token: Token) -> None:
        # Taking the key out first puts it last, so the first key is always the one dispatched longest ago.
        if self._newest.pop(action, None) is None and len(self._newest) >= self._capacity:
            del self._newest[next(iter(self._newest))]
        self._newest[action] = token
