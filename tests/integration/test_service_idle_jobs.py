"""A job whose client lives and does nothing, over real gRPC."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, NotFoundError
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.raw_service import ANSWER_S, running_service
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio

_POLL_S = 0.02


async def test_a_client_learns_why_its_idle_job_was_closed(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    with anyio.fail_after(ANSWER_S):
        async with running_service(settings) as service, Client(service.address) as client:
            other = await client.open_job("other")
            job = await client.open_job("job", idle_timeout_s=0.3)
            await until_so(client.jobs, lambda it: "job" not in {each.job_id for each in it}, every_s=_POLL_S)
            with pytest.raises(NotFoundError, match="its job was idle for"):
                await job.tool_call("any", "method")
            status = await other.status()
    assert status.spec.idle_timeout_s == 7 * 24 * 3600.0
    assert status.idle_closes_in_s is not None
    assert status.forgotten_actions == 0
