"""Runs rewards that are commands, each in a fresh sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Executor
from callsheet.managers.sandbox.backend import Sandbox, SandboxBackend
from callsheet.managers.sandbox.images.store import ImageError
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.rewards import TEST_SUITE_SERVICE, score_in_new_sandbox
from callsheet.managers.sandbox.sandbox_use import SandboxUse
from callsheet.managers.sandbox.sandbox_uses import SandboxUses
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, manager_service_pb2
from callsheet.v1.rewards import command_scorer, scores_in_sandbox
from typing_extensions import override


class TestSuiteExecutor(Executor):
    """Runs test suites and scripts in fresh sandboxes that are destroyed afterwards; holds no state between attempts.

    Attributes:
        uses: The attempts that run.
    """

    __test__ = False

    def __init__(self, backend: SandboxBackend, settings: SandboxSettings, directory: ManagerDirectory) -> None:
        """Use `build.build_test_suite_executor`. This object closes the backend and the directory."""
        self.uses = SandboxUses(backend, settings, directory)

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Test-suite rewards."""
        return [self.uses.service(TEST_SUITE_SERVICE, [action_pb2.ACTION_KIND_REWARD])]

    @override
    def capabilities(self) -> Mapping[str, str]:
        return self.uses.capabilities()

    @override
    def use_shared_cores(self, cores: Sequence[int]) -> None:
        self.uses.use_shared_cores(cores)

    @override
    async def serve(self) -> None:
        await self.uses.serve()

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        return await self.uses.run(attempt, self._run)

    @override
    async def resize(self, attempt: Attempt) -> None:
        await self.uses.resize(attempt)

    @override
    async def pause(self, attempt: Attempt) -> None:
        await self.uses.set_paused(attempt, True)

    @override
    async def resume(self, attempt: Attempt) -> None:
        await self.uses.set_paused(attempt, False)

    @override
    async def close(self) -> None:
        await self.uses.close()

    async def _run(self, use: SandboxUse) -> AttemptResult:
        reward = use.attempt.action.reward
        scorer = command_scorer(reward)
        if scorer is None or scores_in_sandbox(reward):
            return Broken(infra_failure("unsupported_action", "this manager runs no such action"))
        image = scorer.image

        async def make() -> Sandbox:
            if image:
                raise ImageError(f"image {image[:200]!r}: this manager makes no sandboxes with images")
            return await self.uses.create(use)

        return await score_in_new_sandbox(scorer, use, self.uses.settings, make)
