"""The examples, as a newcomer runs them: with a whole stack, by the interpreter, from the repository."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from callsheet.client import Client, Sampling
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import STANDARD_MANAGERS, StackSettings
from callsheet.environments import TokenPolicy
from callsheet.environments.seats import Seat, SeatSettings, fill_seats
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from examples.trl_grpo import MOST_TOKENS, Letters
from tests.support.hf_models import save_model, seeded_model

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
_EXAMPLES = Path(__file__).parents[2] / "examples"
_DEADLINE_S = 280.0


def settings(data_dir: Path, *roles: Role) -> StackSettings:
    """A stack at the address that examples expect, if it is free; they are told by the environment otherwise."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    return StackSettings(data_dir, managers=roles or STANDARD_MANAGERS, given={"isolation": isolation})


def with_model(stack_settings: StackSettings, model: str) -> StackSettings:
    """The same with a model of one's own."""
    return replace(stack_settings, given={**stack_settings.given, "model": model})


async def start(name: str, address: str, *arguments: str) -> Process:
    """Starts an example."""
    environment = os.environ | {"CALLSHEET_SCHEDULER": address}
    return await anyio.open_process([sys.executable, str(_EXAMPLES / name), *arguments], env=environment, stderr=None)


async def lines_of(process: Process) -> list[str]:
    """All that it prints."""
    assert process.stdout is not None
    text = "".join([part async for part in TextReceiveStream(process.stdout)])
    await process.wait()
    return text.splitlines()


async def test_hello(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path)) as stack, await start("hello.py", stack.address) as example:
            lines = await lines_of(example)
    assert example.returncode == 0
    assert [line.split(":")[0] for line in lines] == ["succeeded"] * 4


async def test_a_model_of_ones_own(tmp_path: Path) -> None:
    model = str(save_model(tmp_path / "mine", seeded_model(), eos=True))
    stack_settings = with_model(settings(tmp_path / "data", Role.INFERENCE), model)
    with anyio.fail_after(_DEADLINE_S):
        async with (
            local_stack(stack_settings) as stack,
            await start("own_model.py", stack.address, model) as example,
        ):
            lines = await lines_of(example)
    assert example.returncode == 0
    assert len([line for line in lines if "the same" in line]) == 3


async def test_graders_of_random_weights(tmp_path: Path) -> None:
    model = str(save_model(tmp_path / "mine", seeded_model(), eos=True))
    # Each has a core of its own, and the machine may have two.
    hosted = ["--memory-budget-mib", "64", "--no-test-suites"]
    for kind in ("judge", "teacher"):
        hosted += ["--model", f"{kind}={model},kind={kind}"]
    base = with_model(settings(tmp_path / "data", Role.INFERENCE, Role.REWARD), model)
    stack_settings = replace(base, arguments={Role.REWARD: hosted})
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(stack_settings) as stack, await start("graders.py", stack.address, model) as example:
            lines = await lines_of(example)
    assert example.returncode == 0
    told = dict(line.split(": ", 1) for line in lines)
    assert told["judge"] in ("score_missing", "no_verdict") or float(told["judge"]) >= 0.0
    # The teacher has the policy's weights.
    assert abs(float(told["teacher"].split()[0])) < 0.001


async def test_the_rewards_of_the_trl_example_are_not_constant(tmp_path: Path) -> None:
    """Its tasks and its limit of tokens, by a model of random weights, without TRL: siblings have unlike rewards."""
    model = save_model(tmp_path / "mine", seeded_model(), eos=True)
    stack_settings = with_model(settings(tmp_path / "data", Role.SANDBOX, Role.INFERENCE), str(model))
    task_set, renderer, sampling = Letters(), load_renderer(str(model)), Sampling(max_new_tokens=MOST_TOKENS)
    seeds = count()
    with anyio.fail_after(_DEADLINE_S):
        async with (
            local_stack(stack_settings) as stack,
            await Client.connect(stack.address) as client,
            await client.open_job("letters") as job,
        ):
            seats = [Seat(f"{task.task_id}/{n}", task.task_id, 8, task) for task in task_set.tasks() for n in range(8)]
            filled = await fill_seats(
                job,
                task_set,
                seats,
                lambda _: TokenPolicy(renderer, replace(sampling, seed=next(seeds))),
                settings=SeatSettings(),
            )
    scores = [each.record.score.value for each in filled if each.record.score is not None]
    shown = [(each.record.cut_replies, each.record.score, each.record.failure) for each in filled]
    assert sum(each.record.cut_replies for each in filled) < len(scores), shown
    assert len(set(scores)) > 1, shown


async def test_the_agent_loop(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings(tmp_path)) as stack, await start("agent_loop.py", stack.address) as example:
            lines = await lines_of(example)
    assert example.returncode == 0
    assert len([line for line in lines if "reward" in line]) == 6


async def test_many_trajectories_while_the_scheduler_is_killed(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with (
            local_stack(settings(tmp_path, Role.SANDBOX)) as stack,
            await start("many_trajectories.py", stack.address) as example,
        ):
            assert example.stdout is not None
            printed = ""
            killed = 0
            async for part in TextReceiveStream(example.stdout):
                printed += part
                if not killed and printed.count("\n") >= 320:
                    killed = stack.pid(Role.SCHEDULER)
                    stack.supervisor(Role.SCHEDULER).kill()
            await example.wait()
    assert killed
    assert example.returncode == 0
    steps = [tuple(line.split(" step ")) for line in printed.splitlines()]
    assert len(steps) == len(set(steps)) == 640
