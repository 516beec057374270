"""Reviews the next round before it happens, and finds for each class that it leaves waiting the reason."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from callsheet.scheduler.core.hosted.rollouts import why_gated
from callsheet.scheduler.core.state.entities import Action, Manager
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import ActionRequest
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.work.servability import by_need, can_ever_serve, service_of


class WaitReason(IntEnum):
    """Reason why an action is not running; the numbers are the contract's."""

    NONE = 0
    NEXT_ROUND = 1
    EARLIER_IN_SANDBOX = 2
    NO_SERVICE = 3
    MANAGER_AWAY = 4
    RESOURCES = 5
    SLOTS = 6
    HELD_FOR_OLDER = 7
    BACKOFF = 8
    RECOVERY = 9
    ADMISSION = 10
    QUOTA = 11
    OTHERS_FIRST = 12
    WEIGHTS = 13


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that is short on a node, in units.

    Attributes:
        demanded: What an action may have of it, where less is booked; else 0.
        enough_at: Of a quota, when there is enough at the earliest, in seconds since the epoch; None for all else.
    """

    resource: str
    needed: int
    free: int
    capacity: int
    node_id: str
    enough_at: float | None = None
    demanded: int = 0


class Left(NamedTuple):
    """Reason why a round leaves a class waiting.

    Attributes:
        reason: Why.
        managers: How many it is true of, where it is not about one node.
        short: What is short, on the node that comes closest.
        older: The action for which the round keeps units.
        set_up_s: After how many seconds it could begin at the soonest, where it fits.
        weights: Why no engine has weights that are proved, in a few words.
        problem: Why nothing can begin on a service that has room by its units, as its manager told it.
        kept: Units of `short` that are free, but kept for trajectories whose tool calls run.
    """

    reason: WaitReason
    managers: int = 0
    short: tuple[Shortage, ...] = ()
    older: Action | None = None
    set_up_s: float = 0.0
    weights: str = ""
    kept: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Review:
    """Next round as it would be; read it before anything changes.

    Attributes:
        plan: The plan that the round would propose.
        state: The state that it was asked about.
        kept_for: The older action for which units are kept, by each class that would fit but for them.
        kv_tokens_of: Tokens of an engine's KV cache that an action is expected to hold.
        claimed_on: Tokens of an engine's KV cache that trajectories keep while their tool calls run.
    """

    plan: Plan
    state: SchedulerState
    kept_for: Mapping[ClassKey, Action]
    kv_tokens_of: Callable[[ActionRequest], int] = lambda _: 0
    claimed_on: Callable[[str], int] = lambda _: 0
    _known: dict[tuple[ClassKey, int], Left] = field(default_factory=dict)

    def left(self, key: ClassKey, action: Action | None = None) -> Generator[None, None, Left]:
        """Returns why the round leaves some of a class, in parts; only for classes that are asked about.

        Args:
            key: The class.
            action: The member that somebody asks about, where members differ.
        """
        alike = (key, self.kv_tokens_of(action.request) if action is not None else 0)
        if alike not in self._known:
            self._known[alike] = yield from self._left(key, action)
        return self._known[alike]

    def _left(self, key: ClassKey, action: Action | None) -> Generator[None, None, Left]:
        able = yield from self._able(key)
        if not able:
            return Left(WaitReason.NO_SERVICE, 1 if key.pinned_to else len(self.state.managers))
        hosts = [host for host in able if host[0].takes(key.pinned_to)]
        if not hosts:
            return Left(WaitReason.MANAGER_AWAY, len(able))
        if all(service.weights.gated for _, service in hosts):
            why = why_gated(self.state, (service for _, service in hosts), key.job)
            return Left(WaitReason.WEIGHTS, len(hosts), weights=why)
        with_slots = [host for host in hosts if host[1].free_slots is None or host[1].free_slots > 0]
        if not with_slots:
            return Left(WaitReason.SLOTS, len(hosts))
        if (kept := self._kept_of_kv(with_slots, action)) is not None:
            return kept
        shortages = yield from self._all_short(with_slots, key, key.demand.minimum())
        if short := _least(shortages):
            of_quotas = all(item.enough_at is not None for item in short)
            return Left(WaitReason.QUOTA if of_quotas else WaitReason.RESOURCES, short=short)
        fitting = [service for (_, service), short in zip(with_slots, shortages, strict=True) if not short]
        with_room = [service for service in fitting if not service.no_room]
        if not with_room:
            problem = next((service.problem for service in fitting if service.problem), "")
            return Left(WaitReason.RESOURCES, len(fitting), problem=problem)
        if key in self.kept_for:
            return Left(WaitReason.HELD_FOR_OLDER, older=self.kept_for[key])
        return Left(WaitReason.OTHERS_FIRST, set_up_s=min(service.setup_s for service in with_room))

    def _kept_of_kv(self, hosts: Sequence[_Host], action: Action | None) -> Left | None:
        """Returns what the engine that comes closest lacks for a generation; None if an engine has enough free."""
        tokens = self.kv_tokens_of(action.request) if action is not None else 0
        claimed = {manager.manager_id: self.claimed_on(manager.manager_id) for manager, _ in hosts} if tokens else {}
        if not tokens or any(service.holds(tokens + claimed[manager.manager_id]) for manager, service in hosts):
            return None
        manager, service = max(hosts, key=lambda each: (each[1].free_kv_tokens or 0) - claimed[each[0].manager_id])
        kept, free = claimed[manager.manager_id], service.free_kv_tokens or 0
        short = Shortage("kv tokens", tokens, max(free - kept, 0), service.description.kv_tokens, manager.node.node_id)
        return Left(WaitReason.RESOURCES, short=(short,), kept=min(kept, max(free, 0)))

    def short_for_sandbox(self, reset: ClassKey) -> Generator[None, None, tuple[Shortage, ...]]:
        """Returns the units that a sandbox would hold between actions and that no node has free, in parts.

        The shortages are those of the node that comes closest.
        """
        held = {entry.resource: entry.min_units for entry in reset.demand.entries if entry.held_by_trajectory}
        able = yield from self._able(reset)
        shortages = yield from self._all_short([host for host in able if host[0].accepting], reset, held)
        return _least(shortages)

    def _able(self, key: ClassKey) -> Generator[None, None, list[_Host]]:
        """Returns the managers that could serve a class on an idle node, with their services, in parts."""
        managers, able = self.state.managers, []
        for name in [key.pinned_to] if key.pinned_to else list(managers):
            manager = managers.get(name)
            if manager is not None and can_ever_serve(manager, key.kind, key.service, key.demand):
                service = service_of(manager, key.kind, key.service)
                able += [(manager, service)] if service is not None else []
            yield
        return able

    def _all_short(
        self, hosts: Iterable[_Host], key: ClassKey, needed: dict[str, int]
    ) -> Generator[None, None, list[tuple[Shortage, ...]]]:
        """Returns the shortages on the node of each manager."""
        found = []
        for manager, service in hosts:
            found.append(self._shortages(manager, service, key, needed))
            yield
        return found

    def _shortages(
        self, manager: Manager, service: Service, key: ClassKey, needed: dict[str, int]
    ) -> tuple[Shortage, ...]:
        node = manager.node
        quotas = node.quotas
        return tuple(
            Shortage(
                resource,
                units,
                node.free.get(resource, 0),
                node.available(resource),
                node.node_id,
                quotas[resource].enough_at(units) if resource in quotas else None,
                needed[resource] if needed[resource] > units else 0,
            )
            for resource, units in service.booked(by_need(self.state, manager, key, needed)).items()
            if node.free.get(resource, 0) < units
        )


def _least(shortages: Iterable[tuple[Shortage, ...]]) -> tuple[Shortage, ...]:
    """Returns the shortages on the node that comes closest; nothing if it has enough."""
    return min(shortages, key=lambda short: (len(short), sum(item.needed - item.free for item in short)), default=())


_Host = tuple[Manager, Service]
