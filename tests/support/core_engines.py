"""Engines of a core's world: they update their weights, or fail to, as a test says, and tell what they have."""

from __future__ import annotations

from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.engine_weights import UpdateEnd, WeightsOffer, WeightsStanding, WeightsTold
from callsheet.scheduler.core.words.model import ActionKind, Token
from callsheet.scheduler.core.words.registration import ServiceDescription, ServiceState

from tests.support.core_world import CoreWorld, FakeManager, node

POLICY = "policy"
KINDS = frozenset({ActionKind.GENERATE})


def offer(
    name: str = "weights",
    *,
    service: str = "",
    at_once: int = 1,
    expects_answer: bool = False,
    group_ranks: int = 0,
    payloads: frozenset[str] = frozenset(),
) -> WeightsOffer:
    """Weights that a trainer publishes; its name stands for where they are."""
    plan = f"{name} {at_once} {expects_answer} {group_ranks} {sorted(payloads)}".encode()
    return WeightsOffer(service, at_once, 10.0, plan, expects_answer, group_ranks, payloads)


class CoreEngine:
    """One engine with its manager. Nothing happens to it unless its test says so.

    Attributes:
        told: What its manager says of its weights.
    """

    def __init__(self, world: CoreWorld, manager_id: str, told: WeightsTold | None = None) -> None:
        self.world = world
        self.told = told or WeightsTold()
        self.manager = FakeManager(world, manager_id, node(f"node-{manager_id}"), (self._service(),))
        self.manager.join()

    def _service(self) -> ServiceDescription:
        return ServiceDescription(POLICY, KINDS, 4, {}, instances=1, weights=self.told)

    @property
    def updates(self) -> list[commands.UpdateWeights]:
        """The updates that it was told to do on its present stream."""
        return self.manager.stream.all(commands.UpdateWeights)

    def has(self, action: str) -> bool:
        """Whether an action was sent to it on its present stream."""
        return self.manager.has(action)

    def tell(self, told: WeightsTold | None = None) -> None:
        """Its manager says what it has, by a heartbeat."""
        self.told = told or self.told
        state = ServiceState(POLICY, 0.0, 1, weights=self.told)
        self.world.handle(events.ManagerHeartbeat(self.manager.manager_id, self.manager.stream, (state,)))

    def begin(self) -> commands.UpdateWeights:
        """Begins the newest update and says so."""
        update = self.updates[-1]
        self.tell(WeightsTold(WeightsStanding.UPDATING, self.told.version, updating=update.update))
        return update

    def prove(self, canary: bytes = b"answer") -> commands.UpdateWeights:
        """Ends the newest update well and says so."""
        update = self.updates[-1]
        if not update.plan:
            self.tell(WeightsTold(WeightsStanding.INITIAL, 0, last_update=UpdateEnd(update.update)))
            return update
        end = UpdateEnd(update.update, canary=canary)
        self.tell(WeightsTold(WeightsStanding.PROVED, update.version, update.rollout, last_update=end))
        return update

    def fail(self, reason: str = "the canary differs", *, proved_by: Token | None = None) -> None:
        """Ends the newest update badly and says so; with weights that it proved before if they are left."""
        end = UpdateEnd(self.updates[-1].update, failure=reason)
        if proved_by is not None:
            self.tell(WeightsTold(WeightsStanding.PROVED, self.told.version, proved_by, last_update=end))
        else:
            self.tell(WeightsTold(WeightsStanding.UNPROVED, self.told.version, reason=reason, last_update=end))

    def rejoin(self, *, incarnation: str | None = None) -> None:
        """Registers on a new stream, as another process of its manager if that is said."""
        if incarnation is not None:
            self.told = WeightsTold()
        self.manager.services = (self._service(),)
        self.manager.join(incarnation=incarnation)

    def move_to(self, world: CoreWorld) -> None:
        """Registers with another scheduler."""
        self.world = self.manager.world = world
        self.rejoin()


def engines(world: CoreWorld, count: int) -> list[CoreEngine]:
    """So many engines, named engine-0 and so on."""
    return [CoreEngine(world, f"engine-{index}") for index in range(count)]
