"""The client against a real scheduler with a real no-op manager, each in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.client_suite import ClientSuite, SchedulerUnderTest, client, job

__all__ = ["client", "job"]  # fixtures


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SchedulerUnderTest]:
    data_dir = tmp_path_factory.mktemp("scheduler")
    settings = StackSettings(data_dir, managers=(Role.NOOP,))
    async with local_stack(settings) as stack:
        yield SchedulerUnderTest(stack.address, "noop")


class TestAgainstScheduler(ClientSuite):
    """The whole suite."""
