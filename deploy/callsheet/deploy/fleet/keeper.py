"""Keeps a fleet as it is wanted: looks at its provider and at its scheduler, and does what follows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread
import structlog
from callsheet.deploy.fleet.decisions import ManagerSeen, RoleWanted, Scaling, advance, decide
from callsheet.deploy.fleet.node import FleetNode, NodeOrder, NodePhase
from callsheet.deploy.fleet.notes import FleetFiles, Orders
from callsheet.deploy.fleet.provider import NoNodeRoomError, Provider, UnreadableError
from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings
from callsheet.timing.backoff import backoff_s
from structlog.typing import FilteringBoundLogger

_log: FilteringBoundLogger = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
# Not abandoned when cancelled: each call has limits of its own, and what it began is to be known.
in_thread = anyio.to_thread.run_sync
_LONGEST_BACKOFF_S: Final = 60.0
# On top of a manager's own drain: its last acknowledgements, and the release of its executor.
_GRACE_MARGIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class SchedulerSeen:
    """A scheduler at one look.

    Attributes:
        managers: By id.
        lost: Ids of those that were lost.
        wanted: What is wanted, by role.
    """

    managers: Mapping[str, ManagerSeen] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    wanted: Mapping[str, RoleWanted] = field(default_factory=dict)


class SchedulerView(Protocol):
    """How the keeper sees its scheduler. Both raise UnreadableError where there is no answer."""

    async def look(self) -> SchedulerSeen:
        """Returns the scheduler's present knowledge of the fleet."""

    async def drain(self, manager_id: str, deadline_s: float | None) -> None:
        """Has a manager leave once its last sandbox ends, or at a deadline; no error if it is not registered."""


class FleetKeeper:
    """Keeps one fleet.

    Args:
        settings: What is wanted.
        provider: Who has its nodes; open.
        scheduler: Whose managers they are.
        files: Where commands ask things of it, and where it tells how it is.
        order: What runs on a node, by its role and its name.
        retain: Ends what nodes were given to be known by, for all but these names.
        drain_s: How long a node's attempts may go on once its manager is to end.
        show: Told, as a sentence, how many nodes serve, when that changes, and why a look failed.
    """

    def __init__(
        self,
        settings: FleetSettings,
        provider: Provider,
        scheduler: SchedulerView,
        files: FleetFiles,
        *,
        order: Callable[[RoleSettings, str], NodeOrder],
        retain: Callable[[Collection[str]], None],
        drain_s: float,
        show: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._provider = provider
        self._scheduler = scheduler
        self._files = files
        self._order = order
        self._retain = retain
        self._drain_s = drain_s
        self._grace_s = drain_s + _GRACE_MARGIN_S
        self._scaling = {role: Scaling(each.least) for role, each in settings.roles.items()}
        self._started = dict.fromkeys(settings.roles, 0)
        self._failures = dict.fromkeys(settings.roles, 0)
        self._not_before = dict.fromkeys(settings.roles, 0.0)
        self._wanted: dict[str, int] = {}
        self._orders = Orders()
        self._down_at: float | None = None
        self._leaving: dict[str, ManagerSeen] = {}
        self._told: dict[str, Any] | None = None
        self._show = show
        self._shown = ""

    async def start(self) -> None:
        """Starts the least nodes of each role.

        Raises:
            NoNodeRoomError: The provider has not enough; those of roles before it run, and `close` ends them.
        """
        self._files.begin()
        await in_thread(self._retain, ())
        await self._want()
        for role in self._settings.roles.values():
            await self._start(role, role.least, within_s=self._settings.start_s)

    async def run(self) -> None:
        """Keeps the fleet until a command has it go down, and all nodes have left or the time for that is up."""
        down = False
        while not down:
            down = await self._round()
            await anyio.sleep(LOOK_S)

    async def close(self) -> None:
        """Ends all nodes, each with its drain, and lets go of the provider; shielded, as each has its deadline."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as tasks:
                    for node in await in_thread(self._provider.nodes):
                        tasks.start_soon(in_thread, self._provider.stop, node.name, self._grace_s)
            finally:
                await in_thread(self._provider.close)
                self._files.end()
                await in_thread(self._retain, ())

    async def _round(self) -> bool:
        # One look and what follows from it; whether the fleet is down.
        self._read_orders()
        try:
            nodes = await in_thread(self._provider.nodes)
            await in_thread(self._retain, {node.name for node in nodes})
            seen = await self._drain_on(await self._scheduler.look(), nodes)
            for role in self._settings.roles.values():
                await self._settle(role, [node for node in nodes if node.role == role.role], seen)
            await self._want()
        except (NoNodeRoomError, UnreadableError) as error:
            # Nothing follows from a list that cannot be read.
            _log.warning("fleet is not as it is wanted", reason=str(error))
            self._tell((), SchedulerSeen(), str(error))
            return self._is_late()
        self._tell(nodes, seen)
        return self._is_late() or (self._down_at is not None and not nodes)

    async def _drain_on(self, seen: SchedulerSeen, nodes: Sequence[FleetNode]) -> SchedulerSeen:
        """Has managers leave that were to do so at a former look: a scheduler that was started again forgot."""
        names = {node.name for node in nodes}
        told = {name: manager for name, manager in seen.managers.items() if manager.leaving}
        self._leaving = {name: each for name, each in {**self._leaving, **told}.items() if name in names}
        managers = dict(seen.managers)
        for name in self._leaving.keys() - told.keys():
            before, now = self._leaving[name], seen.managers.get(name)
            if now is not None:
                rest = None if before.leaves_by is None else max(0.0, before.leaves_by - time.time())
                _log.info("node is to leave still", node=name, within_s=rest)
                await self._scheduler.drain(name, rest)
            managers[name] = replace(now or before, connected=now is not None and now.connected, leaving=True)
        return replace(seen, managers=managers)

    def _read_orders(self) -> None:
        try:
            self._orders = self._files.orders()
        except ValueError as error:
            _log.warning("orders are not readable, the former ones hold", reason=str(error))
        if self._down_at is None and self._orders.down_within_s is not None:
            self._down_at = time.monotonic()

    def _is_late(self) -> bool:
        rest = self._down_rest_s()
        return rest is not None and rest < -(self._drain_s + _GRACE_MARGIN_S)

    def _down_rest_s(self) -> float | None:
        # Until what has not left dies, negative from then on; None if the fleet is to stay.
        within = self._orders.down_within_s
        return None if self._down_at is None or within is None else self._down_at + within - time.monotonic()

    async def _settle(self, role: RoleSettings, nodes: Sequence[FleetNode], seen: SchedulerSeen) -> None:
        """Does what brings a role nearer to what is wanted of it."""
        target, now = self._target(role, seen), time.monotonic()
        self._count_failures(role.role, nodes, now)
        steps = decide(nodes, seen.managers, target, role.most)
        for name in steps.drain:
            _log.info("node is to leave", node=name)
            rest = self._down_rest_s()
            await self._scheduler.drain(name, None if rest is None else max(0.0, rest))
            # It may be gone from the scheduler at the next look, and still end on its node.
            by = None if rest is None else time.time() + rest
            self._leaving[name] = replace(seen.managers[name], leaving=True, leaves_by=by)
        for name in steps.stop:
            _log.info("node is given back", node=name)
            await in_thread(self._provider.stop, name, self._grace_s)
        waits = any(node.phase is NodePhase.WAITING for node in nodes)
        if steps.start and not waits and now >= self._not_before[role.role]:
            # One by one, each on a machine that the ones before it are not on.
            await self._start(role, 1, within_s=None)

    def _target(self, role: RoleSettings, seen: SchedulerSeen) -> int:
        if self._down_at is not None:
            return 0
        name, scaling = role.role, self._scaling[role.role]
        if name in self._orders.nodes:
            self._scaling[name] = Scaling(self._orders.nodes[name])
        elif name in seen.wanted:
            self._scaling[name] = advance(scaling, role, seen.wanted[name], self._settings, time.monotonic())
        target = self._scaling[name].target
        if target != scaling.target:
            _log.info("role is scaled", role=name, nodes=target, before=scaling.target)
        return target

    def _count_failures(self, role: str, nodes: Sequence[FleetNode], now: float) -> None:
        """Puts off the next start where nodes failed, ever longer until one serves."""
        failed = sum(node.failed for node in nodes)
        if failed:
            self._failures[role] += failed
            self._not_before[role] = now + backoff_s(self._failures[role], LOOK_S, _LONGEST_BACKOFF_S)
        elif any(node.phase is NodePhase.SERVING for node in nodes):
            self._failures[role] = 0

    async def _start(self, role: RoleSettings, count: int, *, within_s: float | None) -> None:
        first = self._started[role.role] + 1
        self._started[role.role] += count
        names = [f"{role.role}-{number}" for number in range(first, first + count)]
        if names:
            _log.info("nodes are started", role=role.role, nodes=names)
            orders = [self._order(role, name) for name in names]
            await in_thread(partial(self._provider.start, role, orders, within_s=within_s))

    async def _want(self) -> None:
        """Reports to the provider how many nodes are wanted, if their number has changed."""
        wanted = {name: 0 if self._down_at is not None else each.target for name, each in self._scaling.items()}
        if wanted != self._wanted:
            await in_thread(self._provider.want, wanted, self._settings.roles)
            self._wanted = wanted

    def _tell(self, nodes: Sequence[FleetNode], seen: SchedulerSeen, problem: str = "") -> None:
        # Writes what was seen; a look that failed leaves what the one before told, and says so.
        told: dict[str, Any] = {
            "roles": [
                {"role": name, "least": each.least, "most": each.most, "target": self._wanted.get(name, each.least)}
                | {"by_hand": name in self._orders.nodes}
                for name, each in self._settings.roles.items()
            ],
            "nodes": [asdict(node) | _manager_of(node.name, seen) for node in nodes],
        }
        if problem and self._told is not None:
            told = self._told
        self._told = told
        about = {"provider": self._settings.provider, "pid": os.getpid(), "looked_at": time.time(), "problem": problem}
        self._files.tell(about | told)
        serving = sum(node.phase is NodePhase.SERVING for node in nodes)
        wanted = sum(self._wanted.values())
        shown = f"the fleet is not as it is wanted: {problem}" if problem else f"{serving} of {wanted} nodes serve"
        if shown != self._shown:
            self._show(shown)
            self._shown = shown


def _manager_of(name: str, seen: SchedulerSeen) -> dict[str, Any]:
    # A node's manager, as its scheduler sees it.
    manager = seen.managers.get(name)
    if manager is None:
        return {"manager": "lost" if name in seen.lost else "", "sandboxes": 0, "attempts": 0}
    state = "leaving" if manager.leaving else "connected" if manager.connected else "away"
    return {"manager": state, "sandboxes": manager.sandboxes, "attempts": manager.attempts}
