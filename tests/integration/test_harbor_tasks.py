"""A few of the tasks of examples/harbor, in both formats; `make harbor-tasks` runs all of them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Command, GatewayAccess
from callsheet.environments import load_task_set
from callsheet.environments.bash_replies import bash_call
from callsheet.environments.harbor import HarborAgent, HarborEnvironment, nothing, oracle
from callsheet.environments.harbor.folders import read_task

from tests.support.harbor_stack import TASKS, harbor_stack, scores_of

FEW = ("answer-questions", "rename-files", "three-files")
SOLVED = 'for name in one two three; do echo "$name" >"$name"; done'


async def test_a_few_tasks(tmp_path: Path) -> None:
    """One stack for all of it."""
    with anyio.fail_after(180):
        async with harbor_stack(tmp_path) as client:
            await an_oracle_scores_one_and_who_does_nothing_scores_zero(client)
            await a_reply_is_run_until_the_time_is_over(client)
            await an_agent_finds_its_instruction(client)
            await nothing_left_running_reads_the_tests_or_writes_the_reward(client)


async def an_oracle_scores_one_and_who_does_nothing_scores_zero(client: Client) -> None:
    task_set = load_task_set("harbor", path=str(TASKS), network="none")
    solved = await scores_of(client, "oracle", task_set, oracle, FEW)
    assert solved == {name: pytest.approx(1.0) for name in FEW}
    assert await scores_of(client, "nothing", task_set, nothing, FEW) == dict.fromkeys(FEW, 0.0)


async def a_reply_is_run_until_the_time_is_over(client: Client) -> None:
    now = [100.0]
    environment = HarborEnvironment(read_task(TASKS / "three-files"), clock=lambda: now[0])
    async with await client.open_job("replies") as job, job.trajectory("t") as trajectory:
        assert "Make three files" in str((await environment.reset(trajectory)).messages[0]["content"])
        # What is planted where tests and rewards lie is gone before the tests.
        planted = "mkdir -p /tests; echo 1 >/logs/verifier/reward.txt; ln -s /srv /tests/link; echo one >one; pwd"
        answer = await environment.step(trajectory, bash_call(Command.shell(planted), 30.0, "1"))
        assert str(answer.messages[0]["content"]).startswith("/srv\n")
        assert not answer.done
        now[0] += 200.0
        late = await environment.step(trajectory, bash_call(Command.shell("echo two >two"), 30.0, "2"))
        assert late.done
        assert "seconds of this task are over" in str(late.messages[0]["content"])
        score = await environment.reward(trajectory)
        assert score.value == pytest.approx(1 / 3, abs=1e-5)
        assert score.components["files"] == 1.0


async def an_agent_finds_its_instruction(client: Client) -> None:
    inner = HarborEnvironment(read_task(TASKS / "three-files"))
    agent = HarborAgent(inner, f'case $CALLSHEET_PROMPT in "Make three files"*) {SOLVED};; esac; exit 3')
    async with await client.open_job("agent") as job, job.trajectory("t") as trajectory:
        await agent.reset(trajectory)
        await agent.run(trajectory, GatewayAccess("http://127.0.0.1:1", "key", 0.0))
        assert (await agent.reward(trajectory)).value == pytest.approx(1.0)


async def nothing_left_running_reads_the_tests_or_writes_the_reward(client: Client) -> None:
    forging = (
        "while :; do cat /tests/* >>/srv/seen; mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt; "
        "echo '{\"reward\": 1}' >/logs/verifier/reward.json; done"
    )
    environment = HarborEnvironment(read_task(TASKS / "three-files"))
    async with await client.open_job("forging") as job, job.trajectory("t") as trajectory:
        await environment.reset(trajectory)
        left = f"({forging}) >/dev/null 2>&1 & setsid sh -c '{forging.replace(chr(39), chr(34))}' >/dev/null 2>&1 &"
        await environment.step(trajectory, bash_call(Command.shell(left), 30.0, "1"))
        assert (await environment.reward(trajectory)).value == 0.0
        seen = (await trajectory.env_step("ls -d /tests; cat /srv/seen; ps -A -o pid= 2>/dev/null | wc -l")).unwrap()
        assert b"right" not in seen.stdout
        assert b"/tests" not in seen.stdout
