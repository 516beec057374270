"""What each HTTP server sends at once goes in one packet."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.web.server import MetricsServer

from tests.support.e2b_servers import e2b_process
from tests.support.gateways import running_gateway
from tests.support.packets import packets_of
from tests.support.raw_service import running_service
from tests.support.swerex_servers import facade_process

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
_GET = "GET {} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: not-a-secret\r\n\r\n"


async def _packets(address: str, path: str, answers: int = 4) -> tuple[int, bytes]:
    return await anyio.to_thread.run_sync(packets_of, address, _GET.format(path).encode(), answers)


async def test_an_answer_of_each_server_is_one_packet(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service:
            scheduler = service.address
            async with running_gateway(scheduler, "j", tmp_path / "gateway") as gateway:
                packets, answer = await _packets(gateway.url.removeprefix("http://"), "/health")
                assert answer.startswith(b"HTTP/1.1 200")
                assert packets == 4
            for process in (e2b_process(scheduler), facade_process(scheduler)):
                async with process as facade:
                    packets, answer = await _packets(str(facade.facts["address"]), "/anything")
                    assert answer.startswith(b"HTTP/1.1 4")
                    assert packets == 4
            async with anyio.create_task_group() as tasks:

                async def scrape() -> bytes:
                    return b"a 1\n"

                pages = MetricsServer(scrape, AccessSettings(), lambda _: None)
                url: str = await tasks.start(partial(pages.serve, "127.0.0.1:0"))
                packets, answer = await _packets(url.split("/")[2], "/metrics", 1)
                assert answer.endswith(b"\r\n\r\na 1\n")
                assert packets == 1
                tasks.cancel_scope.cancel()
