"""Ends a process in good order on SIGINT and SIGTERM."""

from __future__ import annotations

import signal

import anyio


async def cancel_on_signal(scope: anyio.CancelScope) -> None:
    """Cancels a scope at the first SIGINT or SIGTERM; a second one then has its default effect."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            break
    scope.cancel()
