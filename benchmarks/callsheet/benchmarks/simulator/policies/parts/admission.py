"""When trajectories begin: first come, as soon as there is room for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from callsheet.benchmarks.simulator.policies.parts.needs import needs_cpu
from callsheet.benchmarks.simulator.policies.parts.places import Footprint, Places
from callsheet.benchmarks.simulator.policy import LiveRollout, World
from callsheet.benchmarks.simulator.scenario import Rollout

LOOK_AHEAD = 256
"""How many waiting trajectories are looked at for a smaller one that fits where the first does not."""


def sandbox_room(rollout: Rollout) -> Footprint:
    """What a trajectory holds under policies that give it cores and more memory only while commands run."""
    return Footprint(rollout.memory_mb)


class FirstComeAdmission:
    """Admits trajectories in the order of their arrival; a smaller one may pass one that does not fit yet.

    Args:
        world: Where trajectories begin.
        places: The books of the nodes.
        room_for: What a trajectory holds for its life.
    """

    def __init__(self, world: World, places: Places, room_for: Callable[[Rollout], Footprint] = sandbox_room) -> None:
        self._world = world
        self._places = places
        self._room_for = room_for
        self._waiting: OrderedDict[LiveRollout, Footprint] = OrderedDict()
        self._refused_mb = float("inf")  # nothing of that size fits until something leaves

    def arrived(self, live: LiveRollout) -> None:
        """Lets a trajectory begin, or wait.

        Raises:
            ValueError: It fits no node, even an empty one.
        """
        if not needs_cpu(live.rollout):
            self._world.begin(live)
            return
        room = self._room_for(live.rollout)
        self._places.check(live.rollout, room)
        if self._fits(live, room):
            self._world.begin(live, reserved_cores=room.cores)
        else:
            self._waiting[live] = room

    def finished(self, live: LiveRollout) -> None:
        """Gives a trajectory's room to those who wait; one that never began leaves the line."""
        self._waiting.pop(live, None)
        self._places.leave(live)
        self._refused_mb = float("inf")
        begin = []
        for looked_at, (waiting, room) in enumerate(self._waiting.items()):
            if self._refused_mb == 0 or looked_at >= LOOK_AHEAD:
                break
            if self._fits(waiting, room):
                begin.append((waiting, room))
        for waiting, room in begin:
            del self._waiting[waiting]
            self._world.begin(waiting, reserved_cores=room.cores)

    def _fits(self, live: LiveRollout, room: Footprint) -> bool:
        """Takes room where there is some; remembers what size there is no room for."""
        if room.memory_mb >= self._refused_mb:
            return False
        if self._places.take(live.rollout, room):
            return True
        # Where cores are what is short, a smaller memory does not help.
        self._refused_mb = room.memory_mb if self._places.has_cores(room.cores) else 0
        return False
