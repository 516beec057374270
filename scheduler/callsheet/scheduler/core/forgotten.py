"""Finished actions of an open job of which nothing is kept but that they were: 32 bytes each.

An entry is a digest of the action's id, one of its body hash, and a byte for how it ended. A resubmit is thus told from
a new action, and from one with another body, for as long as the job is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from callsheet.scheduler.core.model import ActionState

ENTRY_BYTES: Final = 32
_ID_BYTES: Final = 16
_BODY_BYTES: Final = 15
# An entry is found by a search through the entries of its shard: some kilobytes where a job forgot a million actions.
_SHARDS: Final = 4096
# The journal has these numbers.
_STATES: Final = (ActionState.SUCCEEDED, ActionState.FAILED, ActionState.CANCELLED, ActionState.EXPIRED)


class Forgotten(NamedTuple):
    """What is known of a forgotten action: how it ended, and whether its body was this one."""

    state: ActionState
    same_body: bool


class ForgottenActions:
    """The entries of one job, in bytes side by side: an object for each would take five times as much."""

    def __init__(self) -> None:
        self._shards: dict[int, bytearray] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many actions are forgotten."""
        return self._count

    def __contains__(self, action_id: str) -> bool:
        """Whether there was an action of this id."""
        return self.recall(action_id, b"") is not None

    def add(self, entries: bytes) -> None:
        """Adds entries of `entry`, one after the other."""
        for entry in _split(entries):
            self._shards.setdefault(_shard_of(entry), bytearray()).extend(entry)
            self._count += 1

    def recall(self, action_id: str, body_hash: bytes) -> Forgotten | None:
        """What is known of an action; None if none of this id was forgotten."""
        if not self._shards:
            return None
        digest = _digest_of_id(action_id)
        shard = self._shards.get(_shard_of(digest), b"")
        at = shard.find(digest)
        while at % ENTRY_BYTES and at >= 0:
            at = shard.find(digest, at + 1)
        if at < 0:
            return None
        body = shard[at + _ID_BYTES : at + ENTRY_BYTES - 1]
        return Forgotten(_STATES[shard[at + ENTRY_BYTES - 1]], body == _digest_of_body(body_hash))


def entry(action_id: str, body_hash: bytes, state: ActionState) -> bytes:
    """The entry of a finished action."""
    return _digest_of_id(action_id) + _digest_of_body(body_hash) + bytes([_STATES.index(state)])


def states_of(entries: bytes) -> dict[ActionState, int]:
    """How many of the actions of entries ended as what."""
    ends = entries[ENTRY_BYTES - 1 :: ENTRY_BYTES]
    return {state: ends.count(number) for number, state in enumerate(_STATES)}


def _split(entries: bytes) -> Iterator[bytes]:
    return (entries[at : at + ENTRY_BYTES] for at in range(0, len(entries), ENTRY_BYTES))


def _shard_of(digest: bytes) -> int:
    return int.from_bytes(digest[:2], "little") % _SHARDS


def _digest_of_id(action_id: str) -> bytes:
    return blake2b(action_id.encode(), digest_size=_ID_BYTES).digest()


def _digest_of_body(body_hash: bytes) -> bytes:
    return blake2b(body_hash, digest_size=_BODY_BYTES).digest()
