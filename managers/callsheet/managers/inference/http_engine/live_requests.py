"""The requests of a driver on their way through a server, and its gate."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import anyio
from callsheet.managers.inference.driver import (
    EngineBusyError,
    GenerateRequest,
    RequestRefusedError,
)


@dataclass(eq=False, slots=True)
class LiveRequest:
    """A request that has not ended.

    Attributes:
        request: The request.
        server_id: Its id on the server: of a fixed width, never used twice, and no other id begins with it.
        begun_version: The policy version that the server had when it was sent.
        scope: Around all that is done for it; cancelled where the server is not waited for any longer.
        ended: Set once its `generate` is about to return.
        sent: Whether it was sent to the server.
        aborted: Whether somebody wants it to end.
        failure: Why it fails, where `scope` was cancelled for that.
    """

    request: GenerateRequest
    server_id: str
    begun_version: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    sent: bool = False
    aborted: bool = False
    failure: str = ""


class LiveRequests:
    """All of them. Must be used from one event loop.

    Args:
        most: The most at once; more are refused as busy.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_id: dict[str, LiveRequest] = {}
        self._prefix = uuid.uuid4().hex[:12]
        self._count = 0
        self._open = anyio.Event()
        self._open.set()
        self._changed = anyio.Event()

    def begin(self, request: GenerateRequest) -> LiveRequest:
        """Takes a request in.

        Raises:
            RequestRefusedError: One of its id is live.
            EngineBusyError: There are too many.
        """
        if request.request_id in self._by_id:
            raise RequestRefusedError("duplicate_request", f"request_id {request.request_id!r} is live already")
        if len(self._by_id) >= self._most:
            raise EngineBusyError(f"{len(self._by_id)} requests are live; the bound is {self._most}")
        self._count += 1
        live = LiveRequest(request, f"{self._prefix}-{self._count:016x}-{request.request_id}")
        self._by_id[request.request_id] = live
        return live

    def end(self, live: LiveRequest) -> None:
        """Forgets a request."""
        live.ended.set()
        del self._by_id[live.request.request_id]
        self._changed.set()

    def find(self, request_id: str) -> LiveRequest | None:
        """The live request of an id."""
        return self._by_id.get(request_id)

    def hold(self) -> None:
        """Holds back what is not sent yet."""
        if self._open.is_set():
            self._open = anyio.Event()

    def release(self) -> None:
        """Undoes `hold`."""
        self._open.set()

    async def released(self) -> None:
        """Waits until nothing is held back. Something else must bound the wait."""
        while not self._open.is_set():
            await self._open.wait()

    async def drained(self) -> None:
        """Waits until none that was sent is live. Something else must bound the wait."""
        while any(live.sent for live in self._by_id.values()):
            self._changed = anyio.Event()
            await self._changed.wait()

    def cut(self, failure: str = "", *, held: bool = False) -> None:
        """Gives up those that were sent, and those held back as well if asked for.

        They fail, or without a failure end without tokens.
        """
        for live in self._by_id.values():
            if live.sent or held:
                live.failure = failure
                live.scope.cancel()

    @property
    def all(self) -> tuple[LiveRequest, ...]:
        """All that are live."""
        return tuple(self._by_id.values())

    @property
    def sent(self) -> int:
        """How many were sent."""
        return sum(live.sent for live in self._by_id.values())

    @property
    def held(self) -> int:
        """How many were not."""
        return len(self._by_id) - self.sent

    @property
    def tokens(self) -> int:
        """Prompt tokens of those sent."""
        return sum(len(live.request.prompt_token_ids) for live in self._by_id.values() if live.sent)
