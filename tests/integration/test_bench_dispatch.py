"""The dispatch benchmark, as small as it gets: that it runs and reports, not what it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from callsheet.benchmarks.dispatch.callsheet_load import CallsheetLoad, LoadFailedError, counted_batches
from callsheet.benchmarks.dispatch.raw_streams import raw_servers, stream_items_per_s, two_hops_latencies
from callsheet.benchmarks.measuring.machine import filesystem_of, fsync_p50_us
from callsheet.benchmarks.measuring.statistics import percentile
from callsheet.client import (
    Client,
    Failed,
    FailureKind,
    Reason,
)
from callsheet.client.testing import FakeClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

_DEADLINE_S = 60.0
_BENCHMARK_S = 280


@pytest.mark.anyio
async def test_raw_streams_echo_and_relay() -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with raw_servers() as servers:
            latencies = await two_hops_latencies(servers, b"message", samples=5, warm_up=2)
            rate = await stream_items_per_s(servers, b"x" * 100, messages=20, batch_items=10, messages_in_flight=4)
    assert len(latencies) == 5
    assert percentile(latencies, 50) > 0
    assert rate > 0


@pytest.mark.anyio
async def test_a_load_counts_what_it_submits(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with (
            local_stack(StackSettings(tmp_path, managers=(Role.NOOP,))) as stack,
            Client(stack.address) as client,
        ):
            load = CallsheetLoad(await client.open_job("load"), "seeded")
            with counted_batches() as sent:
                assert await load.actions_per_s(50, in_flight=10) > 0
            assert 1 <= sent.messages <= 50
            assert sent.size_bytes > 50 * len("seeded-00000001")
            burst = await load.burst(100)
            assert burst.refused == 0
            assert len(await load.idle_latencies(3, warm_up=1)) == 3


@pytest.mark.anyio
async def test_a_load_that_does_not_succeed_says_so() -> None:
    client = FakeClient()
    client.on_tool_call(lambda _: Failed(kind=FailureKind.INFRA, reason=Reason.MANAGER_LOST))
    load = CallsheetLoad(await client.open_job("load"), "seeded")
    with pytest.raises(LoadFailedError, match=r"seeded-00000001 did not succeed: .*manager_lost"):
        await load.one()


def test_the_disk_is_described(tmp_path: Path) -> None:
    assert filesystem_of(tmp_path)
    assert fsync_p50_us(tmp_path, samples=3) > 0
    assert list(tmp_path.iterdir()) == []


# Ray alone takes most of it, minutes on a machine that is busy otherwise.
@pytest.mark.timeout(_BENCHMARK_S + 10)
def test_the_whole_benchmark_prints_one_object() -> None:
    pytest.importorskip("ray", reason="ray is missing (extra bench)")
    sizes = (
        "--actions=200",
        "--in-flight=20",
        "--repetitions=1",
        "--idle-samples=10",
        "--burst=200",
        "--ray-calls=40",
        "--seed=3",
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "callsheet.cli.main",
            "bench",
            "dispatch",
            "--json",
            *sizes,
        ],
        capture_output=True,
        text=True,
        timeout=_BENCHMARK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for key in ("actions_per_s", "ray_tasks_per_s", "ray_actor_calls_per_s", "raw_stream_items_per_s"):
        assert found[key] > 0
    assert found["idle_p50_us"] > 0
    assert found["raw_two_hops_p50_us"] > 0
    assert found["burst_refused"] == 0
    assert found["seed"] == 3
    assert set(found["cpu_us_per_action"]) == {"client", "scheduler", "manager"}
    assert "measuring Ray" in done.stderr
