"""Logs the reasons of long waits before the start of an action, so that a step that hangs is explained.

A session looks every five seconds. An action that was open two looks before waits for long. The session asks the
scheduler about the oldest of these until one is not running yet, and logs its reason after 10, 20, 40 ... seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import anyio
import grpc.aio
from callsheet.client.errors import CallsheetError
from callsheet.client.session.ledger import ActionKey, Ledger
from callsheet.v1 import admin_service_pb2

logger = logging.getLogger("callsheet.client")

_LOOK_S = 5.0
_FIRST_TOLD_AFTER_LOOKS = 2
# Actions that run for long are asked about once; so many are at each look.
_MOST_ASKED = 4
_BEGUN = frozenset({admin_service_pb2.ACTION_STATE_RUNNING})

Explain = Callable[[ActionKey], Awaitable[admin_service_pb2.ExplainResponse]]


async def tell_long_waits(ledger: Ledger[Any], explain: Explain) -> None:
    """Logs long waits until the stream ends.

    Args:
        ledger: The open items.
        explain: Asks the scheduler about an action; it may raise the errors of calls.
    """
    newest: tuple[int, int] = (0, 0)
    running: set[ActionKey] = set()
    looks, told_at = 0, _FIRST_TOLD_AFTER_LOOKS
    while True:
        await anyio.sleep(_LOOK_S)
        waiting = [item.key for item in ledger if item.key is not None and item.sequence <= newest[0]]
        newest = (newest[1], ledger.newest)
        running.intersection_update(waiting)
        if not waiting:
            looks, told_at = 0, _FIRST_TOLD_AFTER_LOOKS
            continue
        looks += 1
        if looks + 1 < told_at:
            continue
        told_at *= 2
        await _tell(waiting, running, explain)


async def _tell(waiting: list[ActionKey], running: set[ActionKey], explain: Explain) -> None:
    for key in islice((each for each in waiting if each not in running), _MOST_ASKED):
        try:
            found = await explain(key)
        except (CallsheetError, grpc.aio.AioRpcError):
            return  # A connection that is lost is told elsewhere; what may not be asked is not.
        if found.state in _BEGUN:
            running.add(key)
            continue
        logger.warning(
            "action waits action=%s/%s state=%s why=%r others_open=%d",
            *key, admin_service_pb2.ActionState.Name(found.state).removeprefix("ACTION_STATE_").lower(),
            found.explanation, len(waiting) - len(running) - 1,
        )  # fmt: skip
        return
