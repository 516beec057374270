"""Decides which call a retry repeats. Decisions are pure: headers and times are parameters.

Clients mark a repeated request by how often they have sent it (`x-stainless-retry-count`), and do not name its call.
Sub-agents send equal bodies at the same time. So each call, and each request that was refused before it became one, is
repeated by one client at most: a request that repeats it raises its number of retries, and only a higher one fits it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import anyio
from callsheet.client import Generate
from callsheet.gateway.chat import RETRY_HEADER, ChatReply
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.turns import Prepared
from callsheet.gateway.server.call_store import CallRow
from callsheet.gateway.server.faults import NoReplyError

KEY_HEADER: Final = "idempotency-key"
ANSWERED_S: Final = 900.0
"""How long an answered call may be repeated: clients wait ten minutes for an answer, then one more to ask again."""
REFUSED_S: Final = 120.0
"""The same of a request without an answer: clients wait a minute at most when they are told to."""
_MOST_DIGITS: Final = 4


class CallState(Enum):
    """How far a call is."""

    BEGUN = auto()
    """Its action was submitted, or is about to be. A call outside of trajectories is no further after a restart."""
    DONE = auto()
    """It has its reply."""
    FAILED = auto()
    """It ended without a reply: a retry is another call."""


@dataclass(frozen=True, slots=True)
class CallMark:
    """Mark by which a request shows its call.

    Attributes:
        digest: Digest of its path, its body and its key, if it has one.
        retries: How often its client has sent it before.
        is_named: Whether it has a key of its own, which names its call exactly.
        size: Size of its body, in bytes.
    """

    digest: str
    retries: int = 0
    is_named: bool = False
    size: int = field(default=0, compare=False)


def mark_of(path: str, body: bytes, headers: Mapping[str, str]) -> CallMark:
    """Returns what a request tells of which call it is."""
    key = headers.get(KEY_HEADER, "")
    digest = hashlib.sha256(path.encode() + b"\n" + body)
    if key:
        digest.update(b"\n" + key.encode("utf-8", "replace"))
    retries = headers.get(RETRY_HEADER, "")
    count = int(retries[:_MOST_DIGITS]) if retries.isdecimal() else 0
    return CallMark(digest.hexdigest(), count, bool(key), len(body))


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call whose action is under way.

    Attributes:
        entry: What is kept of it.
        prepared: Its prompt.
        action: What is generated.
        conversation: Where its turn will be.
        waiters: Requests that wait for it.
        scope: Cancels it.
        given_up: Nobody wants it any more: its action is cancelled.
        has_tokens: Its action has ended well: it is kept, whether anybody waits or not.
        ended: Set once `reply` or `fault` is.
    """

    entry: CallEntry
    prepared: Prepared
    action: Generate
    conversation: Conversation
    waiters: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    given_up: bool = False
    has_tokens: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)
    reply: ChatReply | None = None
    fault: NoReplyError | None = None

    @property
    def is_lost(self) -> bool:
        """Returns whether the call ends without a reply because no request waited for it."""
        return self.given_up and not self.has_tokens

    @property
    def row(self) -> CallRow:
        """The call as it is kept."""
        assert self.entry.row is not None
        return self.entry.row


@dataclass(slots=True, eq=False)
class CallEntry:
    """A call, or a request that was refused before it became one.

    Attributes:
        digest: Of its request.
        state: How far it is.
        row: As it is kept; None of a request that was refused.
        retries: The highest number of retries with which it was asked for.
        answered: Whether a request was answered with its reply. The answer may be lost on its way.
        ended_at: When it ended, or was read from the database, in seconds since 1970; None while it runs.
        running: While its action is under way here.
    """

    digest: str
    state: CallState
    row: CallRow | None = None
    retries: int = 0
    answered: bool = False
    ended_at: float | None = None
    running: RunningCall | None = None

    @property
    def lacks_answer(self) -> bool:
        """Returns whether the call's client is known to have no answer, so that it is the likely one to ask again."""
        return not self.running.waiters if self.running is not None else not self.answered

    def may_be_repeated(self, now: float) -> bool:
        """Returns whether a client may still ask for the call again."""
        if self.running is not None or self.state is CallState.BEGUN or self.ended_at is None:
            return True
        return now - self.ended_at <= (REFUSED_S if self.state is CallState.FAILED else ANSWERED_S)


def repeated(
    entries: Iterable[CallEntry], mark: CallMark, now: float, has_next: Callable[[int], bool]
) -> CallEntry | None:
    """Returns what a request repeats; None if it is a call of its own.

    Args:
        entries: With the request's digest, the oldest first.
        mark: Of the request.
        now: Seconds since 1970.
        has_next: Whether a turn was continued, by its number: its client has its reply then.
    """
    found = tuple(entries)
    if mark.is_named:
        return found[-1] if found else None

    def fits(entry: CallEntry) -> bool:
        turn = None if entry.row is None else entry.row.turn
        is_over = turn is not None and has_next(turn)
        return entry.retries < mark.retries and entry.may_be_repeated(now) and not is_over

    # The highest count is the nearest: a lower one is of another client, or came late. Of those without an answer a
    # call goes before a refused request: what was sampled is not sampled again.
    return max(
        filter(fits, reversed(found)),
        key=lambda entry: (entry.retries, entry.lacks_answer, entry.state is not CallState.FAILED),
        default=None,
    )


class RememberedCalls:
    """The calls of a trajectory by digest. Beyond a number the oldest that has ended is forgotten.

    Args:
        most: How many.

    Attributes:
        forgets: Whether the database has calls that are not here.
    """

    def __init__(self, most: int) -> None:
        self.forgets = False
        self._most = most
        self._all: OrderedDict[CallEntry, None] = OrderedDict()
        self._by_digest: dict[str, list[CallEntry]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def of(self, digest: str) -> tuple[CallEntry, ...]:
        """Those with a digest, the oldest first."""
        return tuple(self._by_digest.get(digest, ()))

    def add(self, entry: CallEntry) -> None:
        """Adds the newest one."""
        self._all[entry] = None
        self._by_digest.setdefault(entry.digest, []).append(entry)
        if len(self._all) > self._most:
            ended = next((each for each in self._all if each.running is None and each is not entry), None)
            if ended is not None:
                self.remove(ended)
                self.forgets = True

    def remove(self, entry: CallEntry) -> None:
        """Forgets one, if it is there."""
        if entry not in self._all:
            return
        del self._all[entry]
        same = self._by_digest[entry.digest]
        same.remove(entry)
        if not same:
            del self._by_digest[entry.digest]
