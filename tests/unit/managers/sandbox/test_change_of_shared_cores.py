"""Other cores are shared while commands begin, or are being moved: all of them end up on the newest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.node_sharing import KnownCommand, Lane, NodeSharingSettings
from callsheet.managers.sandbox.sharing.shared_cores import SharedClock, SharedCores

pytestmark = pytest.mark.anyio

_FIRST, _SECOND, _THIRD = frozenset({0}), frozenset({1}), frozenset({2})


class _Sandbox:
    """Stands where a sandbox is, so that the moment of a change is the test's to choose."""

    lane = Lane.FOREGROUND

    def __init__(self) -> None:
        self.granted: list[frozenset[int]] = []
        self.changed = anyio.Event()
        self.go_on = anyio.Event()

    async def grant(self, cores: frozenset[int]) -> None:
        """Holds the caller up until `go_on`."""
        self.granted.append(cores)
        self.changed.set()
        await self.go_on.wait()

    async def set_lane(self, lane: Lane) -> None:
        del lane

    async def attained_s(self) -> float:
        return 0.0

    async def until_granted(self, times: int) -> None:
        while len(self.granted) < times:
            self.changed = anyio.Event()
            await self.changed.wait()


def _taking_part(
    shared: SharedCores, name: str, sandbox: _Sandbox, among: frozenset[int]
) -> AbstractAsyncContextManager[None]:
    given: Any = sandbox
    return shared.taking_part(KnownCommand(name, 1.0), cast("AgentSandbox", given), SharedClock(0.0), among)


@asynccontextmanager
async def _running(shared: SharedCores, sandbox: _Sandbox, among: frozenset[int]) -> AsyncIterator[None]:
    """A command that was put on its cores when `among` were shared, beside the loop that moves commands."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.serve)
            async with _taking_part(shared, "it", sandbox, among):
                yield
            tasks.cancel_scope.cancel()


async def test_a_change_while_commands_are_moved_is_followed_as_well() -> None:
    shared, sandbox = SharedCores(_FIRST, NodeSharingSettings()), _Sandbox()
    async with _running(shared, sandbox, _FIRST):
        shared.use(_SECOND)
        await sandbox.until_granted(1)
        shared.use(_THIRD)
        sandbox.go_on.set()
        await sandbox.until_granted(2)
    assert sandbox.granted == [_SECOND, _THIRD]


async def test_a_change_before_a_command_takes_part_is_followed() -> None:
    shared, sandbox = SharedCores(_FIRST, NodeSharingSettings()), _Sandbox()
    sandbox.go_on.set()
    shared.use(_SECOND)
    async with _running(shared, sandbox, _FIRST):
        await sandbox.until_granted(1)
    assert sandbox.granted == [_SECOND]


async def test_a_command_that_is_where_it_belongs_is_left_alone() -> None:
    shared, sandbox = SharedCores(_FIRST, NodeSharingSettings()), _Sandbox()
    sandbox.go_on.set()
    async with _running(shared, sandbox, _FIRST):
        shared.use(_SECOND)
        await sandbox.until_granted(1)
        # The loop looks at all of them when another one comes.
        async with _taking_part(shared, "another", _Sandbox(), _SECOND):
            await anyio.wait_all_tasks_blocked()
    assert sandbox.granted == [_SECOND]
