"""A channel that follows its files: after certificates have changed, new calls use a new connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

_log = logging.getLogger("callsheet.credentials")


class RenewedChannel(grpc.aio.Channel):
    """Opens a channel anew when one of its files has changed.

    Calls that run go on where they began, and what is not used any more closes its connection when it is idle. A file
    that cannot be read just then, as it is being replaced, leaves all as it is; the log
    says so once.
    """

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], files: Sequence[Path]) -> None:
        """Opens the first one.

        Raises:
            OSError: A file cannot be read; its error names it.
        """
        self._open = open_channel
        self._files = files
        self._readable = True
        self._stamp = self._stamped()
        self._channels = [open_channel()]

    async def __aenter__(self) -> RenewedChannel:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes it."""
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel.close`."""
        for channel in self._channels:
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See `grpc.aio.Channel.get_state`."""
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See `grpc.aio.Channel.wait_for_state_change`."""
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See `grpc.aio.Channel.channel_ready`."""
        await self._current().channel_ready()

    def unary_unary(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_unary`."""
        return self._later("unary_unary", of, options)

    def unary_stream(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_stream`."""
        return self._later("unary_stream", of, options)

    def stream_unary(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_unary`."""
        return self._later("stream_unary", of, options)

    def stream_stream(self, *of: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_stream`."""
        return self._later("stream_stream", of, options)

    def _later(self, arity: str, of: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        """A method that looks at each call which channel it goes over."""

        def call(*arguments: Any, **how: Any) -> Any:
            return getattr(self._current(), arity)(*of, **options)(*arguments, **how)

        return call

    def _current(self) -> grpc.aio.Channel:
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._channels.append(self._open())
                self._stamp = stamp
            self._readable = True
        except OSError as error:
            # What is open goes on, and the next call looks again.
            if self._readable:
                _log.warning("certificates cannot be read anew file=%s reason=%s", error.filename, error.strerror)
            self._readable = False
        return self._channels[-1]

    def _stamped(self) -> list[tuple[int, int]]:
        return [(status.st_ino, status.st_mtime_ns) for status in (path.stat() for path in self._files)]
