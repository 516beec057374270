"""Ids that an open job has forgotten: 32 bytes are kept of each.

An entry is a digest of the id of an action, a trajectory or a group, a digest of the request, and a byte for its end.
With it the core tells a repeated request from a new one, and from a different one under the same id, for as long as
the job is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from callsheet.scheduler.core.words.model import ActionState, TrajectoryEnd

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
ENTRY_BYTES: Final = 32


class Forgotten(NamedTuple):
    """Knowledge of a forgotten action: how it ended, and whether its body was this one."""

    state: ActionState
    same_body: bool


class ForgottenTrajectory(NamedTuple):
    """Knowledge of a forgotten trajectory: how it ended, and whether its specification was this one."""

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
        """Returns whether there was an action of this id."""
        return self.recall(action_id, b"") is not None

    def add(self, entries: bytes) -> None:
        """Adds entries, one after the other."""
        for entry in _split(entries):
            self._shards.setdefault(_shard_of(entry), bytearray()).extend(entry)
            self._actions += entry[-1] < _FIRST_END

    def recall(self, action_id: str, body_hash: bytes) -> Forgotten | None:
        """Returns the knowledge of an action; None if no action of this id was forgotten."""
        found = self._find(_digest_of_id(action_id), _digest_of_body(body_hash))
        return Forgotten(_STATES[found[0]], found[1]) if found is not None else None

    def recall_trajectory(self, trajectory_id: str, spec: bytes = b"") -> ForgottenTrajectory | None:
        """Returns the knowledge of a trajectory; None if no trajectory of this id was forgotten."""
        found = self._find(_digest_of_id(trajectory_id, _TRAJECTORIES), _digest_of_body(spec))
        return ForgottenTrajectory(_ENDS[found[0] - _FIRST_END], found[1]) if found is not None else None

    def has_group(self, group_id: str) -> bool:
        """Returns whether there was a group of this id, and none of its trajectories is kept."""
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
