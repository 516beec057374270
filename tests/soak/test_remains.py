"""Servers that are killed in the middle of their work: their next start clears all that they left on the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.client import ToolCall, Unservable
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap

from tests.support.measurements import Measured
from tests.support.mortal_processes import (
    MortalRole,
    Remains,
    World,
    at_work,
    left,
    lives,
    mortal_process,
    registered,
    sandboxes_left,
)
from tests.support.mortal_roles import ROLES, write_inputs
from tests.support.samples import sampled
from tests.support.servers import postgres_server, redis_server
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ROLE = {each.name: each for each in ROLES}
# They wait for their limits: in `make test` one server and one manager do so for all.
SILENT = sampled(ROLES, by_day=[ROLE["e2b"], ROLE["tools"]])


@asynccontextmanager
async def world_of(role: MortalRole, directory: Path) -> AsyncIterator[tuple[World, Stack]]:
    """What a role needs: its inputs, and a scheduler with the managers that its work asks for."""
    isolation = "bubblewrap" if probe_bubblewrap().works else "none"
    place = directory / role.name
    place.mkdir()
    write_inputs(role, place)
    given: dict[str, object] = {"isolation": isolation} if "sandbox" in role.beside else {}
    given |= {"engine": "scripted", "script": place / "script.json"} if "inference" in role.beside else {}
    async with local_stack(StackSettings(directory / "beside", managers=role.beside, given=given)) as stack:
        yield World(place, stack.address, isolation), stack


# By day one that leaves processes, groups and files, and one that leaves trajectories.
@pytest.mark.parametrize("role", sampled(ROLES, by_day=[ROLE["sandbox"], ROLE["e2b"]]), ids=lambda role: role.name)
async def test_what_kills_leave_is_gone_with_the_next_start(
    role: MortalRole, nightly: bool, measured: Measured, tmp_path: Path
) -> None:
    started, kills = list[psutil.Process](), 10 if nightly else 1
    async with world_of(role, tmp_path) as (world, _):
        for number in range(kills):
            async with mortal_process(role, world) as process, at_work(role, world, number):
                started += await process.kill()
        killed = left(world, role, started)
        if found := await sandboxes_left(role, world):
            killed["open trajectories"] = found
        async with mortal_process(role, world) as process:
            await registered(role, world)
            assert not any(map(lives, started))
            assert await sandboxes_left(role, world) == []
            await process.end(role.limit_s)
            assert process.process.returncode == 0
        at_end = left(world, role, started)
    measured(f"{kills} kills left {counted(killed)}; {counted(at_end)} after the next start and its end")
    assert at_end == {}, killed


def counted(remains: Remains) -> str:
    """How many of each kind."""
    return ", ".join(f"{len(each)} {kind}" for kind, each in remains.items()) or "nothing"


@contextmanager
def silent(pids: Iterable[int]) -> Iterator[None]:
    """Has processes answer nothing for the length of a `with` block, with their connections open."""
    for pid in (frozen := list(pids)):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("role", SILENT, ids=lambda role: role.name)
async def test_it_ends_in_time_when_nothing_else_answers(role: MortalRole, measured: Measured, tmp_path: Path) -> None:
    async with world_of(role, tmp_path) as (world, stack):
        async with mortal_process(role, world) as process:
            await registered(role, world)
            async with at_work(role, world, 0):
                below = [each.pid for each in process.below()[1:]]
                with silent([*below, *(stack.pid(name) for name in (Role.SCHEDULER, *role.beside))]):
                    took_s = await process.end(role.limit_s)
        await until(lambda: not left(world, role, ()).get("processes"))
    measured(f"ended {took_s:.1f} s after SIGTERM, within its {role.limit_s:g} s")


@pytest.mark.parametrize("store", sampled(["postgres", "redis"], by_day=["redis"]))
async def test_a_scheduler_ends_in_time_with_a_store_that_is_silent(
    store: str, measured: Measured, tmp_path: Path
) -> None:
    with postgres_server() if store == "postgres" else redis_server() as server:
        url = server if isinstance(server, str) else server.url
        place = url.rpartition("=" if store == "postgres" else "unix://")[2].removesuffix("/socket")
        option = "--database-url" if store == "postgres" else "--redis-url"
        role = replace(ROLES[0], words=lambda world: (*ROLES[0].words(world), option, url), work=do_nothing)
        world = World(tmp_path, "", "none")
        async with mortal_process(role, world) as process, at_work(role, world, 0):
            servers = [each for each in psutil.process_iter(["cmdline"]) if place in str(each.info["cmdline"])]
            servers += [below for each in servers for below in each.children()]
            with silent({each.pid for each in servers} - {os.getpid(), process.process.pid}):
                with anyio.move_on_after(1.0) as waiting:
                    await submit_once(world)
                assert waiting.cancelled_caught
                took_s = await process.end(role.limit_s)
    measured(f"ended {took_s:.1f} s after SIGTERM, within its {role.limit_s:g} s")


async def do_nothing(world: World) -> None:
    """There is an open job, and that is all."""


async def submit_once(world: World) -> None:
    """Something for the journal, and something for the payloads."""
    for content in (b"small", os.urandom(1 << 20)):
        await world.open_job.submit(ToolCall("nobody", "call", content), unservable=Unservable.WAIT)
