"""Verbs, options, handles and groups, alike in the fake, the async client and the sync client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from callsheet.client import (
    Client,
    CommandResult,
    EnvResetResult,
    Generate,
    GenerateResult,
    Outcome,
    RewardResult,
    Succeeded,
    SyncClient,
    ToolCallResult,
)
from callsheet.client.testing import FakeClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.threaded import Threaded
from tests.support.verb_suite import ENDLESS_PROMPT, VerbSuite, job

__all__ = ["job"]  # a fixture


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=(Role.NOOP,))
    async with local_stack(settings) as stack:
        yield stack.address


@pytest.fixture
def service() -> str:
    return "noop"


class TestScheduler(VerbSuite):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest, address: str) -> AsyncIterator[Any]:
        made: Any = Client(address) if request.param == "async" else Threaded(SyncClient(address))
        async with made as client:
            yield client


class TestFake(VerbSuite):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        fake = _scripted()
        async with fake if request.param == "async" else Threaded(SyncClient(fake)) as client:
            yield client


def _scripted() -> FakeClient:
    def ended(value: Any) -> Any:
        return lambda action: Succeeded(value, attempts=1, manager_id="fake")

    async def generate(action: Generate) -> Outcome[GenerateResult]:
        if list(action.prompt_token_ids) == ENDLESS_PROMPT:
            await anyio.sleep_forever()
        return Succeeded(GenerateResult((1,), (0.0,)), attempts=1, manager_id="fake")

    fake = FakeClient()
    fake.on_generate(generate)
    fake.on_env_reset(ended(EnvResetResult("sandbox")))
    fake.on_env_step(ended(CommandResult(0, b"out")))
    fake.on_tool_call(ended(ToolCallResult(b"response")))
    for on_reward in (
        fake.on_reward_tests,
        fake.on_reward_script,
        fake.on_reward_model,
        fake.on_teacher_log_probs,
        fake.on_judge,
    ):
        on_reward(ended(RewardResult(1.0)))
    return fake
