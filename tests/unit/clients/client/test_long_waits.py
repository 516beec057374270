"""Actions that take long to begin are told in the client's log, and why."""

from __future__ import annotations

import logging

import anyio
import pytest
from callsheet.client.errors import CallsheetError, ConnectionLostError
from callsheet.client.session import long_waits
from callsheet.client.session.ledger import ActionKey, Item, Ledger
from callsheet.client.session.ticket import Ticket
from callsheet.v1 import admin_service_pb2

pytestmark = pytest.mark.anyio
_WHY = "no registered manager serves env_reset"
_QUEUED = admin_service_pb2.ExplainResponse(state=admin_service_pb2.ACTION_STATE_QUEUED, explanation=_WHY)
_RUNNING = admin_service_pb2.ExplainResponse(state=admin_service_pb2.ACTION_STATE_RUNNING)


def _ledger(*action_ids: str) -> Ledger[None]:
    ledger: Ledger[None] = Ledger()
    for sequence, action_id in enumerate(action_ids, start=1):
        ledger.add(Item(sequence, b"", Ticket(), ("job", action_id)))
    return ledger


class Scheduler:
    """Answers by action, and notes what it was asked."""

    def __init__(self, answers: dict[str, admin_service_pb2.ExplainResponse | CallsheetError], until: int) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.enough = anyio.Event()
        self._until = until

    async def explain(self, key: ActionKey) -> admin_service_pb2.ExplainResponse:
        self.asked.append(key[1])
        if len(self.asked) >= self._until:
            self.enough.set()
        answer = self.answers[key[1]]
        if isinstance(answer, CallsheetError):
            raise answer
        return answer


async def _run(ledger: Ledger[None], scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_waits, "_LOOK_S", 1e-3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(long_waits.tell_long_waits, ledger, scheduler.explain)
        await scheduler.enough.wait()
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_the_oldest_that_does_not_run_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler({"a": _RUNNING, "b": _QUEUED, "c": _QUEUED}, until=3)
    with caplog.at_level(logging.WARNING, "callsheet.client"):
        await _run(_ledger("a", "b", "c"), scheduler, monkeypatch)
    assert scheduler.asked == ["a", "b", "b"], "what runs is asked about once"
    assert caplog.messages[0] == f"action waits action=job/b state=queued why={_WHY!r} others_open=1"


async def test_what_cannot_be_asked_is_no_line_and_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler({"a": ConnectionLostError("gone")}, until=3)
    with caplog.at_level(logging.WARNING, "callsheet.client"):
        await _run(_ledger("a"), scheduler, monkeypatch)
    assert scheduler.asked == ["a"] * 3
    assert caplog.messages == []
