"""One contract, kept by the fake, the async client and the sync client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from callsheet.client import Client, SyncClient
from callsheet.client.testing import FakeClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.client_contract import ClientContract, job
from tests.support.faulty_client_service import FAST, FaultyClientService
from tests.support.faulty_servicers import serving
from tests.support.threaded import Threaded

__all__ = ["job"]  # a fixture


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=())
    async with local_stack(settings) as stack:
        yield stack.address


class TestFake(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        fake = FakeClient()
        async with fake if request.param == "async" else Threaded(SyncClient(fake)) as client:
            yield client


class TestFaultyService(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        async with serving(FaultyClientService()) as target:
            made: Any = Client(target, FAST) if request.param == "async" else Threaded(SyncClient(target, FAST))
            async with made as client:
                yield client


class TestScheduler(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest, address: str) -> AsyncIterator[Any]:
        made: Any = Client(address) if request.param == "async" else Threaded(SyncClient(address))
        async with made as client:
            yield client
