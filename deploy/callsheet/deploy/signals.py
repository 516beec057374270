"""Ends a process in good order on SIGINT and SIGTERM."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final

import anyio

LONGEST_END_S: Final = 20.0
"""In which a scheduler, a gateway or a facade ends that was asked to."""


def interrupt_on_terminate() -> None:
    """Lets SIGTERM end a command as Ctrl-C does, so that what it started is stopped and its files are removed."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts background processes so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


async def cancel_on_signal(scope: anyio.CancelScope, limit_s: float = LONGEST_END_S) -> None:
    """Cancels a scope at the first SIGINT or SIGTERM; a second one then has its default effect.

    After the limit, in seconds, the process ends whatever holds it up, such as a database that is silent. It says on
    standard error where each thread stood.
    """
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            break
    faulthandler.dump_traceback_later(limit_s, exit=True)
    scope.cancel()


async def serve_until_signal(
    serve: Callable[..., Coroutine[Any, Any, object]], settings: object, ready: Callable[[str], None]
) -> None:
    """Runs a server until SIGINT or SIGTERM; then it may end its running requests.

    Args:
        serve: Serves by the settings until the event is set that is its second argument; starts with its address.
        settings: How it serves.
        ready: Told the address once it listens.
    """
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as waiting:
            tasks.start_soon(cancel_on_signal, waiting)
            ready(await tasks.start(serve, settings, stop))
            await anyio.sleep_forever()
        stop.set()
