"""An outcome that is forgotten between a resubmit and the read of the journal."""

from __future__ import annotations

import anyio
import pytest
from callsheet.scheduler.core.state.forgotten_ids import entry
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKey, ActionState
from callsheet.scheduler.core.words.records import ActionFinished, JobOpened, WorkForgotten
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.service.background import Background
from callsheet.scheduler.service.codec.requests import UnaryReply
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.payloads.rights import PayloadRights
from callsheet.scheduler.service.sessions import ClientStream
from callsheet.scheduler.store.local_payloads import LocalPayloadStore

from tests.support.journals import JournalPlace, submitted

_LIMIT_S = 30.0


@pytest.mark.anyio
async def test_who_waits_for_it_is_told_to_ask_again(place: JournalPlace) -> None:
    with place.begun() as journal, anyio.fail_after(_LIMIT_S):
        journal.commit([JobOpened("job", b""), submitted("a")])
        journal.commit([ActionFinished("job", "a", "succeeded", b"outcome", 2.0)])
        journal.commit([WorkForgotten("job", ("a",), entry("a", b"", ActionState.SUCCEEDED))])
        payloads = await LocalPayloadStore.open(place.data_dir / "payloads")
        rights = PayloadRights(payloads, SchedulerState(1, lambda _: b""))
        claims = PayloadClaims(payloads, rights, lambda job_id: job_id == "job")
        background = Background(journal, claims, lambda job_id: job_id == "job")
        stream, unary = ClientStream(), UnaryReply()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(background.run)
            background.deliver_stored(stream, ActionKey("job", "a"))
            background.deliver_stored(unary, ActionKey("job", "a"))
            assert await unary.outcome(_LIMIT_S) is None
            assert await stream.outbox.next_batch() is None
            tasks.cancel_scope.cancel()
        assert stream.outbox.closing is not None
        assert stream.outbox.closing.code is RefusalCode.UNAVAILABLE
