"""Batched environment interaction: the barrier that trajectory-level rollouts did away with.

All trajectories of a batch generate, and only when the last of them is done do all of them step their environments;
the next turn begins when the last environment is done. A trajectory that ends leaves the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.benchmarks.simulator.policies.factory import PolicyFactory
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING
from callsheet.benchmarks.simulator.policy import EndFacts, EngineStatus, LiveRollout, Policy, Task, World
from callsheet.benchmarks.simulator.scenario import Generation


class Lockstep:
    """Holds every action until all live trajectories have one, and then gives all to the usual policy."""

    name = "lockstep"

    def __init__(self, world: World) -> None:
        self._inner: Policy = OS_SHARING(world)
        self._live: set[LiveRollout] = set()
        self._held: list[Task] = []

    def arrived(self, live: LiveRollout) -> None:
        """A trajectory joins the batch."""
        self._live.add(live)
        self._inner.arrived(live)

    def ready(self, task: Task) -> None:
        """Holds an action until the batch is complete."""
        self._held.append(task)
        self._release()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An action ended; one that was cancelled while it was held is forgotten."""
        if task in self._held:
            self._held.remove(task)
        else:
            self._inner.ended(task, facts)

    def route(self, live: LiveRollout, generation: Generation, engines: Sequence[EngineStatus]) -> int:
        """As the usual policy."""
        return self._inner.route(live, generation, engines)

    def finished(self, live: LiveRollout) -> None:
        """A trajectory leaves the batch."""
        self._live.discard(live)
        self._inner.finished(live)
        self._release()

    def woken(self) -> None:
        """As the usual policy."""
        self._inner.woken()

    def _release(self) -> None:
        if self._held and {task.live for task in self._held} >= self._live:
            held, self._held = self._held, []
            for task in held:
                self._inner.ready(task)


LOCKSTEP = PolicyFactory(Lockstep.name, Lockstep, OS_SHARING.applies)
