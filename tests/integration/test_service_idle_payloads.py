"""A scheduler lets go of what its open jobs have not used for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client
from callsheet.client.admin import AdminClient
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.store.local_payloads import LocalPayloadStore

from tests.support.raw_service import running_service

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0
LONG_AGO = 1_700_000_000.0


async def chunks() -> AsyncIterator[bytes]:
    """A payload."""
    yield b"used long ago"


async def test_a_payload_that_an_open_job_used_long_ago_goes(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", shutdown_grace=0.1)
    async with running_service(settings) as service, Client(service.address) as client:
        await client.open_job("job", detached=True)
    # One that starts with a job notes that it runs; its end is then the beginning of the time away.
    async with running_service(settings) as service, Client(service.address) as client:
        await client.open_job("job", detached=True)
    store = await LocalPayloadStore.open(tmp_path / "payloads", clock=lambda: LONG_AGO)
    sha256 = (await store.put(chunks())).sha256
    await store.retain("job", [sha256])
    async with running_service(settings) as service, AdminClient(service.address) as admin:
        with anyio.fail_after(DEADLINE_S):
            while not await store.unknown_to("nobody", "job", [sha256]):
                await anyio.lowlevel.checkpoint()
        assert [job.job_id for job in await admin.jobs()] == ["job"]
