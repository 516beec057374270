"""One process of a manager for several servers of engines: each is an engine of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, ClientOptions, Sampling, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.deploy.tokens import token_path
from callsheet.scheduler.access.settings import AccessSettings

from tests.support.contract_http import running
from tests.support.contract_sglang import ContractSGLang
from tests.support.ports import free_port
from tests.support.served_subjects import contract_engine
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
_SAMPLING = Sampling(max_new_tokens=4, seed=1)


async def _engines(admin: AdminClient) -> dict[str, bool]:
    """The registered managers, and whether each takes generations."""
    status = await admin.status()
    return {each.manager_id.rpartition("-")[2]: each.connected for each in status.managers}


def _administrator(place: Path) -> ClientOptions:
    return ClientOptions(token=token_path(place / "data", "admin").read_text().strip())


async def test_each_server_is_an_engine_and_one_that_dies_leaves_the_other(tmp_path: Path) -> None:
    first, second = (ContractSGLang(contract_engine(tmp_path)) for _ in range(2))
    async with running(first), running(second):
        settings = StackSettings(
            tmp_path / "data",
            access=AccessSettings(tokens=tmp_path / "tokens.json"),
            managers=("inference",),
            given={"engine": "sglang", "url": (first.url, second.url)},
            cpus=1,
        )
        with anyio.fail_after(_WAIT_S):
            async with (
                local_stack(settings) as stack,
                Client(stack.address, _administrator(tmp_path)) as client,
                AdminClient(stack.address, _administrator(tmp_path)) as admin,
            ):
                await until_so(lambda: _engines(admin), lambda it: len(it) >= 2, every_s=0.05)
                assert set(await _engines(admin)) == {"inference#0", "inference#1"}
                async with await client.open_job("j") as job:
                    outcomes = [await job.generate([1, 2, 3], _SAMPLING) for _ in range(3)]
                    assert all(isinstance(each, Succeeded) for each in outcomes)
                    await first.die()
                    assert isinstance(await job.generate([1, 2], _SAMPLING), Succeeded)
                    assert first.calls
                    assert second.calls


async def test_a_server_that_never_came_holds_nobody_up(tmp_path: Path) -> None:
    server = ContractSGLang(contract_engine(tmp_path))
    async with running(server), local_stack(StackSettings(tmp_path / "data", managers=())) as stack:
        command = [sys.executable, "-m", "callsheet.cli.main", "manager", "inference", "--engine", "sglang"]
        command += ["--scheduler", stack.address, "--url", server.url, "--url", f"http://127.0.0.1:{free_port()}"]
        with anyio.fail_after(_WAIT_S):
            async with AdminClient(stack.address) as admin, await anyio.open_process(command, stdout=None) as process:
                await until_so(lambda: _engines(admin), every_s=0.05)
                process.terminate()
                assert await process.wait() == 0
