"""AdminService: inspection and manual control."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from math import inf
from typing import Final

import anyio
import anyio.to_thread
from callsheet.scheduler.access.identity import Scope, denied
from callsheet.scheduler.core.state.announced_managers import LostManager
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.engine_weights import WeightsStanding
from callsheet.scheduler.history.live import complete_actions, complete_trajectories
from callsheet.scheduler.history.messages import cost_message, fill_time, state_named
from callsheet.scheduler.history.reader import HistoryReader
from callsheet.scheduler.planner.answers.wanted import WantedUnits, wanted_in_parts
from callsheet.scheduler.planner.answers.what_if import ask_in_parts
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Reviewer
from callsheet.scheduler.service.audit import AuditTrail
from callsheet.scheduler.service.codec.admin_answers import what_if_response
from callsheet.scheduler.service.codec.admin_explain import explanation_of, list_actions
from callsheet.scheduler.service.codec.refusal_status import Context
from callsheet.scheduler.service.codec.requests import UnaryReply
from callsheet.scheduler.service.codec.status_answers import job_status
from callsheet.scheduler.service.limits.guard import caller
from callsheet.scheduler.service.limits.peer_limits import PeerLimits, peer_of
from callsheet.scheduler.service.loop import CoreLoop
from callsheet.scheduler.service.rpc.client_servicer import ANSWER_TIMEOUT
from callsheet.scheduler.service.turns import in_turns, made_of
from callsheet.v1 import action_pb2, admin_service_pb2, admin_service_pb2_grpc, manager_service_pb2, weights_pb2
from callsheet.v1.rules.fields import at_least

MOST_SANDBOXES_TOLD: Final = 1_000
READERS: Final = 2
"""Pages of history that are read at once, of all callers together."""


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """See the contract. Reads take the core's state as it is between two steps of the loop."""

    def __init__(
        self,
        loop: CoreLoop,
        predictors: Predictors,
        planner: Reviewer,
        audit: AuditTrail,
        limits: PeerLimits,
        *,
        history: HistoryReader,
    ) -> None:
        self._loop = loop
        self._audit = audit
        self._history = history
        self._readers = anyio.CapacityLimiter(READERS)
        self._limits = limits
        self._predictors = predictors
        self._planner = planner
        self._started = loop.clock.now()
        # Forecasts compute; one at a time leaves the scheduler its interpreter.
        self._forecasters = anyio.CapacityLimiter(1)

    async def GetStatus(  # noqa: N802 - the contract's name
        self, request: admin_service_pb2.GetStatusRequest, context: Context
    ) -> admin_service_pb2.GetStatusResponse:
        """Jobs, managers, nodes and counts."""
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            response = await status_of(self._loop.state, self._started, self._loop.clock.now())
        for (kind, state, failure), count in self._loop.tally.ends.items():
            response.ends.add(
                kind=action_pb2.ActionKind.ValueType(kind), state=state_named(state), failure=failure, count=count
            )
        return response

    async def Explain(  # noqa: N802
        self, request: admin_service_pb2.ExplainRequest, context: Context
    ) -> admin_service_pb2.ExplainResponse:
        """Returns why an action is in its state, and its whole story."""
        identity = caller()
        # A job may leave out that it asks for its own.
        if identity.scope is Scope.JOB and not request.key.job_id:
            request.key.job_id = identity.subject
        identity.require_job("key.job_id", request.key.job_id)
        state, now = self._loop.state, self._loop.clock.now()
        sees = identity.sees_job
        async with self._limits.question(peer_of(context)):
            async with self._limits.one_answer:
                told = await explanation_of(state, request.key, now, self._predictors, self._planner, sees_job=sees)
            if not told.HasField("expected"):
                await anyio.to_thread.run_sync(self._history.complete_ended, told, limiter=self._readers)
            return told

    async def ListActions(  # noqa: N802
        self, request: admin_service_pb2.ListActionsRequest, context: Context
    ) -> admin_service_pb2.ListActionsResponse:
        """Returns why each open action of a job is in its state."""
        identity = caller()
        identity.require_job("job_id", request.job_id)
        state, now = self._loop.state, self._loop.clock.now()
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            return await list_actions(state, request, now, self._planner, sees_job=identity.sees_job)

    async def ListTrajectoryHistory(  # noqa: N802
        self, request: admin_service_pb2.ListTrajectoryHistoryRequest, context: Context
    ) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        """Returns the history of a job's trajectories: read beside the loop, and completed on it, in turns."""
        caller().require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)):
            read, clock = self._history.trajectories, self._loop.clock
            page = await anyio.to_thread.run_sync(read, request, clock.now(), limiter=self._readers)
            await in_turns(complete_trajectories(self._loop.state, request.job_id, page, clock.now()))
        return page

    async def ListActionHistory(  # noqa: N802
        self, request: admin_service_pb2.ListActionHistoryRequest, context: Context
    ) -> admin_service_pb2.ListActionHistoryResponse:
        """Returns the history of a job's actions, likewise."""
        identity = caller()
        identity.require_job("job_id", request.job_id)
        if request.contents and identity.scope is Scope.READ_ONLY:
            raise denied("contents", "true", "takes a token of the job or of scope admin; this one has scope read-only")
        async with self._limits.question(peer_of(context)):
            page = await anyio.to_thread.run_sync(self._history.actions, request, limiter=self._readers)
            now = self._loop.clock.now()
            await in_turns(complete_actions(self._loop.state, page, now, brief=request.brief))
        return page

    async def ListClosedJobs(  # noqa: N802
        self, request: admin_service_pb2.ListClosedJobsRequest, context: Context
    ) -> admin_service_pb2.ListClosedJobsResponse:
        """Returns the history of closed jobs: read beside the loop."""
        identity = caller()
        # A job may leave out that it asks for its own.
        if identity.scope is Scope.JOB and not request.job_id:
            request.job_id = identity.subject
        identity.require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)):
            return await anyio.to_thread.run_sync(self._history.closed_jobs, request, limiter=self._readers)

    async def DrainManager(  # noqa: N802
        self, request: admin_service_pb2.DrainManagerRequest, context: Context
    ) -> admin_service_pb2.DrainManagerResponse:
        """Takes a manager out of service once its last sandbox has ended, or at a deadline; returns what would die."""
        deadline = at_least("deadline_s", request.deadline_s, 0.0) if request.HasField("deadline_s") else inf
        asked = {"manager": request.manager_id, **({"deadline_s": deadline} if deadline < inf else {})}
        told = None if request.dry_run else self._audit.of("drain", context.peer(), asked)
        manager = self._loop.state.managers.get(request.manager_id)
        response = admin_service_pb2.DrainManagerResponse() if manager is None else _dies_with(manager)
        reply = UnaryReply()
        reply_to = events.ReplyTo(reply, 0, told=told)
        self._loop.post([events.DrainRequested(reply_to, request.manager_id, deadline, request.dry_run)])
        await reply.result(ANSWER_TIMEOUT)
        return response

    async def HealManager(  # noqa: N802
        self, request: admin_service_pb2.HealManagerRequest, context: Context
    ) -> admin_service_pb2.HealManagerResponse:
        """Has quarantined engines go back to the weights that they were started with."""
        reply = UnaryReply()
        told = self._audit.of("heal", context.peer(), {"manager": request.manager_id})
        self._loop.post([events.HealRequested(events.ReplyTo(reply, 0, told=told), request.manager_id)])
        await reply.result(ANSWER_TIMEOUT)
        return admin_service_pb2.HealManagerResponse()

    async def WhatIf(  # noqa: N802
        self, request: admin_service_pb2.WhatIfRequest, context: Context
    ) -> admin_service_pb2.WhatIfResponse:
        """Forecasts the effect of more nodes in a pool: reads the core in turns, and answers beside the loop."""
        state, now = self._loop.state, self._loop.clock.now()
        async with self._limits.question(peer_of(context)):
            async with self._limits.one_answer:
                question = await in_turns(ask_in_parts(state, request.pool, request.nodes, now, self._predictors))
            return what_if_response(await anyio.to_thread.run_sync(question.answer, limiter=self._forecasters))


async def status_of(state: SchedulerState, started: float, now: float) -> admin_service_pb2.GetStatusResponse:
    """Returns jobs, managers, nodes and counts of a scheduler that began at `started`; they are read in turns."""
    response = admin_service_pb2.GetStatusResponse(epoch=state.epoch)
    fill_time(response.started, started)
    jobs, managers, nodes = response.jobs.append, response.managers.append, response.nodes.append
    await in_turns(made_of(state.jobs.values(), lambda each: jobs(job_status(state, each, now))))
    await in_turns(made_of(state.managers.values(), lambda each: managers(_manager_status(each, now))))
    await in_turns(made_of(state.nodes.values(), lambda each: nodes(_node_status(each))))
    response.lost.extend(map(_lost, state.lost_managers.values()))
    response.wanted.extend(map(_wanted, await in_turns(wanted_in_parts(state))))
    return response


def _dies_with(manager: Manager) -> admin_service_pb2.DrainManagerResponse:
    refs = (each.sandbox for each in islice(manager.sandboxes.values(), MOST_SANDBOXES_TOLD))
    return admin_service_pb2.DrainManagerResponse(
        sandboxes=[manager_service_pb2.SandboxState(**asdict(ref)) for ref in refs],
        sandbox_count=len(manager.sandboxes),
        attempts=len(manager.attempts),
    )


def _lost(manager: LostManager) -> admin_service_pb2.LostManager:
    told = admin_service_pb2.LostManager(
        manager_id=manager.manager_id,
        node_id=manager.node_id,
        attempts=manager.attempts,
        sandboxes=manager.sandboxes,
    )
    fill_time(told.time, manager.lost_at)
    return told


def _wanted(wanted: WantedUnits) -> admin_service_pb2.WantedUnits:
    return admin_service_pb2.WantedUnits(
        role=wanted.role,
        managers=wanted.managers,
        waiting=wanted.waiting,
        held=wanted.held,
        waiting_units=wanted.waiting_units,
        useful_units=wanted.useful_units,
    )


def _manager_status(manager: Manager, now: float) -> admin_service_pb2.ManagerStatus:
    told = admin_service_pb2.ManagerStatus(
        manager_id=manager.manager_id,
        node_id=manager.node.node_id,
        connected=manager.session is not None,
        draining=manager.draining,
        services=[_hosted(service) for service in manager.services.values()],
        loads=[_load(service, now) for service in manager.services.values()],
        attempts=len(manager.attempts),
        sandboxes=len(manager.sandboxes),
        capabilities=dict(manager.capabilities),
        leaving=manager.leaves_by is not None,
        sandbox_memory_mib=manager.sandbox_memory_mib,
        waiting_for_memory=manager.waiting_for_memory,
    )
    if manager.leaves_by is not None and manager.leaves_by < inf:
        fill_time(told.leaves_by, manager.leaves_by)
    return told


def _load(service: Service, now: float) -> admin_service_pb2.ServiceLoad:
    return admin_service_pb2.ServiceLoad(
        service=service.description.name,
        running=service.busy,
        cost=cost_message(service.cost),
        others_sequences=service.others_sequences,
        kv_tokens=service.description.kv_tokens,
        kv_tokens_booked=service.kv_booked + service.others_kv_tokens,
        exposed_s=service.weights.exposed_until(now),
        failed_updates=service.weights.failures,
    )


def _hosted(service: Service) -> manager_service_pb2.HostedService:
    description, told = service.description, service.weights.told
    gated = not service.weights.trusted
    standing = weights_pb2.WEIGHTS_STANDING_UNPROVED if gated else weights_pb2.WeightsStanding.ValueType(told.standing)
    is_engine = description.weights is not None or told.standing is not WeightsStanding.INITIAL
    weights = manager_service_pb2.EngineWeights(
        standing=standing, version=told.version, reason=service.weights.reason or told.reason
    )
    return manager_service_pb2.HostedService(
        weights=weights if is_engine else None,
        name=description.name,
        kinds=[action_pb2.ActionKind.ValueType(kind) for kind in sorted(description.kinds)],
        slots=description.slots,
        reserved=description.reserved,
        policy_version=told.version if is_engine else description.policy_version,
        shared=description.shared,
        problem=service.problem,
    )


def _node_status(node: Node) -> admin_service_pb2.NodeStatus:
    return admin_service_pb2.NodeStatus(node_id=node.node_id, capacity=node.capacity, free=node.free)
