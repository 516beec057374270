"""The client for plain threads: the same verbs, each blocking its caller.

with SyncClient("127.0.0.1:7077") as client:
    job = client.open_job("my-job")
    with job.trajectory("t-1") as trajectory:
        trajectory.env_reset()
        outcome = trajectory.env_step("ls")
    job.close()
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from callsheet.client.client import Client
from callsheet.client.settings import ClientOptions
from callsheet.client.sync.job import SyncJob, blocking, giving, plain
from callsheet.client.sync.loop_thread import loop_thread

T = TypeVar("T")

_THREAD = "callsheet sync clients"


class SyncClient:
    """A `Client` for plain threads, usable from several at once; can be pickled like a `Client`.

    All of a process share one thread with an event loop, which the first use of one starts.

    Args:
        target: The scheduler's address, or a client to use (for instance a fake).
        options: How to connect, wait and give up; not with a client.
    """

    def __init__(self, target: str | Client, options: ClientOptions | None = None) -> None:
        self._wrapped = target if isinstance(target, Client) else Client(target, options)

    @classmethod
    def connect(cls, target: str, options: ClientOptions | None = None) -> Self:
        """See `Client.connect`."""
        client = cls(target, options)
        try:
            client.run(client._connected())
        except BaseException:
            client.close()
            raise
        return client

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, target: str | None = None) -> Self:
        """See `Client.from_env`."""
        return cls(Client.from_env(environ, target=target))

    open_job = giving(SyncJob, blocking(Client.open_job))
    job = giving(SyncJob, plain(Client.job))
    jobs = blocking(Client.jobs)

    @property
    def _thread(self) -> Self:
        return self

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread of the sync clients and returns its result."""
        return loop_thread(_THREAD).run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine in the thread of the sync clients, beside the caller."""
        return loop_thread(_THREAD).start(coroutine)

    def close(self) -> None:
        """Closes the client. Calls that wait in other threads raise ClientClosedError."""
        self.run(self._wrapped.close())

    def __enter__(self) -> Self:
        """Returns the client; it connects when it is first used."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        self.close()

    async def _connected(self) -> None:
        await self._wrapped.backend().connect()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles only the client."""
        return {"client": self._wrapped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a client that has not connected yet."""
        self.__init__(state["client"])  # type: ignore[misc]
