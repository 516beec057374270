"""Conversations in memory: read from the database when a trajectory's call comes, given up when it is idle."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import anyio
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.server.call_store import CallRow, CallStore, JobLife
from callsheet.gateway.server.retries import CallEntry, CallState, RememberedCalls

_MOST_REMEMBERED: Final = 4096
_MOST_REMEMBERED_OUTSIDE: Final = 16_384
_MEMORY_OF_A_BYTE: Final = 4
"""Bytes in memory for one of a record: numbers are objects there."""


class LiveTrajectory:
    """One trajectory, or with an empty id the calls of a job that belong to none.

    Attributes:
        lock: Held while a call is prepared and while it is committed, not while it generates.
        conversation: Its turns.
        calls: What may be asked for again.
        next_number: Of the next call.
        in_flight: Calls that have not ended.
        memory_bytes: About what its turns take.
    """

    def __init__(self, job: JobLife, trajectory_id: str, conversation: Conversation) -> None:
        self.job = job
        self.trajectory_id = trajectory_id
        self.lock = anyio.Lock(fast_acquire=True)
        self.conversation = conversation
        self.calls = RememberedCalls(_MOST_REMEMBERED if trajectory_id else _MOST_REMEMBERED_OUTSIDE)
        self.next_number = 0
        self.in_flight = 0
        self.users = 0
        self.memory_bytes = 0

    def take_number(self) -> int:
        """Returns the number of the next call. It is not given again, even if it is not known whether it was kept."""
        self.next_number += 1
        return self.next_number - 1

    def restore(self, row: CallRow, now: float) -> None:
        """Notes a call that is kept."""
        self.next_number = max(self.next_number, row.number + 1)
        state = CallState.BEGUN if row.turn is None else CallState.DONE
        self.calls.add(CallEntry(row.digest, state, row, ended_at=now))

    def keeps(self, record_bytes: int) -> None:
        """Notes the size of a turn's record."""
        self.memory_bytes += _MEMORY_OF_A_BYTE * record_bytes

    @property
    def is_idle(self) -> bool:
        """Returns whether the database has everything that would be lost with the trajectory."""
        return not self.users and not self.in_flight


class LiveTrajectories:
    """The trajectories in memory, the least lately used first.

    Attributes:
        renderer: The model's.
    """

    def __init__(self, store: CallStore, renderer: Renderer, most: int, most_bytes: int) -> None:
        """Args:
        store: Where call records are.
        renderer: The model's.
        most: Idle ones beyond so many are given up.
        most_bytes: The same by the memory of all.
        """
        self._store = store
        self.renderer = renderer
        self._most = most
        self._most_bytes = most_bytes
        self._live: OrderedDict[tuple[JobLife, str], LiveTrajectory] = OrderedDict()
        self._loading = anyio.Lock()

    async def get(self, job: JobLife, trajectory_id: str) -> LiveTrajectory:
        """Returns a trajectory, with one user more; to be given back by `release`."""
        key = (job, trajectory_id)
        if key not in self._live:
            async with self._loading:
                if key not in self._live:
                    self._live[key] = await self._load(job, trajectory_id)
        live = self._live[key]
        live.users += 1
        self._live.move_to_end(key)
        return live

    def release(self, live: LiveTrajectory) -> None:
        """Gives a trajectory back."""
        live.users -= 1
        count, held = len(self._live), sum(each.memory_bytes for each in self._live.values())
        if count <= self._most and held <= self._most_bytes:
            return
        for key, each in [(key, each) for key, each in self._live.items() if each.is_idle]:
            if count <= self._most and held <= self._most_bytes:
                return
            del self._live[key]
            count, held = count - 1, held - each.memory_bytes

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._live)

    def is_busy(self, job: JobLife, trajectory_id: str) -> bool:
        """Returns whether a call of a trajectory is under way, or about to be."""
        live = self._live.get((job, trajectory_id))
        return live is not None and not live.is_idle

    async def forget(self, job: JobLife, trajectory_id: str, closed_by: float) -> bool:
        """Removes a trajectory that was seen closed by some time from memory and database; returns whether it did.

        One with a call under way stays, and so does one that has had a call since.
        """
        # Nobody reads it from the database meanwhile.
        async with self._loading:
            if self.is_busy(job, trajectory_id):
                return False
            self._live.pop((job, trajectory_id), None)
            return await self._store.forget(job, trajectory_id, closed_by)

    def new_conversation(self) -> Conversation:
        """Returns a conversation without turns."""
        return Conversation(self.renderer)

    async def _load(self, job: JobLife, trajectory_id: str) -> LiveTrajectory:
        kept = await self._store.load(job, trajectory_id)
        live = LiveTrajectory(job, trajectory_id, Conversation.restore(self.renderer, kept.records))
        live.keeps(kept.record_bytes)
        now = time.time()
        live.calls.forgets = not kept.is_whole
        for row in kept.calls:
            live.restore(row, now)
        return live
