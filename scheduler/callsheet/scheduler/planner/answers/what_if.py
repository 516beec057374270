"""The effect of more nodes of a pool on present actions, by the planner's own functions.

What waits is forecast in the model of a planning round. Commands in sandboxes do not wait but share their node's cores:
their pool has more cores then, and trajectories spread over them as they are replaced. Both are compared as they are
now and as they would be; nothing new arrives in either.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import NamedTuple

from callsheet.scheduler.core.fleet.membership import update_reserve
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import CPU
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.answers.forecast import Forecast, forecast
from callsheet.scheduler.planner.answers.remaining import Lives, Returns, returns_of
from callsheet.scheduler.planner.fleet.placed import PlacedActions, Running
from callsheet.scheduler.planner.fleet.pools import MILLI, Fleet, Pool
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.question.instance import PlanningInstance
from callsheet.scheduler.planner.round.competition import Servable
from callsheet.scheduler.planner.round.estimates import Estimates
from callsheet.scheduler.planner.round.snapshot import Snapshots

MAX_NODES = 10_000
# Names of pools and nodes in a refusal.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Commands that share the cores of their sandboxes' nodes, in one pool.

    Attributes:
        cores: Cores there are.
        running: Commands that run.
        use: Cores they would use if there were enough.
        alone_s: Sum of their expected execution times with as many cores as they can use, from their starts.
    """

    cores: int
    running: int
    use: float
    alone_s: float

    @property
    def slowdown(self) -> float:
        """How much longer they take than with enough cores."""
        return max(self.use / self.cores, 1.0) if self.cores else 1.0

    @property
    def mean_act_s(self) -> float:
        """Their mean predicted completion time."""
        return self.slowdown * self.alone_s / max(self.running, 1)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expectations of actions: those that wait, and the commands of the pool asked for."""

    waiting: Forecast
    shared: SharedCores

    @property
    def mean_act_s(self) -> float:
        """Mean over both, an action that can never start left out."""
        waiting = self.waiting.waiting - self.waiting.stuck
        total = waiting * self.waiting.mean_end_s + self.shared.running * self.shared.mean_act_s
        return total / max(waiting + self.shared.running, 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer.

    Attributes:
        pool: Name of the pool.
        nodes: Its nodes now.
        more: Nodes added.
        behind: Actions that wait for an earlier one of their own trajectory; they are in neither outlook.
    """

    pool: str
    nodes: int
    more: int
    behind: int
    before: Outlook
    after: Outlook

    def __str__(self) -> str:
        before, after = self.before, self.after
        actions = before.waiting.waiting + before.shared.running
        if not actions:
            nothing = f"nothing waits or runs in {self.pool}, so {_nodes(self.more)} more would change nothing"
            return "; ".join([nothing, *self._behind()])
        parts = [
            f"{_nodes(self.more)} more in {self.pool} ({_nodes(self.nodes)} now): "
            f"mean completion time of {actions} actions {before.mean_act_s:.3g} s -> {after.mean_act_s:.3g} s",
            f"{before.waiting.waiting} wait, {before.waiting.start_now} -> {after.waiting.start_now} start at once",
        ]
        if before.shared.running:
            parts.append(
                f"{before.shared.running} commands would use {before.shared.use:.3g} cores of {before.shared.cores}"
                f" -> {after.shared.cores}"
            )
        return "; ".join([*parts, *self._behind()])

    def _behind(self) -> list[str]:
        if not self.behind:
            return []
        return [f"{self.behind} wait behind earlier actions of their own trajectories, which no node changes"]


@dataclass(frozen=True, slots=True)
class Question:
    """A what-if question, taken from the core: answering it needs no more of the core, so another thread may do it."""

    pool: str
    nodes: int
    more: int
    behind: int
    instances: tuple[PlanningInstance, PlanningInstance]
    shared: tuple[SharedCores, SharedCores]

    def answer(self) -> Comparison:
        """Forecasts both; takes up to a second."""
        before, after = (
            Outlook(forecast(instance), shared) for instance, shared in zip(self.instances, self.shared, strict=True)
        )
        return Comparison(self.pool, self.nodes, self.more, self.behind, before, after)


class _Look(NamedTuple):
    """A core's fleet as it is now, what runs there and was free to go anywhere, and what to expect."""

    fleet: Fleet
    placed: PlacedActions
    estimates: Estimates


def _look_at(state: SchedulerState, predictors: Predictors) -> Generator[None, None, _Look]:
    sorted_by_size = any(key.size for key in state.ready.classes)
    look = _Look(Fleet(watches=False), PlacedActions(), Estimates(predictors, sorted_by_size=sorted_by_size))
    yield from _place(state, look.placed)
    yield from look.fleet.look_once(state, look.placed, look.estimates.cores_of_job)
    return look


def _question_about(
    state: SchedulerState, look: _Look, fleet: Fleet, returns: Returns, now: float
) -> Generator[None, None, PlanningInstance]:
    # No class is split by age, nothing is held for what waits long, and no member is left for a later round.
    snapshots = Snapshots(look.estimates, dispatch_cap=1 << 40, ageing=0.0, hold_after=float("inf"))
    waiting = [ready for key, ready in state.ready.classes.items() if ready.count and not key.pinned_to]
    servable = []
    for ready in waiting:
        block = snapshots.block(ready.key, fleet, now)
        servable += [Servable(ready, block)] if block.options else []
        yield
    servable = [each for each in servable if each.ready.count]
    snapshot = snapshots.take(state, servable, fleet, cap=1 << 40, now=now, held=look.placed.held)
    instance = snapshot.instance
    resources = [
        replace(row, returns=tuple(returns[row.name])) if row.name in returns else row for row in instance.resources
    ]
    classes = (
        replace(each, waited_s=now - ready.since / max(ready.count, 1))
        for each, ready in zip(instance.classes, snapshot.members, strict=True)
    )
    return replace(instance, resources=tuple(resources), classes=tuple(classes))


def _place(state: SchedulerState, placed: PlacedActions) -> Generator[None, None, None]:
    """Notes what runs and was free to go anywhere."""
    for attempt in list(state.attempts.values()):
        request, manager = attempt.action.request, attempt.manager
        service = manager.services.get(attempt.service) if manager is not None else None
        if manager is not None and service is not None and not request.needs_sandbox:
            expected = attempt.prediction
            shares = CPU in service.description.shared
            use = round(expected.use * MILLI) if expected is not None and shares else 0
            placed.add(manager.manager_id, attempt.action, Running.of(attempt.action.request, attempt.granted, use))
        yield


def idle_like(state: SchedulerState, like: Node, now: float) -> SchedulerState:
    """A state that shares everything with the given one, but has one idle node, like one of its nodes.

    It is for reading only: what it shares would change in both.

    Args:
        state: The core.
        like: A node of it; the one there is has its capacity, and managers with the services of its managers.
        now: Seconds since the epoch.
    """
    idle = copy.copy(state)
    idle.nodes, idle.managers, idle.servable_cache = {}, {}, {}
    node = Node(replace(like.description, node_id=f"{like.node_id} (what if)"))
    idle.nodes[node.node_id] = node
    for manager_id in sorted(like.managers & state.managers.keys()):
        manager = state.managers[manager_id]
        twin = Manager(
            f"{manager_id} (what if)",
            manager.incarnation,
            node,
            {name: Service(service.description) for name, service in manager.services.items()},
            manager.session,
            now,
            manager.capabilities,
            draining=manager.draining,
            reconciled=manager.reconciled,
            by_need=manager.by_need,
        )
        node.managers.add(twin.manager_id)
        idle.managers[twin.manager_id] = twin
    node.meter(
        {name: TokenBucket(limits, float(limits.burst), now) for name, limits in like.description.quotas.items()}
    )
    update_reserve(idle, node)
    return idle


def ask_in_parts(
    state: SchedulerState, pool: str, more: int, now: float, predictors: Predictors
) -> Generator[None, None, Question]:
    """Asks what more nodes would do, in parts; what changes between them is in it or not.

    The nodes that are added are alike: one of them is looked at, whatever their number.

    Args:
        state: The core.
        pool: Name of a pool, or id of one of its nodes.
        more: Nodes to add.
        now: Seconds since the epoch.
        predictors: What actions are expected to take.

    Raises:
        RefusedError: There is no such pool, or `more` is out of range.
    """
    if not 1 <= more <= MAX_NODES:
        raise RefusedError(RefusalCode.INVALID_ARGUMENT, "nodes", more, f"must be between 1 and {MAX_NODES}")
    look = yield from _look_at(state, predictors)
    found = _find(look.fleet, pool)
    state_of_one, lives = idle_like(state, found.nodes[0], now), Lives(predictors, now)
    idle = Fleet(watches=False)
    yield from idle.look_once(state_of_one, PlacedActions(), look.estimates.cores_of_job)
    if not idle.pools:
        raise RefusedError(RefusalCode.UNAVAILABLE, "pool", pool, "has just changed; ask again", retry_after=1.0)
    larger = look.fleet.grown(found, idle.pools[0], more)
    shared = yield from _shared_cores(state, found, lives)
    cores = shared.cores + more * _pool_cores(state_of_one, idle.pools[0].nodes[0])
    grown = SharedCores(cores, shared.running, shared.use, shared.alone_s)
    returns = yield from returns_of(look.fleet, lives)
    before = yield from _question_about(state, look, look.fleet, returns, now)
    after = yield from _question_about(state, look, larger, returns, now)
    behind = 0
    for job in list(state.jobs.values()):
        behind += sum(max(len(trajectory.line) - 1, 0) for trajectory in job.trajectories.values())
        yield
    return Question(found.name, len(found.nodes), more, behind, (before, after), (shared, grown))


def _find(fleet: Fleet, name: str) -> Pool:
    for pool in fleet.pools:
        if name == pool.name or any(node.node_id == name for node in pool.nodes):
            return pool
    known = "; ".join(_describe(pool) for pool in fleet.pools[:_NAMED]) or "none, as no manager is registered"
    rule = f"must be a pool or one of its nodes; there are: {known}"
    raise RefusedError(RefusalCode.NOT_FOUND, "pool", name, rule)


def _describe(pool: Pool) -> str:
    names = ", ".join(node.node_id for node in pool.nodes[:_NAMED])
    return f"{pool.name} ({names}{', ...' if len(pool.nodes) > _NAMED else ''})"


def _pool_cores(state: SchedulerState, node: Node) -> int:
    managers = (state.managers.get(manager_id) for manager_id in node.managers)
    return sum(manager.pool.get(CPU, 0) for manager in managers if manager is not None)


def _shared_cores(state: SchedulerState, pool: Pool, lives: Lives) -> Generator[None, None, SharedCores]:
    cores, running, use, alone_s = 0, 0, 0.0, 0.0
    for node in pool.nodes:
        cores += _pool_cores(state, node)
        yield
    for managers in pool.managers if cores else ():
        for manager in managers:
            yield
            for attempt in list(manager.attempts.values()):
                service = manager.services.get(attempt.service)
                if service is not None and CPU in service.description.shared:
                    running += 1
                    life = lives.of(attempt)
                    use += life.use
                    alone_s += life.attained_s + life.remaining_s
    return SharedCores(cores, running, use, alone_s)


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
