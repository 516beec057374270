"""All of our HTTP servers, as they are started, refuse what web pages make browsers send."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.web.server import MetricsServer

from tests.support.e2b_servers import e2b_process
from tests.support.gateways import CHAT, chat, running_gateway
from tests.support.packets import packets_of
from tests.support.raw_service import running_service
from tests.support.swerex_servers import facade_process

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
_FOREIGN = (
    "Host: page.example",
    "Host: page.example\r\nX-Forwarded-Host: localhost",
    "Host: localhost\r\nOrigin: http://page.example",
    "Host: localhost\r\nOrigin: null",
)
_OWN = ("Host: localhost", "Host: 127.0.0.1:1")


async def _statuses(address: str, path: str, fields: tuple[str, ...]) -> set[bytes]:
    found = set()
    for each in fields:
        head = f"GET {path} HTTP/1.1\r\n{each}\r\n\r\n".encode()
        _, answer = await anyio.to_thread.run_sync(packets_of, address, head)
        found.add(answer.partition(b"\r\n")[0].split()[1])
    return found


async def test_each_server_answers_its_own_names_and_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For processes, too.
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")

    async def scrape() -> bytes:
        return b"a 1\n"

    with anyio.fail_after(_WAIT_S):
        async with AsyncExitStack() as stack:
            settings = SchedulerSettings(tmp_path / "data", "127.0.0.1:0")
            service = await stack.enter_async_context(running_service(settings))
            gateway = await stack.enter_async_context(running_gateway(service.address, "j", tmp_path / "gateway"))
            servers = {gateway.url.removeprefix("http://"): "/v1/models"}
            for process, path in ((e2b_process, "/"), (facade_process, "/is_alive")):
                facade = await stack.enter_async_context(process(service.address))
                servers[str(facade.facts["address"])] = path
            tasks = await stack.enter_async_context(anyio.create_task_group())
            pages = MetricsServer(scrape, AccessSettings(), lambda _: None)
            url: str = await tasks.start(partial(pages.serve, "127.0.0.1:0"))
            servers[url.split("/")[2]] = "/metrics"
            for address, path in servers.items():
                assert await _statuses(address, path, _FOREIGN) == {b"403"}, path
                assert b"403" not in await _statuses(address, path, _OWN), path
            tasks.cancel_scope.cancel()


async def test_a_sandbox_is_no_trainer_whatever_it_says_of_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    said = dict.fromkeys(("x-forwarded-for", "x-real-ip", "x-client-ip", "forwarded"), "127.0.0.1")
    async with (
        running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service,
        running_gateway(service.address, "j", tmp_path / "gateway") as gateway,
    ):
        trajectory = gateway.job.trajectory("t")
        await trajectory.open()
        key = (await trajectory.gateway()).api_key
        for source, shown, status in (
            (("j", "t"), key, 503),
            (("j", "another"), key, 403),
            (("j", "t"), "j/t", 403),
            (("j", "t"), "", 403),
        ):
            host, port = gateway.url.removeprefix("http://").split(":")
            body = json.dumps(chat("Hello")).encode()
            fields = {"host": host, "authorization": f"Bearer {shown}", "content-length": str(len(body)), **said}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            async with await anyio.connect_tcp(host, int(port), local_host=sandbox_source(*source)) as stream:
                await stream.send(f"POST {CHAT} HTTP/1.1\r\n{lines}\r\n".encode() + body)
                assert (await stream.receive()).split()[1] == str(status).encode(), (source, shown)
