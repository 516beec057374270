"""Runs rewards that are commands, each in a fresh sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import AttemptResult, Broken
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.executor.base_executor import BaseSandboxExecutor
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.rewards.rewards import TEST_SUITE_SERVICE, read_scorer, score_in_new_sandbox
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.v1 import action_pb2, manager_service_pb2
from callsheet.v1.rewards import command_scorer, scores_in_sandbox
from typing_extensions import override


class TestSuiteExecutor(BaseSandboxExecutor):
    """Runs test suites and scripts in fresh sandboxes that are destroyed afterwards; holds no state between attempts.

    Use `build.build_test_suite_executor`.
    """

    __test__ = False

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Test-suite rewards."""
        return [self._service(TEST_SUITE_SERVICE, [action_pb2.ACTION_KIND_REWARD])]

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """How many wait for memory."""
        return [self._state(TEST_SUITE_SERVICE)]

    @override
    async def _work(self, use: SandboxUse) -> AttemptResult:
        reward = use.attempt.action.reward
        scorer = command_scorer(reward)
        if scorer is None or scores_in_sandbox(reward):
            return Broken(infra_failure("unsupported_action", "this manager runs no such action"))
        image = scorer.image

        async def make() -> AgentSandbox:
            if image:
                raise ImageError(f"image {image[:200]!r}: this manager makes no sandboxes with images")
            return await self._create(use)

        runnable = await read_scorer(scorer, use.attempt.payloads, self._settings, CommandDefaults())
        return await score_in_new_sandbox(runnable, use, make)
