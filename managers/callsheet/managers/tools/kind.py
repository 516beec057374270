"""The kind of manager that calls outside APIs and functions."""

from __future__ import annotations

from callsheet.managers.executor import Executor
from callsheet.managers.kind import ANY_SERVICE, ManagerKind, ServedActions
from callsheet.managers.settings import ManagerSettings
from callsheet.managers.tools.settings import ToolsSettings
from callsheet.v1 import action_pb2


def _build(settings: ToolsSettings, _: ManagerSettings) -> Executor:
    from callsheet.managers.tools.executor import build_tools_executor

    if settings.quota_redis is not None:
        from callsheet.managers.tools.redis_quotas import check_redis

        check_redis(settings.quota_redis)
    return build_tools_executor(settings)


KIND = ManagerKind(
    name="tools",
    summary="Call outside APIs, functions and judges within quotas.",
    settings=ToolsSettings,
    build=_build,
    serves=(
        ServedActions(ANY_SERVICE, (action_pb2.ACTION_KIND_TOOL_CALL,)),
        ServedActions(ANY_SERVICE, (action_pb2.ACTION_KIND_REWARD,)),
    ),
    extra="tools",
)
