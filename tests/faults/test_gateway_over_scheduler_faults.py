"""Calls through the gateway while the scheduler is stopped, killed and cut off: each is sampled once.

`CALLSHEET_FAULT_SEED` repeats a run that failed; the failure shows its seed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from callsheet.client import Trajectory
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack

from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.gateways import CHAT, RunningGateway, chat, running_gateway, scripted_stack_parts
from tests.support.stack_processes import kill_and_wait, start

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(320)]
_DEADLINE_S = 280.0
_TRAJECTORIES = 20
_CALLS = 10
_KILLS = 1


@contextmanager
def stopped(stack: Stack) -> Iterator[None]:
    """The scheduler hangs."""
    pid = stack.pid(Role.SCHEDULER)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def ask(gateway: RunningGateway, key: str, text: str, chance: random.Random, *, named: bool) -> int:
    """Sends a call as SDKs do, with less patience, until it has its reply; returns how often it was sent."""
    content = chat(text)
    for tries in range(1000):
        headers = {"x-stainless-retry-count": str(tries)} | ({"idempotency-key": text} if named else {})
        with suppress(aiohttp.ClientError, TimeoutError), anyio.fail_after(chance.uniform(0.2, 4.0)):
            answer = await gateway.post(CHAT, content, key, headers)
            if answer.status == 200:
                return tries + 1
            assert answer.status >= 500 or answer.status == 429, answer.body
        await anyio.sleep(chance.uniform(0.05, 0.5))
    raise AssertionError("unreachable within the deadline")


async def harm(stack: Stack, proxy: CuttingProxy, chance: random.Random, done: Counter[str]) -> None:
    """Stops, cuts off and kills the scheduler by chance, until it is cancelled."""
    while True:
        await anyio.sleep(chance.uniform(0.1, 0.8))
        fault = chance.choice(("stop", "stop", "cut", "kill" if done["kill"] < _KILLS else "cut"))
        if fault == "stop":
            with stopped(stack):
                await anyio.sleep(chance.uniform(0.3, 3.0))
        elif fault == "cut":
            proxy.cut()
        else:
            await kill_and_wait(stack, Role.SCHEDULER)
            await start(stack, Role.SCHEDULER)
        done[fault] += 1


async def test_each_call_is_sampled_once(tmp_path: Path, chance: random.Random) -> None:
    done: Counter[str] = Counter()
    sent: list[int] = []
    async with (
        scripted_stack_parts(tmp_path) as stack,
        cutting_proxy(stack.address) as proxy,
        running_gateway(proxy.address, "faults", tmp_path / "gateway", give_up_after_s=5.0) as gateway,
    ):
        trajectories = [gateway.job.trajectory(f"t{number}") for number in range(_TRAJECTORIES)]
        keys = [await _key(trajectory) for trajectory in trajectories]
        with anyio.fail_after(_DEADLINE_S):
            async with anyio.create_task_group() as faults:
                faults.start_soon(harm, stack, proxy, chance, done)
                async with anyio.create_task_group() as calls:
                    for number, key in enumerate(keys):
                        for call in range(_CALLS):
                            calls.start_soon(_late, gateway, key, f"dice {number}-{call}", chance, sent)
                faults.cancel_scope.cancel()
            for trajectory in trajectories:
                turns = (await trajectory.samples()).turns
                assert len(turns) == _CALLS, f"{trajectory.trajectory_id} has {len(turns)} turns of {_CALLS} calls"
    sys.stderr.write(f"{len(sent)} calls sent {sum(sent)} times over {dict(done)}\n")
    assert len(sent) == _TRAJECTORIES * _CALLS
    assert sum(sent) > len(sent)


async def _key(trajectory: Trajectory) -> str:
    await trajectory.open()
    return (await trajectory.gateway()).api_key


async def _late(gateway: RunningGateway, key: str, text: str, chance: random.Random, sent: list[int]) -> None:
    await anyio.sleep(chance.uniform(0.0, 15.0))
    sent.append(await ask(gateway, key, text, chance, named=chance.random() < 0.5))
