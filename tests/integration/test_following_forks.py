"""A process that escaped a change of its cores is put there later, where cores are set process by process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Executor
from callsheet.managers.reward.build import build_reward_executor
from callsheet.managers.reward.settings import RewardSettings
from callsheet.managers.sandbox.build import build_sandbox_executor, build_test_suite_executor
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings

from tests.support.real_sandboxes import processes
from tests.support.sandbox_attempts import attempt_of, suite
from tests.support.sandboxes import Variant, settings_for
from tests.support.torch_models import SMALL
from tests.support.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use"),
]

_NAP = ("sleep", "86400.125")


def _reward_executor(settings: SandboxSettings) -> Executor:
    return build_reward_executor(RewardSettings(shape=SMALL), build_test_suite_executor(settings))


@pytest.mark.parametrize(
    ("build", "isolation"),
    [
        (build_sandbox_executor, Isolation.BUBBLEWRAP),
        (build_sandbox_executor, Isolation.NONE),
        (_reward_executor, Isolation.NONE),
    ],
)
async def test_a_process_that_escaped_a_resize_is_found(
    build: Callable[[SandboxSettings], Executor], isolation: Isolation, tmp_path: Path
) -> None:
    old, new = sorted(os.sched_getaffinity(0))[:2]
    executor = build(settings_for(Variant(isolation, groups=False), tmp_path))
    attempt = attempt_of(suite(" ".join(_NAP)), cores=[old], resources={"memory": 256})
    try:
        async with anyio.create_task_group() as serving:
            serving.start_soon(executor.serve)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(executor.run, attempt)
                await until(lambda: bool(processes(*_NAP)))
                attempt.grant.cores[:] = [new]
                await executor.resize(attempt)
                [nap] = processes(*_NAP)
                assert nap.cpu_affinity() == [new]
                # So is left what was being forked by a process that was on the old core.
                nap.cpu_affinity([old])
                await until(lambda: nap.cpu_affinity() == [new])
                attempt.stop_requested.set()
            serving.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await executor.close()
