"""What a job made with little memory, disk, processes or time begins, and judges, nobody else's sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from callsheet.managers.executor import Attempt, Broken, Completed
from callsheet.managers.sandbox.build import build_sandbox_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.settings import Isolation
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.sandbox_attempts import attempt_of, inline_file, reset, sh, step
from tests.support.sandboxes import Variant, settings_for, tells

pytestmark = pytest.mark.anyio


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[SandboxExecutor]:
    settings = settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path)
    if not (tells(settings, "memory") and tells(settings, "pids")):
        pytest.skip("no control groups bound memory and processes here")
    built = build_sandbox_executor(settings)
    yield built
    await built.close()


@dataclass(frozen=True)
class Asked:
    """Sizes of a sandbox."""

    memory: int = 256
    disk: int = 32
    processes: int = 64

    def reset(self, job: str, trajectory: str, set_up: str | None = None) -> Attempt:
        """Returns an attempt of a job."""
        action = reset(inline_file("given", b"given\n"), set_up=set_up, trajectory=trajectory)
        action.job_id = job
        action.env_reset.disk_mib, action.env_reset.max_processes = self.disk, self.processes
        return attempt_of(action, resources={"memory": self.memory})


async def done(executor: SandboxExecutor, attempt: Attempt) -> outcome_pb2.Succeeded:
    result = await executor.run(attempt)
    assert isinstance(result, Completed), result
    return result.succeeded


async def stepped(executor: SandboxExecutor, job: str, trajectory: str, sandbox_id: str, script: str) -> str:
    action = step(script, trajectory=trajectory)
    action.job_id = job
    return (await done(executor, attempt_of(action, sandbox_id=sandbox_id))).env_step.stdout.inline.decode()


OTHERWISE = " 2>/dev/null && echo whole >built || { rm -f big; echo part >built; }"
EATS = "python3 -c 'bytes(bytearray(100 << 20))'"
FILLS = "head -c 20000000 /dev/urandom >big"
FORKS = (
    "python3 -c 'import os, time\nfor _ in range(20): os.fork() or time.sleep(0.3) or os._exit(0)\n"
    "for _ in range(20): os.wait()'"
)
PLENTY = Asked()
SET_UPS: Mapping[str, tuple[str, Asked]] = {
    "memory": (EATS + OTHERWISE, Asked(memory=48)),
    "a disk": (FILLS + OTHERWISE, Asked(disk=8)),
    "a disk that is full": (
        f"{FILLS} 2>/dev/null && echo whole >built || :",
        Asked(disk=8),
    ),
    "a disk, as a program says": (FILLS + OTHERWISE.replace("2>/dev/null", ""), Asked(disk=8)),
    "processes": (FORKS + OTHERWISE, Asked(processes=8)),
    "memory, beside more disk": (EATS + OTHERWISE, Asked(memory=48, disk=64, processes=128)),
}


@pytest.mark.parametrize("name", SET_UPS)
async def test_a_starved_set_up_begins_no_sandbox_that_has_more(executor: SandboxExecutor, name: str) -> None:
    set_up, starved = SET_UPS[name]
    for trajectory in ("first", "second"):
        made = (await done(executor, starved.reset("starved", trajectory, set_up))).env_reset
        # Where nothing tells that a limit was met, only its size is known.
        assert not made.set_up_reused or name == "a disk"
    for trajectory, reused in (("third", False), ("fourth", True)):
        made = (await done(executor, PLENTY.reset("other", trajectory, set_up))).env_reset
        assert await stepped(executor, "other", trajectory, made.sandbox_id, "cat built") == "whole\n"
        assert made.set_up_reused == reused


async def test_what_had_plenty_begins_the_sandbox_of_who_asks_for_less(executor: SandboxExecutor) -> None:
    """Signals are met by no smaller sandbox, and are kept for nobody."""
    for script, reuses in (("echo whole >built", True), ("sh -c 'kill -9 $$'; echo part >built", False)):
        for number, asked in enumerate((PLENTY, Asked(memory=64), Asked(disk=8, processes=16), Asked(memory=257))):
            attempt = asked.reset(f"job{number}", f"{number}{reuses}", script)
            assert (await done(executor, attempt)).env_reset.set_up_reused == (reuses and number in {1, 2})


# As many tests as the state has, one of which passes; the state after reset takes 60 MiB and 3 s.
JUDGE = b"""
import json, os, sys, time
if not os.path.exists("light"):
    bytes(bytearray(60 << 20))
    time.sleep(3)
if os.path.exists("broken"):
    sys.exit(3)
there = len(open("tests").read().split())
json.dump({"score": 1 / there, "passed": 1, "failed": there - 1}, open(sys.argv[1], "w"))
"""
THREE = "echo a b c >tests"
PARTLY = f"{EATS} && {THREE} || echo a >tests"


async def scored(
    executor: SandboxExecutor, attempt: Attempt, script: str, *, in_sandbox: bool, memory: int = 0, limit_s: int = 0
) -> tuple[float, str]:
    """Returns the score of a policy that runs a script, or why there is none."""
    job, trajectory = attempt.action.job_id, attempt.action.trajectory_id
    sandbox_id = (await done(executor, attempt)).env_reset.sandbox_id
    await stepped(executor, job, trajectory, sandbox_id, script)
    where = action_pb2.REWARD_PLACE_IN_SANDBOX if in_sandbox else action_pb2.REWARD_PLACE_FRESH
    scorer = action_pb2.ScriptScoreInput(
        where=where, files=[inline_file("j/judge.py", JUDGE)], command=sh("python3 -I j/judge.py {score}")
    )
    action = action_pb2.ActionSpec(trajectory_id=trajectory, job_id=job, reward=action_pb2.RewardInput(script=scorer))
    action.timeouts.start_to_close.seconds = limit_s
    result = await executor.run(attempt_of(action, sandbox_id=sandbox_id, resources={"memory": memory}))
    if isinstance(result, Completed):
        return result.succeeded.reward.score, ""
    assert isinstance(result, Broken), result
    kind = outcome_pb2.FailureKind.Name(result.failed.kind).removeprefix("FAILURE_KIND_")
    assert result.failed.reason != "tests_unchecked" or "the number of tests was not checked" in result.failed.message
    return 0.0, f"{kind} {result.failed.reason}"


STARVED: Mapping[str, tuple[Asked, str, dict[str, int], str]] = {
    "memory": (Asked(memory=32), THREE, {}, "ENV tests_unchecked"),
    "memory of the reward alone": (PLENTY, THREE, {"memory": 32}, "ENV tests_unchecked"),
    "time": (PLENTY, THREE, {"limit_s": 1}, "ENV tests_unchecked"),
    "a starved set-up, and a reward with plenty": (
        Asked(memory=48),
        PARTLY,
        {"memory": 512},
        "ENV tests_unchecked",
    ),
}


@pytest.mark.parametrize("in_sandbox", [False, True], ids=["fresh", "in sandbox"])
@pytest.mark.parametrize("name", STARVED)
async def test_a_starved_run_on_the_state_after_reset_judges_nobody_else(
    executor: SandboxExecutor, name: str, *, in_sandbox: bool
) -> None:
    starved, set_up, sizes, expected = STARVED[name]
    told = await scored(executor, starved.reset("starved", "t", set_up), "touch light", in_sandbox=in_sandbox, **sizes)
    if not (in_sandbox and name.startswith("memory of the reward")):
        assert told[1] == expected
    for trajectory, script, verdict in (
        ("skips", "touch light; echo a >tests", (0.0, "POLICY tests_missing")),
        ("breaks", "touch light broken", (0.0, "POLICY script_failed")),
        ("honest", "touch light", (1 / 3, "")),
    ):
        attempt = PLENTY.reset("other", trajectory, set_up)
        assert await scored(executor, attempt, script, in_sandbox=in_sandbox) == verdict
