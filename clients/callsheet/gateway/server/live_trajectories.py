"""Conversations in memory: read from the database when a trajectory's call comes, given up when it is idle."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import anyio
from callsheet.gateway.chat import ChatReply
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.conversations.turns import Prepared
from callsheet.gateway.server.call_store import CallRow, CallState, CallStore
from callsheet.gateway.server.faults import NoReplyError

_MOST_REMEMBERED_CALLS: Final = 16_384


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call whose action is under way.

    Attributes:
        entry: What is kept of it.
        prepared: Its prompt.
        conversation: Where its turn will be.
        waiters: Requests that wait for it.
        scope: Cancels it.
        given_up: Nobody wants it any more: its action is cancelled.
        ended: Set once `reply` or `fault` is.
    """

    entry: CallEntry
    prepared: Prepared
    conversation: Conversation
    waiters: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    given_up: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)
    reply: ChatReply | None = None
    fault: NoReplyError | None = None


@dataclass(slots=True, eq=False)
class CallEntry:
    """The newest call with some digest; `running` while its action is under way here."""

    row: CallRow
    state: CallState
    running: RunningCall | None = None


class LiveTrajectory:
    """One trajectory, or with an empty id the calls of a job that belong to none.

    Attributes:
        lock: Held while a call is prepared and while it is committed, not while it generates.
        conversation: Its turns.
        calls: The newest call with each digest.
        next_number: Of the next call.
        in_flight: Calls that have not ended.
    """

    def __init__(self, job_id: str, trajectory_id: str, conversation: Conversation) -> None:
        self.job_id = job_id
        self.trajectory_id = trajectory_id
        self.lock = anyio.Lock()
        self.conversation = conversation
        self.calls: OrderedDict[str, CallEntry] = OrderedDict()
        self.next_number = 0
        self.in_flight = 0
        self.users = 0

    def remember(self, entry: CallEntry) -> None:
        """Notes a call as the newest with its digest; calls outside of trajectories are remembered up to a number."""
        self.calls[entry.row.digest] = entry
        self.calls.move_to_end(entry.row.digest)
        self.next_number = max(self.next_number, entry.row.number + 1)
        if not self.trajectory_id and len(self.calls) > _MOST_REMEMBERED_CALLS:
            self.calls.popitem(last=False)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it that the database does not have."""
        return not self.users and not self.in_flight


class LiveTrajectories:
    """The trajectories in memory, the least lately used first.

    Attributes:
        renderer: The model's.
    """

    def __init__(self, store: CallStore, renderer: Renderer, most: int) -> None:
        """Args:
        store: Where call records are.
        renderer: The model's.
        most: Idle ones beyond so many are given up.
        """
        self._store = store
        self.renderer = renderer
        self._most = most
        self._live: OrderedDict[tuple[str, str], LiveTrajectory] = OrderedDict()
        self._loading = anyio.Lock()

    async def get(self, job_id: str, trajectory_id: str) -> LiveTrajectory:
        """Returns a trajectory, with one user more; to be given back by `release`."""
        key = (job_id, trajectory_id)
        if key not in self._live:
            async with self._loading:
                if key not in self._live:
                    self._live[key] = await self._load(job_id, trajectory_id)
        live = self._live[key]
        live.users += 1
        self._live.move_to_end(key)
        return live

    def release(self, live: LiveTrajectory) -> None:
        """Gives a trajectory back."""
        live.users -= 1
        for key in [key for key, each in self._live.items() if each.is_idle][: max(0, len(self._live) - self._most)]:
            del self._live[key]

    def drop(self, job_id: str, trajectory_id: str) -> None:
        """Forgets a trajectory that is kept no longer."""
        self._live.pop((job_id, trajectory_id), None)

    def new_conversation(self) -> Conversation:
        """Returns a conversation without turns."""
        return Conversation(self.renderer)

    async def _load(self, job_id: str, trajectory_id: str) -> LiveTrajectory:
        kept = await self._store.load(job_id, trajectory_id)
        conversation = Conversation.restore(self.renderer, kept.records)
        live = LiveTrajectory(job_id, trajectory_id, conversation)
        for row in kept.calls:
            live.remember(CallEntry(row, row.state))
        return live
