"""Jobs whose opening is not committed yet, and what waits for that before it goes to managers."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from callsheet.scheduler.core.words.commands import CancelAttempt, CoreCommand, Dispatch, ResizeAttempt
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.records import JobOpened, Record

K = TypeVar("K")
_OfAttempt = Dispatch | ResizeAttempt | CancelAttempt


class OpeningJobs:
    """Decides which commands wait for a commit that would not have to otherwise.

    Were an opening lost in a crash after its first dispatch, the next scheduler would take the attempt for one of an
    earlier job of this id, and run its action again. A client that waits for the answer to its opening, as ours does,
    never meets this.
    """

    def __init__(self) -> None:
        self._jobs: Counter[str] = Counter()
        # What is about an attempt goes out in order, so after one that waits all others wait too.
        self._waiting: Counter[Token] = Counter()

    def persists(self, record: Record) -> None:
        """A record is on its way to the journal."""
        if type(record) is JobOpened:
            self._jobs[record.job_id] += 1

    def committed(self, record: Record) -> None:
        """A record is in the journal."""
        if type(record) is JobOpened:
            _less(self._jobs, record.job_id)

    def holds(self, command: CoreCommand) -> bool:
        """Whether a command waits for the commit of all records before it; then `carried_out` follows."""
        if not (self._jobs or self._waiting) or not isinstance(command, _OfAttempt):
            return False
        opening = isinstance(command, Dispatch) and command.request.key.job_id in self._jobs
        if opening or command.token in self._waiting:
            self._waiting[command.token] += 1
            return True
        return False

    def carried_out(self, command: CoreCommand) -> None:
        """A command that waited for a commit was carried out."""
        if self._waiting and isinstance(command, _OfAttempt):
            _less(self._waiting, command.token)


def _less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
