"""The handle of an action whose outcome comes over a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from callsheet.client.backend import ActionHandle
from callsheet.client.errors import RefusalCode
from callsheet.client.session.payloads import read_outcome
from callsheet.client.session.session import Reply, Session
from callsheet.client.session.ticket import Ticket
from callsheet.client.words.arguments import instance
from callsheet.client.words.outcomes import Outcome
from callsheet.client.words.results import OutputChunk
from callsheet.v1 import client_service_pb2, common_pb2, outcome_pb2

T = TypeVar("T")

_MAX_REASON = 256
_ALREADY_GONE = frozenset({RefusalCode.NOT_FOUND})


class SessionHandle(ActionHandle[T]):
    """An `ActionHandle` on an item of a session."""

    def __init__(self, session: Session, key: tuple[str, str], ticket: Ticket[Reply]) -> None:
        super().__init__(*key)
        self._session = session
        self._ticket = ticket
        self._outcome: Outcome[T] | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome (or the refusal) has arrived."""
        return self._ticket.has_ended

    async def accepted(self) -> None:
        """Returns once the action is durable."""
        await self._ticket.accepted()

    async def outcome(self) -> Outcome[T]:
        """Returns the outcome; results by reference are fetched first."""
        if self._outcome is None:
            message = await self._ticket.end()
            assert isinstance(message, outcome_pb2.Outcome)  # the end of a submit is an outcome
            self._outcome = await read_outcome(message, self._session.payloads)
        return self._outcome

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields what the action prints while it runs."""
        if self._ticket.output is not None:
            async for chunk in self._ticket.output.chunks():
                yield chunk

    async def cancel(self, reason: str = "") -> None:
        """Asks for a cancel."""
        said = shortened(instance("reason", reason, str, "text"))
        if not self._ticket.has_ended and not self._session.stop_trying((self.job_id, self.action_id)):
            self._ticket.cancel_requested = True
            await self._put_cancel(said).end()

    def abandon(self, reason: str) -> None:
        """Cancels the action unless another caller waits for it."""
        self._ticket.owners -= 1
        if self._ticket.owners or self._ticket.has_ended or self._ticket.cancel_requested or self._session.is_over:
            return
        if not self._session.withdraw((self.job_id, self.action_id)):
            self._ticket.cancel_requested = True
            self._put_cancel(shortened(reason))

    def _put_cancel(self, reason: str) -> Ticket[Reply]:
        key = common_pb2.ActionKey(job_id=self.job_id, action_id=self.action_id)
        cancel = client_service_pb2.CancelActionRequest(key=key, reason=reason)
        item = client_service_pb2.ClientItem(cancel=cancel)
        return self._session.put_now(item.SerializeToString(), replay_success=_ALREADY_GONE)


def shortened(reason: str) -> str:
    """Returns a reason as the contract takes it."""
    return reason[:_MAX_REASON].replace("\0", "").encode(errors="replace").decode()
