"""Open items of a session: items without a result, actions without an outcome, and jobs that it holds.

Pure bookkeeping, no I/O and no clock. An item is `open` from the moment it is added until it is settled; a submit is
settled by its outcome (or refusal), any other item by its result. Items wait to be written in the order of their
sequence numbers. When the stream breaks, every open item waits again, in that order: that is the whole resume, since
every item of the contract is idempotent and a submit that is known attaches.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from callsheet.client.errors import CallsheetError, RefusalCode, RefusedError
from callsheet.v1 import client_service_pb2

OutcomeT = TypeVar("OutcomeT")
OutcomeT_contra = TypeVar("OutcomeT_contra", contravariant=True)
ActionKey: TypeAlias = tuple[str, str]
"""Job id and action id."""
MAX_BATCH_ITEMS = 1024
MAX_BATCH_BYTES = 1024 * 1024
logger = logging.getLogger("callsheet.client")


class Waiter(Protocol[OutcomeT_contra]):
    """The receiver of an item's result."""

    def accept(self) -> None:
        """Called at most once: the scheduler has made the item durable."""

    def settle(self, ended: OutcomeT_contra | CallsheetError | None) -> None:
        """Called at most once: the outcome of a submit, the reply to another item (or None), or its error."""


@dataclass(slots=True, eq=False)
class Item(Generic[OutcomeT]):
    """One open item.

    Attributes:
        sequence: Its number, unique in the session and kept when it is sent again.
        message: A serialized ClientSessionRequest with only this item.
        waiter: The receiver of the result.
        key: The action, for a submit.
        replay_success: Codes of refusals that mean success once the item was sent before: the first try did it.
        times_sent: How often it was put into a batch.
        accepted: Whether a result OK has come.
        early: An outcome that came before the result.
        patience_s: Seconds for which the item may be sent again if the scheduler's queue is full.
        give_up_at: The end of that time; None before the first refusal.
        refusal: The newest refusal.
    """

    sequence: int
    message: bytes
    waiter: Waiter[OutcomeT]
    key: ActionKey | None = None
    replay_success: frozenset[RefusalCode] = frozenset()
    times_sent: int = 0
    accepted: bool = False
    early: OutcomeT | None = field(default=None, repr=False)
    patience_s: float = math.inf
    give_up_at: float | None = None
    refusal: RefusedError | None = None


class Ledger(Generic[OutcomeT]):
    """The open items of one session.

    Attributes:
        newest: The sequence of the item that was added last.
    """

    def __init__(self) -> None:
        self._open: dict[int, Item[OutcomeT]] = {}
        self._by_key: dict[ActionKey, Item[OutcomeT]] = {}
        # Not a dict: taking the first of a dict again and again walks over all that were taken before.
        self._waiting: OrderedDict[int, Item[OutcomeT]] = OrderedDict()
        self._postponed: dict[int, Item[OutcomeT]] = {}
        self.newest = 0

    def __len__(self) -> int:
        """Open items."""
        return len(self._open)

    def __iter__(self) -> Iterator[Item[OutcomeT]]:
        """Open items in the order of their sequence."""
        return iter(tuple(self._open.values()))

    @property
    def waiting(self) -> int:
        """Items that wait to be written, those that were refused for now included."""
        return len(self._waiting) + len(self._postponed)

    def add(self, item: Item[OutcomeT]) -> None:
        """Adds an item with a sequence above all earlier ones; its key must not be open."""
        self._open[item.sequence] = item
        self.newest = item.sequence
        if item.key is not None:
            self._by_key[item.key] = item
        self._waiting[item.sequence] = item

    def open_submit(self, key: ActionKey) -> Item[OutcomeT] | None:
        """Returns the open submit of an action."""
        return self._by_key.get(key)

    def job_of(self, sequence: int) -> str | None:
        """Returns the job of an open submit; None for any other item."""
        item = self._open.get(sequence)
        return item.key[0] if item is not None and item.key is not None else None

    def is_open(self, item: Item[OutcomeT]) -> bool:
        """Returns True until the item is settled or dropped."""
        return item.sequence in self._open

    def next_batch(self) -> bytes:
        """Takes the waiting items, up to the contract's bounds, as one serialized request; empty if no item waits.

        Serialized messages joined together are, by protobuf's rules, the message whose repeated fields are joined.
        """
        messages: list[bytes] = []
        size = 0
        while self._waiting and len(messages) < MAX_BATCH_ITEMS:
            sequence, item = self._waiting.popitem(last=False)
            if messages and size + len(item.message) > MAX_BATCH_BYTES:
                self._waiting[sequence] = item
                self._waiting.move_to_end(sequence, last=False)
                break
            messages.append(item.message)
            size += len(item.message)
            item.times_sent += 1
        return b"".join(messages)

    def resume(self) -> None:
        """Makes every open item wait again, in order: the stream that carried them is gone."""
        self._waiting = OrderedDict(self._open)
        self._postponed.clear()

    def postpone(self, sequence: int, refusal: RefusedError, now: float, wait_s: float) -> Item[OutcomeT] | None:
        """Has an item that was refused for now wait to be sent again; returns it, or None if it waits no longer.

        The scheduler has done nothing of it, so it counts as never sent.
        """
        item = self._open.get(sequence)
        if item is None:
            return None
        item.give_up_at = now + item.patience_s if item.give_up_at is None else item.give_up_at
        if now + wait_s >= item.give_up_at:
            return None
        item.refusal, item.times_sent = refusal, 0
        self._postponed[sequence] = item
        return item

    def send_again(self, item: Item[OutcomeT]) -> None:
        """Ends the wait of an item that was postponed."""
        if self._postponed.pop(item.sequence, None) is not None:
            self._waiting[item.sequence] = item

    def stop_trying(self, key: ActionKey) -> bool:
        """Settles a submit that is postponed with its refusal; returns whether there was one."""
        item = self._by_key.get(key)
        if item is None or item.sequence not in self._postponed:
            return False
        self._settle(item, item.refusal)
        return True

    def result(self, sequence: int, refusal: RefusedError | None, reply: OutcomeT | None = None) -> None:
        """Takes in the result of an item; one that is not open is ignored.

        Args:
            sequence: The item's number.
            refusal: Why it was refused; None if it was accepted.
            reply: The result of an item other than a submit, if the scheduler reports more than acceptance.
        """
        item = self._open.get(sequence)
        if item is None:
            return
        if refusal is not None and not (item.times_sent > 1 and refusal.code in item.replay_success):
            self._settle(item, refusal)
            return
        if not item.accepted:
            item.accepted = True
            item.waiter.accept()
        if item.key is None:
            self._settle(item, reply)
        elif item.early is not None:
            self._settle(item, item.early)

    def outcome(self, key: ActionKey, outcome: OutcomeT) -> None:
        """Takes in an outcome; one that nobody waits for (any more) is ignored.

        An outcome settles only a submit that was accepted: an unaccepted one may have another body, and so be refused.
        """
        item = self._by_key.get(key)
        if item is None:
            return
        if item.accepted:
            self._settle(item, outcome)
        else:
            item.early = outcome

    def drop(self, item: Item[OutcomeT]) -> None:
        """Forgets an item without settling it: nobody waits for it any more."""
        self._open.pop(item.sequence, None)
        self._waiting.pop(item.sequence, None)
        self._postponed.pop(item.sequence, None)
        if item.key is not None and self._by_key.get(item.key) is item:
            del self._by_key[item.key]

    def fail_all(self, error: CallsheetError) -> None:
        """Settles every open item with an error."""
        for item in self:
            self._settle(item, error)

    def _settle(self, item: Item[OutcomeT], ended: OutcomeT | CallsheetError | None) -> None:
        self.drop(item)
        item.waiter.settle(ended)


class HeldJobs:
    """The jobs that the client opened or named. On each new stream they are held again, before anything else."""

    def __init__(self) -> None:
        self._jobs: dict[str, None] = {}
        self._asked: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Returns True if any job is held."""
        return bool(self._jobs)

    def hold(self, job_id: str) -> None:
        """Notes that a job is held, as an item that names it was accepted on the present stream."""
        self._jobs[job_id] = None

    def release(self, job_id: str) -> None:
        """Notes that a job is no longer held."""
        self._jobs.pop(job_id, None)

    def release_all(self) -> None:
        """Notes that no job is held."""
        self._jobs.clear()

    def requests(self, sequence: int) -> list[client_service_pb2.ClientSessionRequest]:
        """Returns the first requests of a new stream.

        Args:
            sequence: The last sequence of the session; the items take the next ones.
        """
        self._asked = dict(enumerate(self._jobs, start=sequence + 1))
        items = [client_service_pb2.ClientItem(sequence=n, hold_job=job_id) for n, job_id in self._asked.items()]
        starts = range(0, len(items), MAX_BATCH_ITEMS)
        return [client_service_pb2.ClientSessionRequest(items=items[at : at + MAX_BATCH_ITEMS]) for at in starts]

    def answer(self, sequence: int, refusal: RefusedError | None) -> bool:
        """Takes in the result of an item; returns whether the item was one of these."""
        job_id = self._asked.pop(sequence, None)
        if job_id is None:
            return False
        if refusal is not None:
            logger.warning("job is no longer held job=%s: %s", job_id, refusal)
            self.release(job_id)
        return True
