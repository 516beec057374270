"""What stays of actions, trajectories and ids that are over: bounded in number and in time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from callsheet.scheduler.core.words.costs import NOTHING, Cost
from callsheet.scheduler.core.words.model import ActionKey, ActionState, TrajectoryEnd
from callsheet.scheduler.core.words.records import MAX_FINISHED, ActionSummary, ClosedAction, ClosedActionsKept

# Closed jobs whose ids are remembered, so that an action is said to be forgotten and not unknown.
MAX_CLOSED_JOBS = 10_000


class Summaries:
    """Summaries of actions of open jobs, and for a while of closed ones; the oldest are forgotten first."""

    def __init__(self, kept: int, kept_s: float) -> None:
        """Starts empty.

        Args:
            kept: Most actions of closed jobs.
            kept_s: Seconds after the close of its job when an action is forgotten.
        """
        self.kept = kept
        self.kept_s = kept_s
        self._of_open: OrderedDict[ActionKey, ActionSummary] = OrderedDict()
        self._of_closed: OrderedDict[ActionKey, ClosedAction] = OrderedDict()
        self._closed_jobs: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._last_number = 0

    def add(self, summary: ActionSummary) -> None:
        """Keeps the summary of an action that has its outcome now."""
        self._of_open[ActionKey(summary.job_id, summary.action_id)] = summary
        if len(self._of_open) > MAX_FINISHED:
            self._of_open.popitem(last=False)

    def forget(self, key: ActionKey) -> None:
        """An action of an open job is not kept any more."""
        self._of_open.pop(key, None)

    def close_job(self, job_id: str, action_ids: Collection[str], now: float, reason: str = "") -> ClosedActionsKept:
        """Notes that a job is closed; returns what the journal should remember of its actions.

        Args:
            job_id: The job.
            action_ids: Of all its actions.
            now: Seconds since the epoch.
            reason: Why, if its client did not ask for it; else empty.
        """
        summaries = self._take(job_id, action_ids)[-self.kept :] if self.kept else []
        kept = []
        for summary in summaries:
            self._last_number += 1
            kept.append(ClosedAction(self._last_number, now, summary, reason))
        for closed in kept:
            self._keep(closed)
        self._note_closed(job_id, now, reason)
        return ClosedActionsKept(tuple(kept), self._forget(now))

    def restore(self, finished: Iterable[ActionSummary], closed: Iterable[ClosedAction], now: float) -> None:
        """Takes over what the journal remembered."""
        for summary in finished:
            self.add(summary)
        for each in closed:
            self._last_number = each.number
            self._keep(each)
        self._forget(now)

    def of_open_job(self, key: ActionKey) -> ActionSummary | None:
        """The summary of an action of an open job."""
        return self._of_open.get(key)

    def of_closed_job(self, key: ActionKey, now: float) -> ClosedAction | None:
        """The summary of an action of a closed job."""
        found = self._of_closed.get(key)
        return found if found is not None and self._is_kept(found, now) else None

    def closed_jobs_with(self, action_id: str, now: float) -> list[str]:
        """Closed jobs that had an action of this id."""
        return [
            key.job_id
            for key, each in self._of_closed.items()
            if key.action_id == action_id and self._is_kept(each, now)
        ]

    def closed_at(self, job_id: str) -> float | None:
        """When a job was closed; None if it was not, or so long ago that its id is forgotten."""
        known = self._closed_jobs.get(job_id)
        return known[0] if known is not None else None

    def reason_of_close(self, job_id: str) -> str:
        """Why a job was closed, if its client did not ask for it and that is remembered; else empty."""
        known = self._closed_jobs.get(job_id)
        return known[1] if known is not None else ""

    def _take(self, job_id: str, action_ids: Collection[str]) -> list[ActionSummary]:
        """The summaries of a job's actions, in the order of their outcomes; they are of an open job no more."""
        if len(action_ids) < len(self._of_open):
            of_job = [key for action_id in action_ids if (key := ActionKey(job_id, action_id)) in self._of_open]
        else:
            of_job = [key for key in self._of_open if key.job_id == job_id]
        return sorted((self._of_open.pop(key) for key in of_job), key=lambda summary: summary.ended_at)

    def _keep(self, closed: ClosedAction) -> None:
        key = ActionKey(closed.summary.job_id, closed.summary.action_id)
        # The action of an earlier job of the same name gives way; the order stays that of the numbers.
        self._of_closed.pop(key, None)
        self._of_closed[key] = closed
        self._note_closed(key.job_id, closed.closed_at, closed.reason)

    def _note_closed(self, job_id: str, closed_at: float, reason: str) -> None:
        self._closed_jobs[job_id] = (closed_at, reason)
        self._closed_jobs.move_to_end(job_id)
        while len(self._closed_jobs) > MAX_CLOSED_JOBS:
            self._closed_jobs.popitem(last=False)

    def _is_kept(self, closed: ClosedAction, now: float) -> bool:
        return closed.closed_at + self.kept_s > now

    def _forget(self, now: float) -> int:
        """Forgets what is too old or too much; returns the number up to which nothing is kept."""
        while self._of_closed:
            oldest = next(iter(self._of_closed.values()))
            if len(self._of_closed) <= self.kept and self._is_kept(oldest, now):
                return oldest.number - 1
            self._of_closed.popitem(last=False)
        return self._last_number


# Closed trajectories, as they are kept for a while and then forgotten.


class ClosedTrajectory(NamedTuple):
    """What stays of a trajectory that was closed; `group_id` is empty if it has none. Its cost may still grow."""

    end: TrajectoryEnd
    reason: str
    policy_version: int
    group_id: str = ""
    cost: Cost = NOTHING


@dataclass(slots=True, eq=False)
class ClosedTogether:
    """Closed trajectories of which nothing is open any more, forgotten together: one, or those with a seat in a group.

    Attributes:
        ended_at: Since when nothing is, in seconds since the epoch; later by what no scheduler ran since.
        group_id: The group that is forgotten with them; else empty.
        size: Bytes of what is kept of them.
        reopened: The group has another member since, so that these are open again.
    """

    ended_at: float
    trajectory_ids: tuple[str, ...]
    group_id: str
    size: int
    reopened: bool = False


# What an open job has forgotten, and of which nothing is kept but that it was: 32 bytes each.
#
# An entry is a digest of the id of an action, a trajectory or a group, a digest of what was asked for, and a byte
# for how it ended. What comes again is thus told from what is new, and from what is not the same, for as long as
# the job is open.

ENTRY_BYTES: Final = 32
_ID_BYTES: Final = 16
_BODY_BYTES: Final = 15
# An entry is found by a search through the entries of its shard: some kilobytes where a job forgot a million actions.
_SHARDS: Final = 4096
# The journal has these numbers, and those of trajectories from 16 on.
_STATES: Final = (ActionState.SUCCEEDED, ActionState.FAILED, ActionState.CANCELLED, ActionState.EXPIRED)
_ENDS: Final = (TrajectoryEnd.COMPLETED, TrajectoryEnd.ABANDONED, TrajectoryEnd.LOST)
_FIRST_END: Final = 16
_GROUP: Final = 32
# So that an action, a trajectory and a group of one id have different digests; an action's has nothing added.
_TRAJECTORIES: Final = b"trajectory"
_GROUPS: Final = b"group"


class Forgotten(NamedTuple):
    """What is known of a forgotten action: how it ended, and whether its body was this one."""

    state: ActionState
    same_body: bool


class ForgottenTrajectory(NamedTuple):
    """What is known of a forgotten trajectory: how it ended, and whether its specification was this one."""

    end: TrajectoryEnd
    same_spec: bool


class ForgottenWork:
    """The entries of one job, in bytes side by side: an object for each would take five times as much."""

    def __init__(self) -> None:
        self._shards: dict[int, bytearray] = {}
        self._actions = 0

    def __len__(self) -> int:
        """How many actions are forgotten."""
        return self._actions

    def __contains__(self, action_id: str) -> bool:
        """Whether there was an action of this id."""
        return self.recall(action_id, b"") is not None

    def add(self, entries: bytes) -> None:
        """Adds entries, one after the other."""
        for entry in _split(entries):
            self._shards.setdefault(_shard_of(entry), bytearray()).extend(entry)
            self._actions += entry[-1] < _FIRST_END

    def recall(self, action_id: str, body_hash: bytes) -> Forgotten | None:
        """What is known of an action; None if none of this id was forgotten."""
        found = self._find(_digest_of_id(action_id), _digest_of_body(body_hash))
        return Forgotten(_STATES[found[0]], found[1]) if found is not None else None

    def recall_trajectory(self, trajectory_id: str, spec: bytes = b"") -> ForgottenTrajectory | None:
        """What is known of a trajectory; None if none of this id was forgotten."""
        found = self._find(_digest_of_id(trajectory_id, _TRAJECTORIES), _digest_of_body(spec))
        return ForgottenTrajectory(_ENDS[found[0] - _FIRST_END], found[1]) if found is not None else None

    def has_group(self, group_id: str) -> bool:
        """Whether there was a group of this id, and none of its trajectories is kept."""
        return self._find(_digest_of_id(group_id, _GROUPS), b"") is not None

    def _find(self, digest: bytes, body: bytes) -> tuple[int, bool] | None:
        """The last byte of an entry, and whether its second digest is this one."""
        shard = self._shards.get(_shard_of(digest), b"")
        at = shard.find(digest)
        while at % ENTRY_BYTES and at >= 0:
            at = shard.find(digest, at + 1)
        if at < 0:
            return None
        return shard[at + ENTRY_BYTES - 1], shard[at + _ID_BYTES : at + ENTRY_BYTES - 1] == body


def entry(action_id: str, body_hash: bytes, state: ActionState) -> bytes:
    """The entry of a finished action."""
    return _digest_of_id(action_id) + _digest_of_body(body_hash) + bytes([_STATES.index(state)])


def trajectory_entry(trajectory_id: str, spec: bytes, end: TrajectoryEnd) -> bytes:
    """The entry of a closed trajectory."""
    ended_as = bytes([_FIRST_END + _ENDS.index(end)])
    return _digest_of_id(trajectory_id, _TRAJECTORIES) + _digest_of_body(spec) + ended_as


def group_entry(group_id: str) -> bytes:
    """The entry of a group; of what it was only the id counts."""
    return _digest_of_id(group_id, _GROUPS) + bytes(_BODY_BYTES) + bytes([_GROUP])


def states_of(entries: bytes) -> dict[ActionState, int]:
    """How many of the actions of entries ended as what."""
    ends = entries[ENTRY_BYTES - 1 :: ENTRY_BYTES]
    return {state: ends.count(number) for number, state in enumerate(_STATES)}


def completed_of(entries: bytes) -> int:
    """How many of the trajectories of entries were completed."""
    return entries[ENTRY_BYTES - 1 :: ENTRY_BYTES].count(_FIRST_END + _ENDS.index(TrajectoryEnd.COMPLETED))


def _split(entries: bytes) -> Iterator[bytes]:
    return (entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES))


def _shard_of(digest: bytes) -> int:
    return int.from_bytes(digest[:2], "little") % _SHARDS


def _digest_of_id(an_id: str, of: bytes = b"") -> bytes:
    return blake2b(an_id.encode(), digest_size=_ID_BYTES, person=of).digest()


def _digest_of_body(body: bytes) -> bytes:
    return blake2b(body, digest_size=_BODY_BYTES).digest()
