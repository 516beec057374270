"""Decides which models lie where, and which give way to which. Pure.

A model is COLD (nothing of it is open), PARKED (opened, its weights in a file that the kernel may cache) or RESIDENT
(its weights lie in the arenas of devices). The model with the least value gives way: the price of its restore, times
the requests that are expected of it. If none are expected, the least recently used one goes. A model that runs, comes
or is pinned stays. So does, for a while, a model that came and has served nothing yet; otherwise two models could
chase each other out for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from callsheet.managers.reward.hosted.expectations import ArrivalRate, RestoreTimes, ServingPace
from callsheet.managers.reward.hosted.places import (
    ArenaPlace,
    ModelDevices,
    Occupant,
    PlaceChoice,
    aligned,
    cheapest_choice,
)

# What the scheduler expects is taken to come within so many seconds, as it does not say when.
EXPECTED_WITHIN_S = 60.0
# Restores' length that a model without a request since it came is left alone.
STAY_RESTORES = 4.0


class ModelStage(Enum):
    """Stage of a model, which shows where its weights are."""

    COLD = "cold"
    PARKED = "parked"
    COMING = "coming"
    RESIDENT = "resident"


@dataclass(slots=True, eq=False)
class HostedTenant:
    """A model as residency sees it.

    Attributes:
        name: Its name.
        size: Bytes it takes on each device of its chunk.
        width: Devices of its chunk.
        pinned: Whether it must stay once it is there.
        stage: Where its weights are.
        place: Where it lies, or comes; None elsewhere.
        running: Batches that run.
        arrivals: How often it is asked for.
        expected: Requests that the scheduler says are waiting there, or coming.
        pace: How fast it serves.
        came_at: When it came.
        used_at: When it ran last, or was asked for.
        served: Whether it has served since it came.
    """

    name: str
    size: int
    width: int = 1
    pinned: bool = False
    stage: ModelStage = ModelStage.COLD
    place: ArenaPlace | None = None
    running: int = 0
    arrivals: ArrivalRate = field(default_factory=ArrivalRate)
    expected: float = 0.0
    pace: ServingPace = field(default_factory=ServingPace)
    came_at: float = -inf
    used_at: float = -inf
    served: bool = True


class Residency:
    """The models of one set of devices."""

    def __init__(self, devices: ModelDevices, tenants: Iterable[HostedTenant]) -> None:
        """Starts with all of them cold.

        Raises:
            ValueError: A model can never lie there, or the pinned ones not together.
        """
        self.devices = devices
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.restore_times = RestoreTimes()
        for tenant in self.tenants.values():
            tenant.size = aligned(tenant.size)
            if tenant.size > devices.budget_bytes or tenant.width > devices.count:
                rule = f"must fit: {devices.count} device(s) with {devices.budget_bytes >> 20} MiB each"
                raise ValueError(f"model {tenant.name}: {tenant.size / 2**20:.1f} MiB on {tenant.width}: {rule}")
        self._check_pinned()

    def restore_s(self, name: str) -> float:
        """Seconds that a restore of a model will take."""
        return self.restore_times.expected_s(name, self.tenants[name].size * self.tenants[name].width)

    def value(self, name: str, now: float) -> float:
        """Returns the cost per second of a model's absence: the price of its restore times its requests."""
        tenant = self.tenants[name]
        return self.restore_s(name) * (tenant.arrivals.per_s(now) + tenant.expected / EXPECTED_WITHIN_S)

    def expect(self, name: str, requests: float) -> None:
        """Notes how many requests for a model wait at the scheduler, or are coming."""
        self.tenants[name].expected = requests

    def choose(
        self,
        name: str,
        now: float,
        *,
        may_go: Callable[[str], bool] = lambda _: True,
        once_served: bool = False,
    ) -> PlaceChoice | None:
        """Returns the place that a model would take and the models that would give way.

        Args:
            name: A model that is not there.
            now: Seconds.
            may_go: Decides if a model may give way to it.
            once_served: Whether to treat models that run, or have served nothing yet, as if they had served.

        Returns:
            None if the models that must stay leave too little space.
        """
        tenant = self.tenants[name]
        return cheapest_choice(self.devices, tenant.width, tenant.size, self._holders(now, may_go, once_served))

    def begin(self, name: str, choice: PlaceChoice) -> None:
        """A model begins to come; those that give way are gone.

        Raises:
            ValueError: It is there already, or one of those must stay.
        """
        tenant = self.tenants[name]
        if tenant.place is not None:
            raise ValueError(f"model {name}: {tenant.stage.value}: must not be there already")
        for evicted in choice.evicted:
            self.leave(evicted)
        tenant.place, tenant.stage = choice.place, ModelStage.COMING

    def arrive(self, name: str, now: float, seconds: float) -> None:
        """A model is there, after a restore of so many seconds."""
        tenant = self.tenants[name]
        tenant.stage, tenant.came_at, tenant.served = ModelStage.RESIDENT, now, False
        self.restore_times.learn(name, tenant.size * tenant.width, seconds)

    def leave(self, name: str, stage: ModelStage = ModelStage.PARKED) -> None:
        """A model gives its place back.

        Raises:
            ValueError: It runs.
        """
        tenant = self.tenants[name]
        if tenant.running:
            raise ValueError(f"model {name}: {tenant.running} batches run: it must be idle to leave")
        tenant.place, tenant.stage = None, stage

    def lose(self, name: str) -> None:
        """A model's process is gone, with all that ran in it."""
        tenant = self.tenants[name]
        tenant.place, tenant.stage, tenant.running = None, ModelStage.COLD, 0

    def request(self, name: str, now: float) -> None:
        """A model is asked for."""
        tenant = self.tenants[name]
        tenant.arrivals.add(now)
        tenant.used_at = now

    def run(self, name: str, now: float) -> None:
        """A batch begins on a resident model.

        Raises:
            ValueError: The model is not resident.
        """
        tenant = self.tenants[name]
        if tenant.stage is not ModelStage.RESIDENT:
            raise ValueError(f"model {name}: {tenant.stage.value}: must be resident to run")
        tenant.running += 1
        tenant.used_at, tenant.served = now, True

    def end(self, name: str, now: float) -> None:
        """A batch ended; none is counted where its process was lost meanwhile."""
        tenant = self.tenants[name]
        tenant.running = max(tenant.running - 1, 0)
        tenant.used_at = now

    def in_stage(self, stage: ModelStage) -> list[HostedTenant]:
        """The models that are at a stage."""
        return [tenant for tenant in self.tenants.values() if tenant.stage is stage]

    def _holders(self, now: float, may_go: Callable[[str], bool], once_served: bool) -> Mapping[str, Occupant]:
        return {
            name: Occupant(tenant.place, self._loss(tenant, now, may_go, once_served), tenant.used_at)
            for name, tenant in self.tenants.items()
            if tenant.place is not None
        }

    def _loss(self, tenant: HostedTenant, now: float, may_go: Callable[[str], bool], once_served: bool) -> float:
        unserved = not tenant.served and now - tenant.came_at < STAY_RESTORES * self.restore_s(tenant.name)
        occupied = (tenant.running > 0 or unserved) and not once_served
        stays = tenant.pinned or occupied or tenant.stage is not ModelStage.RESIDENT
        return inf if stays or not may_go(tenant.name) else self.value(tenant.name, now)

    def _check_pinned(self) -> None:
        pinned = [tenant for tenant in self.tenants.values() if tenant.pinned]
        holders: dict[str, Occupant] = {}
        for tenant in sorted(pinned, key=lambda each: (-each.width, -each.size)):
            choice = cheapest_choice(self.devices, tenant.width, tenant.size, holders)
            if choice is None:
                names = ", ".join(sorted(each.name for each in pinned))
                raise ValueError(f"pinned: {names}: must fit together into {self.devices.budget_bytes >> 20} MiB")
            holders[tenant.name] = Occupant(choice.place, inf, 0.0)
