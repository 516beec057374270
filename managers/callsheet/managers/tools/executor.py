"""Runs tool calls and judgements: finds their service, and tells what went wrong in the words of the contract."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import anyio
from callsheet.credentials.masking import Mask
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Executor, Stopped
from callsheet.managers.tools.answers import SentKey
from callsheet.managers.tools.errors import ToolFailedError
from callsheet.managers.tools.function_tool import FunctionTool
from callsheet.managers.tools.over_http import HttpJudge, HttpTool
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.quotas import KeyQuota, MemoryQuotas, QuotaStore, Rate
from callsheet.managers.tools.service import ToolService
from callsheet.managers.tools.settings import (
    JudgeTable,
    ToolsFileContent,
    ToolsSettings,
    ToolTable,
    read_secret,
    read_tools,
)
from callsheet.timing.waits import Cause
from callsheet.v1 import common_pb2, manager_service_pb2, outcome_pb2
from typing_extensions import override

_LONGEST_WAIT_S = 60.0
# What the scheduler books ahead, so that a manager's line is not empty while a plan is made.
_AHEAD_S = 2.0


class ToolsExecutor(Executor):
    """The services of a tools file. Use `build_tools_executor`."""

    def __init__(self, services: Mapping[str, ToolService], store: QuotaStore, shared_node: str) -> None:
        """Takes them over: `close` closes them.

        Args:
            services: By name.
            store: The truth about their quotas.
            shared_node: The node that stands for quotas which several managers share; empty for this manager's own.
        """
        self._services = services
        self._gates = {service.gate.quota.name: service.gate for service in services.values()}
        self._store = store
        self._shared_node = shared_node

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Its tools and judges, each with what a call takes of its quota."""
        return [
            manager_service_pb2.HostedService(
                name=name,
                kinds=[service.kind],
                slots=service.spending.concurrency,
                instances=_instances(service),
                demand=_demand(service),
            )
            for name, service in self._services.items()
        ]

    @override
    def node(self, machine: manager_service_pb2.NodeSpec) -> manager_service_pb2.NodeSpec:
        """A node that stands for what is outside: managers that spend the same keys have it in common."""
        node = manager_service_pb2.NodeSpec(node_id=self._shared_node or f"{machine.node_id}-tools")
        for quota in (gate.quota for gate in self._gates.values()):
            if quota.concurrency:
                node.capacity[_resource(quota, "calls")] = quota.concurrency
            for unit, rate in _rates(quota).items():
                node.quotas[_resource(quota, unit)].per_second = rate.per_second
                node.quotas[_resource(quota, unit)].burst = max(rate.burst, math.ceil(rate.per_second * _AHEAD_S))
        return node

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Makes the call; one that waits for its quota longer than it may is told when to come again."""
        service = self._services.get(attempt.action.service)
        if service is None or attempt.action.WhichOneof("payload") not in ("tool_call", "reward"):
            return Broken(infra_failure("unsupported_action", "this manager has no such service"))
        limit_s = attempt.grant.start_to_close.ToTimedelta().total_seconds() or _LONGEST_WAIT_S
        attempt.execution_clock, attempt.stands_for = (clock := QuotaClock(limit_s, attempt.action.job_id)), Cause.QUOTA
        ended: list[AttemptResult] = []
        raised: list[Exception] = []

        async def call() -> None:
            try:
                ended.append(await service.call(attempt, clock))
            except ToolFailedError as error:
                ended.append(error.broken)
            except Exception as error:  # The runtime knows some of them, and none in a group.
                raised.append(error)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await attempt.stop_requested.wait()
            tasks.cancel_scope.cancel()
        if raised:
            raise raised[0]
        used = {f"calls:{attempt.action.service}" if each == "calls" else each: n for each, n in clock.used.items()}
        usage = outcome_pb2.Usage(cpu_s=clock.cpu_s, cost=common_pb2.Cost(used=used))
        return replace(ended[0] if ended else Stopped(), usage=usage)

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """Returns the units of quotas that calls take, and whether more may begin: none do in a provider's pause."""
        return [
            manager_service_pb2.ServiceState(
                name=name,
                instances=_instances(service),
                no_room=bool(service.gate.problem),
                problem=service.gate.problem or service.gate.refusal,
                demand=_demand(service),
            )
            for name, service in self._services.items()
        ]

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        for gate in self._gates.values():
            gate.report = report

    @override
    async def serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            for gate in self._gates.values():
                tasks.start_soon(gate.serve)
            for service in self._services.values():
                tasks.start_soon(service.serve)

    @override
    async def close(self) -> None:
        for service in self._services.values():
            await service.close()
        await self._store.close()


def build_tools_executor(settings: ToolsSettings) -> ToolsExecutor:
    """Returns the executor of a tools manager.

    Raises:
        ValueError: A setting breaks its rule, or a key cannot be read.
    """
    if settings.tools_file is None:
        raise ValueError("tools_file: None: must be given")
    content = read_tools(settings.tools_file)
    store: QuotaStore = MemoryQuotas()
    shared_node = ""
    if settings.quota_redis is not None:
        from callsheet.managers.tools.redis_quotas import RedisQuotas

        store, shared_node = RedisQuotas(settings.quota_redis, settings.quota_namespace), settings.quota_namespace
    keys = _sent_keys(content)
    gates: dict[str, QuotaGate] = {}
    services: dict[str, ToolService] = {}
    spending: dict[str, ToolTable | JudgeTable] = {**content.tools, **content.judges}
    longest_s = max((each.timeout_s for each in spending.values()), default=0.0)
    for name, table in spending.items():
        quota = content.quota_of(table, name)
        gate = gates.setdefault(quota.name, QuotaGate(quota, store, longest_s))
        try:
            services[name] = _service(table, gate, keys)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if not services:
        raise ValueError(f"tools_file: {settings.tools_file}: must name a tool or a judge")
    for key in content.keys.values():
        # What this process starts has no use for it.
        os.environ.pop(key.variable, None)
    return ToolsExecutor(services, store, shared_node)


def _sent_keys(content: ToolsFileContent) -> dict[str, SentKey]:
    """Returns what APIs are sent, by the name of a key; for no key what masks the others."""
    secrets = {name: read_secret(name, key) for name, key in content.keys.items()}
    mask = Mask(*secrets.values())
    return dict.fromkeys(["", *content.keys], SentKey(mask=mask)) | {
        name: SentKey(name, {key.header: key.prefix + secrets[name]}, mask)
        for name, key in content.keys.items()
        if secrets[name]
    }


def _service(table: ToolTable | JudgeTable, gate: QuotaGate, keys: Mapping[str, SentKey]) -> ToolService:
    if isinstance(table, ToolTable) and table.function:
        return FunctionTool(table, gate)
    key = keys[table.key]
    return HttpTool(table, gate, key) if isinstance(table, ToolTable) else HttpJudge(table, gate, key)


def _instances(service: ToolService) -> int:
    """Calls that it takes at once, as the planner wants to know of services with pauses."""
    return 0 if service.gate.problem else service.spending.concurrency


def _demand(service: ToolService) -> dict[str, int]:
    quota = service.gate.quota
    demand = {_resource(quota, "calls"): 1} if quota.concurrency else {}
    tokens = min(service.tokens_per_call, quota.tokens.burst) if quota.tokens is not None else 0
    taken = {"requests": 1, "tokens": tokens}
    return demand | {_resource(quota, unit): taken[unit] for unit in _rates(quota) if taken[unit]}


def _rates(quota: KeyQuota) -> dict[str, Rate]:
    rates = {"requests": quota.requests, "tokens": quota.tokens}
    return {unit: rate for unit, rate in rates.items() if rate is not None}


def _resource(quota: KeyQuota, unit: str) -> str:
    return f"{quota.name}:{unit}"
