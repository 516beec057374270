"""Nodes on a Ray cluster: placement groups have the room, and an actor on each node supervises a manager's process.

Nothing is detached: Ray ends actors and groups with the process that made them, however that ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ray
import ray.autoscaler.sdk
import ray.exceptions
import ray.util
from callsheet.deploy.fleet.node import FleetNode, ManagerOnNode, NodeOrder, NodePhase
from callsheet.deploy.fleet.provider import (
    NoNodeRoomError,
    Provider,
    ThisMachine,
    UnreadableError,
)
from callsheet.deploy.fleet.settings import RoleSettings
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

MIB: Final = 1 << 20
_ANSWER_S: Final = 5.0
# Beyond the grace of a stop: for the call and its answer.
_CALL_MARGIN_S: Final = 5.0
_NODE_ID_LABEL: Final = "ray.io/node-id"
_BEGIN_TRIES: Final = 10
# Reports and a stop at once, and one to spare.
_CALLS_AT_ONCE: Final = 3


@dataclass(slots=True)
class _Placed:
    """A node: the bundle that is its room, its actor, and whether Ray ever had a machine for it."""

    role: RoleSettings
    group: _Group
    bundle: int
    actor: Any
    begun: bool = False


@dataclass(slots=True)
class _Group:
    """A placement group, with the names of the nodes in its bundles."""

    group: PlacementGroup
    role: str
    nodes: list[str | None] = field(default_factory=list)


class RayProvider(Provider):
    """Has nodes on a Ray cluster. Args: address: Of the cluster, or "auto"."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._groups: list[_Group] = []
        self._placed: dict[str, _Placed] = {}
        self._asks_for_machines = False

    def open(self) -> ThisMachine:
        try:
            ray.init(address=self._address, log_to_driver=False)
        except ConnectionError as error:
            raise UnreadableError(f"ray: no cluster is at {self._address!r}: {error}") from error
        host = str(ray.util.get_node_ip_address())
        return ThisMachine(host, has_others=any(node["NodeManagerAddress"] != host for node in ray.nodes()))

    def nodes(self) -> list[FleetNode]:
        with _readable():
            return self._look()

    def _look(self) -> list[FleetNode]:
        machines = {id(group): _machines_of(group.group) for group in self._groups}
        places = {name: machines[id(each.group)].get(each.bundle, "") for name, each in self._placed.items()}
        asked = {}
        for name, placed in self._placed.items():
            placed.begun = placed.begun or bool(places[name])
            if placed.begun:
                asked[name] = placed.actor.report.remote()
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_S)
        return [
            _seen(name, placed.role.role, asked[name], places[name])
            if name in asked
            else FleetNode(name, placed.role.role, NodePhase.WAITING, f"Ray has no room for {_bundle(placed.role)} yet")
            for name, placed in self._placed.items()
        ]

    def start(self, role: RoleSettings, orders: Sequence[NodeOrder], *, within_s: float | None) -> None:
        free = [(g, i) for g in self._groups if g.role == role.role for i, name in enumerate(g.nodes) if name is None]
        rest = len(orders) - len(free)
        if rest > 0:
            with _readable():
                group = self._make_group(role, f"callsheet-{orders[-1].name}", rest, within_s)
            free += [(group, index) for index in range(rest)]
        for order, (group, index) in zip(orders, free, strict=False):
            strategy = PlacementGroupSchedulingStrategy(group.group, index)
            options: dict[str, Any] = {
                "num_cpus": role.cores,
                "memory": role.memory_mib * MIB,
                "num_gpus": role.gpus,
                "name": order.name,
                "scheduling_strategy": strategy,
                "max_concurrency": _CALLS_AT_ONCE,
            }
            # What an actor is made with is in Ray's control store as long as the actor is; what its methods are called
            # with goes from this process to the actor's alone.
            actor: Any = ray.remote(ManagerOnNode).options(**options).remote(replace(order, secrets={}))
            actor.begin.options(max_task_retries=_BEGIN_TRIES).remote(order.secrets)
            group.nodes[index] = order.name
            self._placed[order.name] = _Placed(role, group, index, actor)

    def _make_group(self, role: RoleSettings, name: str, count: int, within_s: float | None) -> _Group:
        """Asks Ray for room; bundles of a group are on machines of their own, and none on one that has a node."""
        machines = [place for g in self._groups if g.role == role.role for place in _machines_of(g.group).values()]
        selector = dict(role.labels)
        if machines:
            selector[_NODE_ID_LABEL] = f"!in({','.join(sorted(machines))})"
        made = placement_group(
            [_bundle(role)] * count,
            strategy="STRICT_SPREAD",
            name=name,
            bundle_label_selector=[selector] * count,
        )
        if within_s is not None and not made.wait(within_s):
            remove_placement_group(made)
            raise NoNodeRoomError(_what_is_short(role, count, within_s))
        group = _Group(made, role.role, [None] * count)
        self._groups.append(group)
        return group

    def stop(self, name: str, grace_s: float) -> None:
        placed = self._placed.get(name)
        if placed is None:
            return
        if placed.begun:
            # One that is gone with its machine, or does not answer, Ray ends, and the end of its pipe ends the manager.
            with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                ray.get(placed.actor.stop.remote(grace_s), timeout=2 * grace_s + _CALL_MARGIN_S)
        ray.kill(placed.actor)
        del self._placed[name]
        placed.group.nodes[placed.bundle] = None
        if not any(placed.group.nodes):
            self._groups.remove(placed.group)
            remove_placement_group(placed.group.group)

    def want(self, nodes: Mapping[str, int], roles: Mapping[str, RoleSettings]) -> None:
        # Only fleets that grow by themselves ask: Ray keeps one such request for a whole cluster.
        if any(role.least < role.most for role in roles.values()):
            self._asks_for_machines = True
            bundles = [_bundle(roles[name]) for name, count in nodes.items() for _ in range(count)]
            with _readable():
                ray.autoscaler.sdk.request_resources(bundles=bundles)

    def close(self) -> None:
        if not ray.is_initialized():
            return
        for group in self._groups:
            remove_placement_group(group.group)
        if self._asks_for_machines:
            ray.autoscaler.sdk.request_resources(bundles=[])
        ray.shutdown()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ray.exceptions.RayError as error:
        raise UnreadableError(f"ray: {error}") from error


def _bundle(role: RoleSettings) -> dict[str, float]:
    bundle: dict[str, float] = {"CPU": role.cores, "memory": role.memory_mib * MIB}
    return bundle | ({"GPU": role.gpus} if role.gpus else {})


def _machines_of(group: PlacementGroup) -> dict[int, str]:
    # The ids of Ray's nodes by bundle, for those that have one.
    table: dict[str, Any] = placement_group_table(group)
    if table.get("state") not in {"CREATED", "RESCHEDULING"}:
        return {}
    return {index: str(node) for index, node in table["bundles_to_node_id"].items() if node}


def _seen(name: str, role: str, asked: Any, place: str) -> FleetNode:
    try:
        report: FleetNode = ray.get(asked, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return FleetNode(name, role, NodePhase.SILENT, "its actor has not answered yet", place=place)
    except ray.exceptions.ActorUnavailableError:
        return FleetNode(name, role, NodePhase.SILENT, "Ray does not reach its actor now", place=place)
    except ray.exceptions.RayActorError as error:
        why = " ".join(str(error).split())
        return FleetNode(name, role, NodePhase.ENDED, f"its actor died: {why}", failed=True, place=place)
    return replace(report, place=place)


def _what_is_short(role: RoleSettings, count: int, within_s: float) -> str:
    """Returns a sentence about the units that each of Ray's nodes lacks for a bundle."""
    from ray._private.state import available_resources_per_node

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    bundle = _bundle(role)
    nodes = []
    alive: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    for node in alive:
        has = free.get(node["NodeID"], {})
        lacks = [
            f"{name} {has.get(name, 0):g} of {units:g}" for name, units in bundle.items() if has.get(name, 0) < units
        ]
        told = f"has free {', '.join(lacks)}" if lacks else f"has enough, with labels {node.get('Labels', {})}"
        nodes.append(f"{node['NodeID'][:8]} {told}")
    labels = f" and labels {dict(role.labels)}" if role.labels else ""
    return (
        f"roles.{role.role}: Ray found no room within {within_s:g} s for {count} nodes with {bundle}{labels}: "
        f"{'; '.join(nodes) or 'it has no nodes'}"
    )
