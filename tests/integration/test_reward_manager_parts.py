"""One reward manager with both its parts: the scoring model, and test suites in plain processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Attempt, AttemptResult, Completed, Stopped
from callsheet.managers.reward.build import build_reward_executor
from callsheet.managers.reward.executor import RewardExecutor
from callsheet.managers.reward.settings import RewardSettings
from callsheet.managers.sandbox.build import build_test_suite_executor
from callsheet.managers.sandbox.settings import CoreSharing, Isolation, SandboxSettings
from callsheet.v1 import action_pb2, common_pb2

from tests.support.attempts_of_models import attempt_of, score_attempt
from tests.support.torch_models import SMALL, prompt

pytestmark = pytest.mark.anyio
CORE = min(os.sched_getaffinity(0))
SUITE = """
import sys
results = ['<testcase name="a"/>', '<testcase name="b"/>', '<testcase name="c"><failure/></testcase>']
open(sys.argv[1], "w").write(f'<testsuite>{"".join(results)}</testsuite>')
"""


class InlinePayloads:
    """Files of these suites travel inline."""

    async def read(self, blob: common_pb2.Blob) -> bytes:
        return blob.inline

    async def write(self, content: bytes) -> common_pb2.Blob:
        return common_pb2.Blob(inline=content)


def suite_attempt(sequence: int, *arguments: str) -> Attempt:
    suite = action_pb2.TestSuiteInput(
        files=[action_pb2.SandboxFile(path="suite.py", content=common_pb2.Blob(inline=SUITE.encode()))],
        command=action_pb2.Command(argv=action_pb2.Argv(arguments=arguments)),
    )
    action = action_pb2.ActionSpec(reward=action_pb2.RewardInput(test_suite=suite))
    attempt = attempt_of(sequence, action, service="test-suite", cores=(CORE,))
    attempt.grant.resources["cpu"] = 1
    attempt.payloads = InlinePayloads()
    return attempt


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[RewardExecutor]:
    settings = SandboxSettings(manager_id="reward-parts", data_directory=tmp_path, isolation=Isolation.NONE)
    built = build_reward_executor(RewardSettings(shape=SMALL), build_test_suite_executor(settings))
    yield built
    await built.close()


async def test_both_parts_serve_at_once(executor: RewardExecutor) -> None:
    results: dict[int, AttemptResult] = {}

    async def run(sequence: int, attempt: Attempt) -> None:
        results[sequence] = await executor.run(attempt)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 1, suite_attempt(1, sys.executable, "suite.py", "{report}"))
            tasks.start_soon(run, 2, score_attempt(2, prompt(20), (CORE,)))
    suite, score = results[1], results[2]
    assert isinstance(suite, Completed), suite
    assert isinstance(score, Completed), score
    assert (suite.succeeded.reward.passed, suite.succeeded.reward.total) == (2, 3)
    assert suite.succeeded.reward.score == pytest.approx(2 / 3)
    assert score.succeeded.reward.total == 0


async def test_a_resize_reaches_the_part_that_runs(executor: RewardExecutor) -> None:
    attempt = suite_attempt(1, sys.executable, "-c", "import time; time.sleep(60)")
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await executor.run(attempt))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await executor.resize(attempt)
            attempt.stop_requested.set()
    assert isinstance(results[0], Stopped)


async def test_the_cores_of_a_pool_reach_the_part_that_shares_them(tmp_path: Path) -> None:
    settings = SandboxSettings(
        manager_id="reward-parts", data_directory=tmp_path, isolation=Isolation.NONE, core_sharing=CoreSharing.PLAIN
    )
    suites = build_test_suite_executor(settings)
    executor = build_reward_executor(RewardSettings(shape=SMALL), suites)
    executor.use_shared_cores([CORE])
    assert suites.shared_cores is not None
    assert suites.shared_cores.cores == {CORE}
    await executor.close()


async def test_both_are_registered(executor: RewardExecutor) -> None:
    assert [service.name for service in executor.services()] == ["scorer", "test-suite"]
    capabilities = executor.capabilities()
    assert capabilities["weights"] == "random"
    assert capabilities["isolation"] == "none"
