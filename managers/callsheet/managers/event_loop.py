"""The event loop of managers whose user may have other programs that nobody trusts."""

from __future__ import annotations

import asyncio
import selectors


def loop_without_epoll() -> asyncio.AbstractEventLoop:
    """Returns an event loop that goes on when its user may watch no further file by epoll."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())
