"""Jobs whose opening is not committed yet, and the dispatches that wait for it."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from callsheet.scheduler.core.words.commands import CancelAttempt, CoreCommand, Dispatch, ResizeAttempt
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.records import JobOpened, Record

K = TypeVar("K")
_OfAttempt = Dispatch | ResizeAttempt | CancelAttempt


class HeldDispatches:
    """Decides which dispatches wait for their commit.

    - Of an action that may begin only once. If its submit, or the process that got the attempt, were lost with this
      scheduler, the next one would run the action again. A commit fails if another scheduler leads.
    - Of a job whose opening is not committed. The next scheduler would take the attempt for one of an earlier job of
      this id, and run its action again. A client that waits for the answer to its opening, as ours does, never meets
      this.
    """

    def __init__(self) -> None:
        self._opening: Counter[str] = Counter()
        # What is about an attempt goes out in order, so after one that waits all others wait too.
        self._waiting: Counter[Token] = Counter()

    def persists(self, record: Record) -> None:
        """A record is on its way to the journal."""
        if type(record) is JobOpened:
            self._opening[record.job_id] += 1

    def committed(self, record: Record) -> None:
        """A record is in the journal."""
        if type(record) is JobOpened:
            _less(self._opening, record.job_id)

    def holds(self, command: CoreCommand) -> bool:
        """Returns whether a command waits for the commit of all records before it; then `carried_out` follows."""
        if not isinstance(command, _OfAttempt):
            return False
        if self._must_wait(command) or command.token in self._waiting:
            self._waiting[command.token] += 1
            return True
        return False

    def _must_wait(self, command: _OfAttempt) -> bool:
        if not isinstance(command, Dispatch):
            return False
        return command.request.called_once or command.request.key.job_id in self._opening

    def carried_out(self, command: CoreCommand) -> None:
        """A command that waited for a commit was carried out."""
        if isinstance(command, _OfAttempt):
            _less(self._waiting, command.token)


def _less(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
