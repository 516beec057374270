"""The kind of manager that scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from callsheet.managers.executor import Executor
from callsheet.managers.kind import ManagerKind, ServedActions
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.settings import RewardSettings
from callsheet.managers.sandbox.kind import TEST_SUITES, of_manager
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import LeaveOut, Setting
from callsheet.v1 import action_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardManagerSettings:
    """What a reward manager serves.

    Attributes:
        scorer: A small scoring model for tests and the demo; only where no models are hosted.
        hosted: Models that share the memory of devices.
        sandbox: Where they run.
    """

    scorer: RewardSettings = field(default_factory=RewardSettings)
    hosted: HostedSettings = field(default_factory=HostedSettings)
    test_suites: Annotated[bool, Setting("Also serve test suites in sandboxes of their own.")] = True
    sandbox: Annotated[SandboxSettings, LeaveOut("network", "provisioning")] = field(default_factory=SandboxSettings)


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
