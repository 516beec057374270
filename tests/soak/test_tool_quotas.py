"""A provider that enforces its limits never sees more than it allows, and little of that is left: through the stack."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Job, Succeeded, Unservable
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.limited_provider import LimitedProvider, SlidingWindow, StrictBucket, serve_provider
from tests.support.measurements import Measured
from tests.support.servers import redis_server
from tests.support.tools_processes import tools_managers, write_tools
from tests.support.waiting import until

PER_MINUTE = 1200
BURST = 60
WAITING = 80
"""Calls that always wait or run: there is always one to make."""
LEAST_USED = 0.95
SETTLED_S = 3.0


async def keep_calling(job: Job, provider: LimitedProvider, seconds: float) -> list[object]:
    """Always has so many calls open, for so long from the first one that was accepted."""
    over, numbers, results = anyio.Event(), iter(range(10**9)), list[object]()

    async def call() -> None:
        while not over.is_set():
            results.append(await job.tool_call("search", f"GET {next(numbers)}", unservable=Unservable.WAIT))

    async with anyio.create_task_group() as tasks:
        for _ in range(WAITING):
            tasks.start_soon(call)
        await until(lambda: bool(provider.accepted))
        await anyio.sleep(seconds)
        over.set()
    return results


@pytest.mark.parametrize(
    ("counts", "managers"),
    [
        ("window", 3),
        # By day test_tools_manager.py counts a bucket.
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("window", 1), ("bucket", 1), ("bucket", 3))),
    ],
)
async def test_a_key_is_spent_to_its_limit_and_never_beyond(
    counts: str, managers: int, nightly: bool, measured: Measured, tmp_path: Path
) -> None:
    limit = SlidingWindow(PER_MINUTE) if counts == "window" else StrictBucket(PER_MINUTE / 60, BURST)
    seconds = 120.0 if nightly else 20.0
    provider = LimitedProvider(requests=limit, takes_s=0.05)
    burst = f"\nrequests_burst = {BURST}" if counts == "bucket" else ""
    shared = redis_server() if managers > 1 else nullcontext(None)
    with shared as redis_url:
        async with (
            serve_provider(provider),
            local_stack(StackSettings(tmp_path / "data", managers=())) as stack,
            Client(stack.address) as client,
            await client.open_job("j") as job,
        ):
            tools = write_tools(tmp_path, provider.url, f"requests_per_minute = {PER_MINUTE}{burst}")
            with tools_managers(managers, stack.address, tools, redis_url):
                results = await keep_calling(job, provider, seconds)
    begins, ends = provider.accepted[0] + SETTLED_S, provider.accepted[0] + seconds - SETTLED_S
    used = sum(begins <= at < ends for at in provider.accepted) / ((ends - begins) * PER_MINUTE / 60)
    measured(
        f"{counts}, {managers} managers, {seconds:g} s: {len(provider.accepted):,} calls, {used:.1%} used, "
        f"{provider.refused} refused for a limit"
    )
    assert all(isinstance(each, Succeeded) for each in results)
    assert provider.refused == 0
    assert used >= LEAST_USED
