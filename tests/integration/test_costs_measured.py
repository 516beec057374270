"""What a trajectory is told to have used and held, against the kernel's own counter and the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import torch
from callsheet.client import (
    Client,
    Command,
    Cost,
    Demand,
    Failed,
    GenerateResult,
    Outcome,
    Sampling,
    Succeeded,
    Timeouts,
)
from callsheet.client.admin import AdminClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.measurements import Measured

pytestmark = pytest.mark.anyio
on_gpu = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))
with_groups = pytest.mark.skipif(probe_layout() is None, reason="there are no control groups to compare with")
BURN = "python3 -c 'import time\nwhile time.process_time() < {}: pass'"
MOST_OFF = 0.01


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    settings = StackSettings(
        tmp_path,
        managers=(Role.SANDBOX,),
        cpus=2,
        given={"isolation": isolation},
        arguments={Role.SCHEDULER: ("--price", "cpu=2", "--price", "memory=0.5")},
    )
    async with local_stack(settings) as stack:
        yield stack


def group_above(told: bytes) -> Path:
    """The version 2 group above that of a process, as its /proc/self/cgroup tells it: that of all commands."""
    (path,) = [line.removeprefix("0::") for line in told.decode().splitlines() if line.startswith("0::")]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    (point,) = [mount[1] for mount in mounts if mount[2] == "cgroup2"]
    return Path(point) / path.lstrip("/").rpartition("/")[0]


def cpu_s(group: Path) -> float:
    """Seconds that the kernel counted."""
    counted = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(counted["usage_usec"]) / 1e6


@with_groups
async def test_processor_time_is_that_of_the_groups_within_one_percent(stack: Stack, measured: Measured) -> None:
    async with Client(stack.address) as client, await client.open_job("job") as job, job.trajectory("t") as trajectory:
        began = anyio.current_time()
        reset = await trajectory.env_reset(demand=Demand(memory=512))
        reset.unwrap()
        group = group_above((await trajectory.env_step(Command.shell("cat /proc/self/cgroup"))).unwrap().stdout)
        counted, told = cpu_s(group), (await trajectory.status()).cost
        outcomes = [
            await trajectory.env_step(Command.shell(BURN.format(0.8))),
            # Two at once, and one that nobody waits for.
            await trajectory.env_step(
                Command.shell(f"{BURN.format(0.5)} & {BURN.format(0.5)} & wait; exit 3"), demand=Demand(cpu=2)
            ),
            await trajectory.env_step(Command.shell("while :; do :; done"), timeouts=Timeouts(start_to_close_s=1.0)),
            await trajectory.env_step(Command.shell(BURN.format(0.4)), session="main"),
            # What a command leaves behind goes on while others run.
            await trajectory.env_step(Command.shell(f"{BURN.format(9)} >&- 2>&- & sleep 0.5")),
            await trajectory.env_step(Command.shell("sleep 0.5")),
        ]
        counted, status = cpu_s(group) - counted, await trajectory.status()
        (of_job,) = [each.cost for each in await client.jobs()]
        summary, took_s = job.step_summary(), anyio.current_time() - began
    assert isinstance(outcomes[2], Failed), outcomes
    assert all(isinstance(each, Succeeded) for each in outcomes if each is not outcomes[2]), outcomes
    assert outcomes[-1].usage.cost.used["cpu"] > 0.01
    used = status.cost.used["cpu"] - told.used.get("cpu", 0.0)
    assert used == pytest.approx(sum(each.usage.cost.used["cpu"] for each in outcomes), rel=1e-9)
    measured(f"told {used:.4f} core-seconds, the kernel {counted:.4f}: {100 * (used / counted - 1):+.2f} %")
    assert used == pytest.approx(counted, rel=MOST_OFF)
    # What the cost of a whole is made of, in each place that tells it.
    held = outcomes[1].usage.cost.held["cpu"]
    assert held == pytest.approx(2 * outcomes[1].timeline.execution_s)
    assert held > outcomes[1].usage.cost.used["cpu"]
    assert status.cost.used["cpu"] == of_job.used["cpu"]
    # Half a GiB while something ran, less at rest, and nothing twice.
    ran_s = sum(each.timeline.execution_s for each in (reset, *outcomes))
    assert 0.5 * ran_s < status.cost.held["memory"] < 0.5 * took_s
    assert 0.0 < status.cost.used["memory"] < status.cost.held["memory"]
    assert summary["used/cpu"] == pytest.approx(status.cost.used["cpu"])
    in_money = 2 * summary["held/cpu"] + 0.5 * summary["held/memory"]
    assert (
        summary["money"]
        == pytest.approx(in_money)
        == pytest.approx(
            Cost({"cpu": summary["held/cpu"], "memory": summary["held/memory"]}).money({"cpu": 2.0, "memory": 0.5})
        )
    )


@with_groups
async def test_the_same_reward_on_the_state_after_reset_costs_what_it_used(stack: Stack) -> None:
    burnt = f"{BURN.format(0.3)}; exit 3; : {{score}}"
    async with Client(stack.address) as client, await client.open_job("job") as job, job.trajectory("t") as trajectory:
        (await trajectory.env_reset(demand=Demand(memory=256))).unwrap()
        first, again = [await trajectory.reward_script(burnt) for _ in range(2)]
    assert isinstance(first, Failed), first
    # It is made once, by the first who needs it.
    assert first.usage.cost.used["cpu"] == pytest.approx(0.6, rel=0.2)
    assert again.usage.cost.used["cpu"] == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        pytest.param({"engine_option": ("device=cuda",)}, 1, marks=on_gpu, id="as the engine tells"),
        pytest.param({"engine_gpus": 4}, 4, id="as the operator tells"),
    ],
)
async def test_gpu_seconds_are_the_wall_time_of_the_engine_times_its_gpus(
    given: dict[str, object], gpus: int, tmp_path: Path, measured: Measured
) -> None:
    # Where it counts it lasts, as the way there and back is the scheduler's time.
    new_tokens, least = (64, 0.0) if "engine_gpus" in given else (600, 1 - MOST_OFF)
    settings = StackSettings(
        tmp_path,
        managers=(Role.INFERENCE,),
        given=given,
        arguments={Role.SCHEDULER: ("--price", "gpu=3")},
    )
    sampling = Sampling(max_new_tokens=new_tokens, ignore_eos=True)
    async with (
        local_stack(settings) as stack,
        Client(stack.address) as client,
        await client.open_job("job") as job,
        job.trajectory("t") as trajectory,
    ):
        (await trajectory.generate(range(5, 69), sampling)).unwrap()
        before, began = (await trajectory.status()).cost, anyio.current_time()
        outcomes: list[Outcome[GenerateResult]] = []

        async def generate(length: int) -> None:
            outcomes.append(await trajectory.generate(range(5, 5 + length), sampling))

        async with anyio.create_task_group() as tasks:
            for length in range(8, 72, 8):
                tasks.start_soon(generate, length)
        took_s, cost = anyio.current_time() - began, (await trajectory.status()).cost
        async with AdminClient(stack.address) as admin:
            in_money = cost.money(await admin.prices())
    assert all(isinstance(each, Succeeded) for each in outcomes), outcomes
    held = cost.held["gpu"] - before.held["gpu"]
    assert held == pytest.approx(sum(each.usage.cost.held["gpu"] for each in outcomes), rel=1e-9)
    wall = gpus * took_s
    measured(f"told {held:.4f} GPU-seconds, the clock {wall:.4f}: {100 * (held / wall - 1):+.2f} %")
    assert least * wall < held <= wall
    assert in_money == pytest.approx(3 * cost.held["gpu"])
