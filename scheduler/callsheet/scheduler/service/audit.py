"""The audit of a scheduler: acts of callers that others feel, in the log and in a file."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import structlog
from callsheet.scheduler.access.audit import append_lines, audit_line
from callsheet.scheduler.access.identity import Identity
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.service.limits.guard import caller
from callsheet.scheduler.service.limits.refusal_log import address_of
from callsheet.v1 import client_service_pb2

# Of one caller and kind of act in a window; then comes a line with how many more there were. So nobody pushes the lines
# of others out of the file, and the log stays readable.
MOST_LINES: Final = 100
WINDOW_S: Final = 10.0
MAX_WAITING: Final = 10_000

# By item of a stream and by rpc.
_ACTS: Final = {
    "close_job": "close",
    "cancel": "cancel",
    "cancel_work": "cancel",
    "publish_policy_version": "publish",
    "CloseJob": "close",
    "CancelAction": "cancel",
    "CancelWork": "cancel",
    "PublishPolicyVersion": "publish",
    "DrainManager": "drain",
    "HealManager": "heal",
}
# Not the place of weights: its address may have a password or a signature in it.
_IDS: Final = frozenset({"job_id", "group_id", "trajectory_id", "action_id", "service", "version"})

_log = structlog.get_logger(__name__)


class AuditTrail:
    """Notes acts, and writes them beside the loop. Not for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[Mapping[str, object]] = deque()
        self._noted: Counter[tuple[str, ...]] = Counter()
        self._window_ends = 0.0
        self._wake = anyio.Event()

    def of_item(self, item: client_service_pb2.ClientItem, peer: str) -> Callable[[RefusedError | None], None] | None:
        """Takes the result of a client's request; None if nobody else feels it."""
        name = item.WhichOneof("item")
        if name not in _ACTS:
            return None
        asked: Any = getattr(item, name)
        if isinstance(asked, str):
            return self.of(_ACTS[name], peer, {"job_id": asked})
        ids = {
            field.name: value
            for part in (asked, getattr(asked, "key", asked), getattr(asked, "rollout", asked))
            for field, value in part.ListFields()
            if field.name in _IDS
        }
        return self.of(_ACTS[name], peer, ids)

    def of(self, act: str, peer: str, target: Mapping[str, object]) -> Callable[[RefusedError | None], None]:
        """Takes the result of what the caller of this rpc asks for."""
        return partial(self._note, act, caller(), peer, target)

    def denied(self, identity: Identity, peer: str, method: str, refusal: RefusedError) -> None:
        """Notes an act that a caller's token is not for at all."""
        if (rpc := method.rpartition("/")[2]) in _ACTS:
            self._note(_ACTS[rpc], identity, peer, {}, refusal)

    def _note(
        self, act: str, identity: Identity, peer: str, target: Mapping[str, object], refusal: RefusedError | None
    ) -> None:
        who = {
            "scope": identity.scope.value if identity.token_id else "",
            "subject": identity.subject,
            "token": identity.token_id,
        }
        key = (act, *who.values(), address_of(peer))
        self._noted[key] += 1
        if self._noted[key] <= MOST_LINES:
            result = {"result": "OK"} if refusal is None else {"result": refusal.code.name, "rule": refusal.rule}
            self._put(act, {**who, "peer": peer, **target, **result})

    def _put(self, act: str, facts: Mapping[str, object]) -> None:
        line: dict[str, Any] = audit_line(act, time.time(), facts)
        _log.info(**line)
        if len(self._waiting) >= MAX_WAITING:
            _log.error("audit_not_written", path=str(self._path), lines=1, reason=f"{MAX_WAITING} lines wait for it")
        else:
            self._waiting.append(line)
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            with anyio.move_on_after(WINDOW_S if self._noted else None):
                await self._wake.wait()
            self._wake = anyio.Event()
            await self.flush(ends_window=anyio.current_time() >= self._window_ends)

    async def flush(self, *, ends_window: bool = True) -> None:
        """Writes what waits, and at the end of a window how many more acts each caller's lines stand for."""
        if ends_window:
            self._window_ends = anyio.current_time() + WINDOW_S
            for (act, scope, subject, token, peer), count in self._noted.items():
                if count > MOST_LINES:
                    who = {"scope": scope, "subject": subject, "token": token, "peer": peer}
                    self._put(act, {**who, "further": count - MOST_LINES})
            self._noted.clear()
        lines = list(self._waiting)
        self._waiting.clear()
        try:
            if lines:
                await anyio.to_thread.run_sync(append_lines, self._path, lines)
        except OSError as error:
            _log.error("audit_not_written", path=str(self._path), lines=len(lines), reason=str(error))
