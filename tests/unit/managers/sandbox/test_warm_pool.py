"""Sandboxes that are ready, while several ask for them at once."""

from __future__ import annotations

from typing import Any

import anyio
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.provisioning.warm_pool import WarmPool

WAIT_S = 60.0


class Spare:
    """As much of a sandbox as a pool knows; its end takes until `may_end` is set."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.loss = None
        self.ending, self.may_end = anyio.Event(), anyio.Event()

    async def destroy(self) -> None:
        self.ending.set()
        await self.may_end.wait()


def spec(name: str, memory_mib: int) -> SandboxSpec:
    return SandboxSpec(name, memory_mib, 8, 16, frozenset())


async def test_another_kind_may_be_asked_for_while_room_is_made() -> None:
    made: list[Spare] = []
    ready = anyio.Event()

    async def make(wanted: SandboxSpec) -> Any:
        made.append(Spare(wanted))
        ready.set()
        return made[-1]

    pool = WarmPool(1024, make, lambda: False)
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as filling:
            # One that was asked for a single time is not kept ready.
            assert [await pool.take(spec(name, 64)) for name in ("one", "two")] == [None, None]
            filling.start_soon(pool.serve)
            await ready.wait()
            await anyio.wait_all_tasks_blocked()
            filling.cancel_scope.cancel()
        assert pool.ready == len(made) > 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.give_up, lambda: False)
            await made[0].ending.wait()
            assert await pool.take(spec("three", 128)) is None
            for spare in made:
                spare.may_end.set()
    assert pool.ready == 0
