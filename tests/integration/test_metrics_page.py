"""/metrics as Prometheus reads it, and who may."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import pytest
import trustme
from callsheet.client import Client, Failed, NotFoundError, Sampling, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.scheduler.access.identity import OF_ONE_SUBJECT, Scope
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.access.token_file import TokenFile
from callsheet.scheduler.access.tokens import ID_BYTES, SECRET_BYTES, issue_token
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.web.server import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsServer
from prometheus_client.parser import text_string_to_metric_families

from tests.support.contract_http import running
from tests.support.contract_model import VOCABULARY
from tests.support.contract_sglang import ContractSGLang
from tests.support.served_subjects import contract_engine

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
Samples = dict[tuple[str, ...], float]


async def _scrape(url: str) -> Samples:
    """The samples of a page, by name and the values of the labels in their order."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_stack_tells_what_ended_what_it_has_and_what_it_refused(tmp_path: Path) -> None:
    server = ContractSGLang(contract_engine(tmp_path))
    async with running(server):
        settings = StackSettings(
            tmp_path / "data", managers=("inference",), given={"engine": "sglang", "url": (server.url,)}, cpus=1
        )
        with anyio.fail_after(_WAIT_S):
            async with (
                local_stack(settings) as stack,
                Client(stack.address) as client,
                AdminClient(stack.address) as admin,
                await client.open_job("j") as job,
            ):
                assert stack.metrics_url is not None
                assert isinstance(await job.generate([1, 2], Sampling(max_new_tokens=4)), Succeeded)
                assert isinstance(await job.generate([1, 2, 3], Sampling(max_new_tokens=4)), Succeeded)
                assert isinstance(await job.generate([VOCABULARY], Sampling(max_new_tokens=4)), Failed)
                with pytest.raises(NotFoundError):
                    await admin.explain("j", "nothing")
                found = await _scrape(stack.metrics_url)
                step = job.step_summary()
                (manager,) = (await admin.status()).managers
    assert found["callsheet_actions_total", "", "generate", "succeeded"] == 2
    assert found["callsheet_actions_total", "env", "generate", "failed"] == 1
    assert found["callsheet_action_queue_seconds_count", "generate"] == 3
    assert found["callsheet_engine_slots", manager.manager_id, "policy"] == manager.services[0].slots
    assert found["callsheet_engine_serving", manager.manager_id, "policy"] == 1
    assert found["callsheet_node_capacity", manager.node_id, "cpu"] == 1
    assert found["callsheet_refusals_total", "NOT_FOUND"] == 1
    assert found["callsheet_messages_total", "read", "Explain"] == 1
    assert found["callsheet_messages_total", "written", "ManagerSession"] >= 2
    assert found["callsheet_open_jobs",] == 1
    assert (step["actions/generate"], step["failures/env"], step["tokens/generated"]) == (3, 1, 8)
    told = {
        name: found["callsheet_cost_total", "generate", "used", f"tokens_{name}"] for name in ("in", "out", "cached")
    }
    assert (told["in"] + told["cached"], told["out"]) == (2 + 3, 8)
    assert told["cached"] == step["used/tokens_cached"] > 0
    assert (step["used/tokens_in"], step["used/tokens_out"]) == (told["in"], 8)
    assert step["time_s/generation"] > 0


def _issue(tokens: TokenFile, scope: Scope, subject: str = "") -> str:
    chance = secrets.token_bytes(ID_BYTES + SECRET_BYTES)
    token, record = issue_token(scope, subject, random=chance, now=time.time())
    tokens.change(lambda records: records.update({record.token_id: record}))
    return token


@asynccontextmanager
async def _server(access: AccessSettings, refused: list[RefusalCode] | None = None) -> AsyncIterator[str]:
    async def scrape() -> bytes:
        return b"page\n"

    server = MetricsServer(scrape, access, ([] if refused is None else refused).append)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(_WAIT_S):
            yield await tasks.start(partial(server.serve, "127.0.0.1:0"))
        tasks.cancel_scope.cancel()


async def _status(url: str, token: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        return answer.status


async def test_with_tokens_the_page_is_for_those_who_may_look(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    told = {scope: _issue(tokens, scope, "x" if scope in OF_ONE_SUBJECT else "") for scope in Scope}
    refused: list[RefusalCode] = []
    async with _server(AccessSettings(tokens=tokens.path), refused) as url:
        statuses = {scope: await _status(url, token) for scope, token in told.items()}
        assert statuses == {scope: 200 if scope in (Scope.ADMIN, Scope.READ_ONLY) else 403 for scope in Scope}
        assert (await _status(url), await _status(url, "no token")) == (401, 401)
    assert sorted(refused) == [RefusalCode.PERMISSION_DENIED] * (len(Scope) - 2) + [RefusalCode.UNAUTHENTICATED] * 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:9464"}, 200),
        ({"Host": "prometheus.example"}, 200),
        ({"Host": "page.example"}, 403),
        ({"Host": "localhost", "Origin": "http://page.example"}, 403),
        ({"Host": "localhost", "origin": "null"}, 403),
    ],
)
async def test_web_pages_do_not_see_the_page(headers: dict[str, str], status: int) -> None:
    async with (
        _server(AccessSettings(host_names="prometheus.example, other")) as url,
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url) as answer,
    ):
        assert (answer.status, await answer.read() == b"page\n") == (status, status == 200)


async def test_with_a_certificate_the_page_is_encrypted(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with _server(AccessSettings(tmp_path / "cert.pem", tmp_path / "key.pem")) as url:
        assert url.startswith("https://")
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
            assert await answer.read() == b"page\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"x" * (MAX_HEAD_BYTES + 1), 431),
        (b"\r\n\r\n", 404),
    ],
)
async def test_whatever_is_sent_has_an_answer(sent: bytes, status: int) -> None:
    async with _server(AccessSettings()) as url:
        stream = await anyio.connect_tcp("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
        async with stream:
            await stream.send(sent)
            assert (await stream.receive()).startswith(f"HTTP/1.1 {status} ".encode())


async def test_silent_callers_keep_nobody_out() -> None:
    async with _server(AccessSettings()) as url, AsyncExitStack() as silent:
        port = int(url.split(":")[2].partition("/")[0])
        for _ in range(MAX_CONNECTIONS + 20):
            await silent.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
