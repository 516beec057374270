"""What managers of GPU nodes tell of their models: which are there, and what bringing one in would take."""

from __future__ import annotations

from callsheet.benchmarks.simulator.policy import World
from callsheet.scheduler.core.events import ManagerHeartbeat
from callsheet.scheduler.core.registration import ServiceState


class ModelStates:
    """The states of all models on all GPU nodes, as they were told last."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._models = tuple(model.name for model in world.scenario.cluster.models)
        self._told: dict[tuple[str, str], ServiceState] = {}
        self._brings_in_s: dict[tuple[str, str], float] = {}

    def news(self, node: str) -> ManagerHeartbeat | None:
        """What a node's manager tells after a call began or ended there; None if nothing changed."""
        resident = self._world.resident(node)
        changed = []
        for model in self._models:
            seconds = self._world.set_up_s(node, model)
            if seconds:
                self._brings_in_s[node, model] = seconds
            usual_s = self._brings_in_s.get((node, model), 0.0)
            state = ServiceState(
                model, usual_s if seconds is None else seconds, resident[model], no_room=seconds is None
            )
            if self._told.get((node, model)) != state:
                self._told[node, model] = state
                changed.append(state)
        return ManagerHeartbeat(node, services=tuple(changed)) if changed else None
