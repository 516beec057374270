"""The kind of manager that runs commands in sandboxes."""

from __future__ import annotations

from dataclasses import replace

from callsheet.managers.executor import Executor
from callsheet.managers.kind import ManagerKind, ServedActions
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import action_pb2
from callsheet.v1.names import IMAGE_SERVICE_PREFIX

TEST_SUITES = ServedActions("test-suite", (action_pb2.ACTION_KIND_REWARD,))


def of_manager(settings: SandboxSettings, manager: ManagerSettings) -> SandboxSettings:
    """The settings of a manager's sandboxes on its node.

    Raises:
        ValueError: A setting breaks its rule.
    """
    credentials, memory_mib = manager.credentials, manager.node.capacity.get("memory", 0)
    with_tokens = bool(credentials.token or credentials.token_file)
    builds = replace(settings.provisioning.builds, callers_have_tokens=with_tokens)
    provisioning = replace(settings.provisioning, node_memory_mib=memory_mib, builds=builds)
    cores = frozenset(manager.cores)
    return replace(settings, manager_id=manager.manager_id, cores=cores, provisioning=provisioning)


def _build(settings: SandboxSettings, manager: ManagerSettings) -> Executor:
    from callsheet.managers.sandbox.build import build_sandbox_executor

    return build_sandbox_executor(of_manager(settings, manager))


KIND = ManagerKind(
    name="sandbox",
    summary="Serve sandboxes: env_reset, env_step and test suites.",
    settings=SandboxSettings,
    build=_build,
    serves=(
        ServedActions("sandbox", (action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_ENV_STEP)),
        ServedActions(IMAGE_SERVICE_PREFIX, (action_pb2.ACTION_KIND_ENV_RESET,)),
        TEST_SUITES,
    ),
    extra="sandbox",
)
