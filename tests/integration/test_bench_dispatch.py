"""The dispatch benchmark, as small as it gets: that it runs and reports, not what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from callsheet.benchmarks.dispatch.callsheet_load import CallsheetLoad
from callsheet.benchmarks.dispatch.loops import CEILING_P99_MS, OpenLoad
from callsheet.benchmarks.dispatch.settings import DispatchSettings, MeasuredKind
from callsheet.benchmarks.measuring.actions import NotMeasurableError
from callsheet.benchmarks.measuring.machine import filesystem_of, fsync_p50_us
from callsheet.client import (
    Failed,
    FailureKind,
    Reason,
)
from callsheet.client.testing import FakeClient

from tests.support.waiting import until

_DEADLINE_S = 60.0
_BENCHMARK_S = 280


@pytest.mark.anyio
async def test_a_load_that_does_not_succeed_says_so() -> None:
    client = FakeClient()
    client.on_tool_call(lambda _: Failed(kind=FailureKind.INFRA, reason=Reason.MANAGER_LOST))
    load = CallsheetLoad(await client.open_job("load"), "seeded")
    with pytest.raises(NotMeasurableError, match=r"did not succeed: .*manager_lost"):
        await load.one()


def test_the_disk_is_described(tmp_path: Path) -> None:
    assert filesystem_of(tmp_path)
    assert fsync_p50_us(tmp_path, samples=3) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one has a core of its own, which takes two")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("noop --managers=3 --climb --own-core", marks=pytest.mark.nightly),
        "env_step",
        pytest.param("env_reset", marks=pytest.mark.nightly),
        pytest.param("generate", marks=pytest.mark.nightly),
        pytest.param("chat", marks=pytest.mark.nightly),
    ],
)
def test_every_kind_tells_what_an_action_costs(arguments: str) -> None:
    kind, *more = arguments.split()
    # A rate that is far too high, so that the climb is short.
    rate = 10 if kind != "noop" else 5000
    sizes = (f"--kind={kind}", *more, "--alone", "--in-flight=2", f"--open-loop={rate}", "--seconds=0.5")
    command = [sys.executable, "-m", "callsheet.cli.main", "bench", "dispatch", *sizes, "--isolation=none", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BENCHMARK_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sizes_found = [(each["loop"], each["size"]) for each in found["loops"]]
    assert sizes_found[:2] == [("closed", 2), ("open", rate)]
    assert all(each["p99_ms"] < CEILING_P99_MS for each in found["loops"][1:-2])
    gateway = {"gateway"} if kind == "chat" else set()
    for loop in found["loops"]:
        assert loop["actions"] > 0
        assert loop["p50_ms"] > 0
        # In a flood one message has many actions, and the two of the closed loop may share theirs.
        assert loop["messages"] >= (1 if loop["loop"] == "closed" else 0.01)
        assert set(loop["cpu_ms"]) == {"scheduler", "manager", "client", "rest"} | gateway
        assert {"scheduler", "manager", "client"} | gateway <= set(loop["system_calls"])
        assert loop["wake_ups"]["scheduler"] > 0


def test_several_managers_are_for_no_ops_alone() -> None:
    with pytest.raises(ValueError, match="managers: 2 must be 1 for chat"):
        DispatchSettings(kind=MeasuredKind.CHAT, managers=2)
    with pytest.raises(ValueError, match="open_loop"):
        DispatchSettings(open_loop=(0,))


@pytest.mark.anyio
async def test_an_open_loop_leaves_out_what_it_cannot_begin() -> None:
    stuck = anyio.Event()

    async def one(lane: int) -> float:
        await stuck.wait()
        return 0.0

    load = OpenLoad(one, lanes=2, rate=1000.0, seed=1)
    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            await until(lambda: load.left_out >= 3)
            load.stopping = True
            stuck.set()
    assert len(load.took) >= 1000


# Ray alone takes most of it, minutes on a machine that is busy otherwise; without Ray each kind is measured above.
@pytest.mark.nightly
@pytest.mark.timeout(_BENCHMARK_S + 10)
def test_the_whole_benchmark_prints_one_object() -> None:
    pytest.importorskip("ray", reason="ray is missing (extra bench)")
    sizes = (
        "--actions=200",
        "--window=20",
        "--in-flight=2",
        "--open-loop=20",
        "--seconds=0.5",
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
    for key in ("actions_per_s", "ray_tasks_per_s", "ray_actor_calls_per_s"):
        assert found[key] > 0
    assert found["idle_p50_us"] > 0
    assert found["raw_two_hops_p50_us"] > 0
    assert found["burst_refused"] == 0
    assert found["seed"] == 3
    assert set(found["cpu_us_per_action"]) == {"client", "scheduler", "manager"}
    assert len(found["loops"]) == 2
    assert "measuring Ray" in done.stderr
