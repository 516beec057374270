"""The kind of manager that scores."""

from __future__ import annotations

from callsheet.managers.executor import Executor
from callsheet.managers.kind import ManagerKind, ServedActions
from callsheet.managers.reward.settings import RewardManagerSettings
from callsheet.managers.sandbox.kind import TEST_SUITES, of_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import action_pb2


def _build(settings: RewardManagerSettings, manager: ManagerSettings) -> Executor:
    from callsheet.managers.reward.build import build_reward_executor
    from callsheet.managers.sandbox.build import build_test_suite_executor

    test_suites = build_test_suite_executor(of_manager(settings.sandbox, manager)) if settings.test_suites else None
    return build_reward_executor(settings.scorer, test_suites, settings.hosted)


KIND = ManagerKind(
    name="reward",
    summary="Score by models, and by test suites of their own.",
    settings=RewardManagerSettings,
    build=_build,
    serves=(ServedActions("scorer", (action_pb2.ACTION_KIND_REWARD,)), TEST_SUITES),
    extra="reward",
)
