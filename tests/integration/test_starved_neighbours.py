"""What a job made with little memory, disk, processes or time begins, and judges, nobody else's sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from callsheet.client import (
    Client,
    Command,
    Demand,
    EnvResetResult,
    Failed,
    Job,
    Reason,
    Retry,
    SandboxFile,
    Timeouts,
    Trajectory,
    Where,
)
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.sandbox.probe import probe_bubblewrap

from tests.support.real_sandboxes import sandbox_stack

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def jobs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Job, Job]]:
    """A job that is starved, and another one, of one manager."""
    layout = probe_layout()
    if not probe_bubblewrap().works or layout is None or not {"memory", "pids"} <= layout.controllers.keys():
        pytest.skip("nothing bounds memory and processes of sandboxes here")
    async with (
        sandbox_stack(tmp_path_factory.mktemp("stack")) as stack,
        Client(stack.address) as client,
        await client.open_job("starved") as starved,
        await client.open_job("other") as other,
    ):
        yield starved, other


def asked(memory: int = 256, disk: int = 32, processes: int = 64) -> dict[str, Any]:
    """Returns the options of a reset."""
    return {"demand": Demand(cpu=1, memory=memory), "disk_mib": disk, "max_processes": processes}


async def began(job: Job, sizes: dict[str, Any], name: str, set_up: str) -> tuple[Trajectory, EnvResetResult]:
    """Begins a trajectory; its set-up is that of the same test, as the first word of its name says."""
    trajectory = job.trajectory(name)
    await trajectory.open()
    files = {"test": name.split("/", maxsplit=1)[0]}
    return trajectory, (await trajectory.env_reset(set_up=Command.shell(set_up), files=files, **sizes)).unwrap()


OTHERWISE = " 2>/dev/null && echo whole >built || { rm -f big; echo part >built; }"
EATS = "python3 -c 'bytes(bytearray(100 << 20))'"
FILLS = "head -c 20000000 /dev/urandom >big"
FORKS = (
    "python3 -c 'import os, time\nfor _ in range(20): os.fork() or time.sleep(0.3) or os._exit(0)\n"
    "for _ in range(20): os.wait()'"
)
PLENTY = asked()
SET_UPS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "memory": (EATS + OTHERWISE, asked(memory=48)),
    "a disk": (FILLS + OTHERWISE, asked(disk=8)),
    "a disk that is full": (f"{FILLS} 2>/dev/null && echo whole >built || :", asked(disk=8)),
    "a disk, as a program says": (FILLS + OTHERWISE.replace("2>/dev/null", ""), asked(disk=8)),
    "processes": (FORKS + OTHERWISE, asked(processes=8)),
    "memory, beside more disk": (EATS + OTHERWISE, asked(memory=48, disk=64, processes=128)),
}


@pytest.mark.parametrize("name", SET_UPS)
async def test_a_starved_set_up_begins_no_sandbox_that_has_more(jobs: tuple[Job, Job], name: str) -> None:
    set_up, starved = SET_UPS[name]
    for number in range(2):
        _, made = await began(jobs[0], starved, f"{name}/{number}", set_up)
        # Where nothing tells that a limit was met, only its size is known.
        assert not made.set_up_reused or name == "a disk"
    for reused in (False, True):
        trajectory, made = await began(jobs[1], PLENTY, f"{name}/{reused}", set_up)
        built = (await trajectory.env_step("cat built")).unwrap().stdout
        assert (built, made.set_up_reused) == (b"whole\n", reused)


async def test_what_had_plenty_begins_the_sandbox_of_who_asks_for_less(jobs: tuple[Job, Job]) -> None:
    """Signals are met by no smaller sandbox, and are kept for nobody."""
    for script, reuses in (("echo whole >built", True), ("sh -c 'kill -9 $$'; echo part >built", False)):
        for number, sizes in enumerate((PLENTY, asked(memory=64), asked(disk=8, processes=16), asked(memory=257))):
            _, made = await began(jobs[number % 2], sizes, f"plenty{reuses}/{number}", script)
            assert made.set_up_reused == (reuses and number in {1, 2})


# As many tests as the state has, one of which passes; the state after reset takes 60 MiB, and seconds if told to.
JUDGE = b"""
import json, os, sys, time
if not os.path.exists("light"):
    bytes(bytearray(60 << 20))
    time.sleep(float(sys.argv[2]))
if os.path.exists("broken"):
    sys.exit(3)
there = len(open("tests").read().split())
json.dump({"score": 1 / there, "passed": 1, "failed": there - 1}, open(sys.argv[1], "w"))
"""
THREE = "echo a b c >tests"


async def scored(trajectory: Trajectory, script: str, where: Where, seconds: int, **options: Any) -> float | str:
    """Returns the score of a policy that runs a script, or why there is none."""
    (await trajectory.env_step(script)).unwrap()
    outcome = await trajectory.reward_script(
        Command.shell(f"python3 -I j/judge.py {{score}} {seconds}"),
        files=[SandboxFile("j/judge.py", JUDGE)],
        where=where,
        retry=Retry(max_attempts=1),
        **options,
    )
    if not isinstance(outcome, Failed):
        return outcome.unwrap().score
    assert (outcome.reason is Reason.TESTS_UNCHECKED) == ("the number of tests was not checked" in outcome.message)
    return f"{outcome.kind.value} {outcome.reason.value}"


STARVED: Mapping[str, tuple[dict[str, Any], str, int, dict[str, Any]]] = {
    "memory": (asked(memory=32), THREE, 0, {}),
    "memory of the reward": (PLENTY, THREE, 0, {"demand": Demand(cpu=1, memory=32)}),
    "time": (PLENTY, THREE, 8, {"timeouts": Timeouts(start_to_close_s=4)}),
    "a set-up": (asked(48), f"{EATS} && {THREE} || echo a >tests", 0, {"demand": Demand(cpu=1, memory=512)}),
    "a disk of a set-up": (
        asked(disk=8),
        f"{FILLS} && {THREE} || {{ rm -f big; echo a >tests; }}",
        0,
        {"demand": Demand(cpu=1, memory=512)},
    ),
}


@pytest.mark.parametrize("where", [Where.FRESH, Where.IN_SANDBOX])
@pytest.mark.parametrize("name", STARVED)
async def test_a_starved_run_on_the_state_after_reset_judges_nobody_else(
    jobs: tuple[Job, Job], name: str, where: Where
) -> None:
    sizes, set_up, seconds, options = STARVED[name]
    trajectory, _ = await began(jobs[0], sizes, f"{name} {where}/starved", set_up)
    assert await scored(trajectory, "touch light", where, seconds, **options) == "env tests_unchecked"
    for script, verdict in (
        ("touch light; echo a >tests", "policy tests_missing"),
        ("touch light broken", "policy script_failed"),
        ("touch light", 1 / 3),
    ):
        trajectory, _ = await began(jobs[1], PLENTY, f"{name} {where}/{verdict}", set_up)
        assert await scored(trajectory, script, where, seconds) == verdict
