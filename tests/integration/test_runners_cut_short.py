"""Runners that a signal or their time ends: one rule for suites and scripts, fresh or in the trajectory's sandbox.

The scripts of Harbor's tasks are among the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
from callsheet.client import BackgroundProcesses, Client, Failed, Job, Outcome, RewardResult, Timeouts, Where

from tests.support.real_sandboxes import sandbox_stack

IN, KILL = Where.IN_SANDBOX, BackgroundProcesses.KILL
# Each with the seconds that the reward may take.
ENDS = {
    "exit code": ("exit 137", 60.0),
    "signal": ("kill -9 $$", 60.0),
    "timeout": ("timeout 1 sleep 100 || exit", 60.0),
    "time": ("sleep 100", 8.0),
}
SHAPES: Mapping[str, tuple[str, Where]] = {
    "suite": ("%s", Where.FRESH),
    "suite, in the sandbox": ("%s", IN),
    "suite with a report": ("echo '<testsuite><testcase/></testsuite>' >{report}; %s", Where.FRESH),
    "script": ("echo 1 >{score}; %s", IN),
}


async def kind_of(job: Job, name: str, shape: str, script: str, limit_s: float) -> str:
    """Returns the kind of failure of a reward whose policy made the file `bad`."""
    frame, where = SHAPES[shape]
    async with job.trajectory(name) as trajectory:
        (await trajectory.env_reset()).unwrap()
        (await trajectory.env_step("touch bad")).unwrap()
        reward = trajectory.reward_script if "{score}" in frame else trajectory.reward_tests
        background = KILL if where is IN else None
        outcome: Outcome[RewardResult] = await reward(
            frame % script, where=where, background=background, timeouts=Timeouts(start_to_close_s=limit_s)
        )
        assert isinstance(outcome, Failed), outcome
        return outcome.kind.name


async def test_the_first_state_tells_who_is_at_fault(tmp_path: Path) -> None:
    found: dict[str, str] = {}

    async def find(job: Job, name: str, shape: str, script: str, limit_s: float) -> None:
        found[name] = await kind_of(job, name, shape, script, limit_s)

    expected: dict[str, str] = {}
    async with sandbox_stack(tmp_path) as stack, Client(stack.address) as client, await client.open_job("job") as job:
        for end, (script, limit_s) in ENDS.items():
            async with anyio.create_task_group() as tasks:
                for shape in SHAPES:
                    policys = "TIMEOUT" if end == "time" else "POLICY"
                    for first, kind in {script: "ENV", "exit 137": "ENV", "exit 3": policys, ":": policys}.items():
                        name = f"{end}, {shape}, and {first} after reset"
                        expected[name] = kind
                        both = f"if [ -e bad ]; then {script}; else {first}; fi"
                        tasks.start_soon(find, job, name, shape, both, limit_s)
    assert found == expected
